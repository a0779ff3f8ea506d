"""A reset between calls of a compiled function, and inside of it: the second sequence is as the first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")

B, I, H, T = 2, 3, 4, 5
XS = jnp.asarray(np.random.RandomState(0).standard_normal((T, B, I)))


class Layers(brainstate.nn.Module):
    """Two layers whose states stand in an attribute, in a list, in a tuple of a dictionary, and under a second name."""

    def __init__(self):
        super().__init__()
        rng = np.random.RandomState(1)
        self.w = brainstate.ParamState(jnp.asarray(rng.standard_normal((I, H))))
        self.r = brainstate.ParamState(jnp.asarray(rng.standard_normal((H, H)) * 0.3))

    def init_state(self, batch_size=B):
        self.h = brainstate.HiddenState(jnp.full((batch_size, H), 0.1))
        self.more = [brainstate.HiddenState(jnp.zeros((batch_size, H)))]
        self.kept = {"both": (brainstate.ShortTermState(jnp.zeros((), int)), "name")}
        self.alias = self.h

    def update(self, x):
        self.h.value = 0.8 * self.alias.value + jnp.tanh(x @ self.w.value + self.h.value @ self.r.value)
        self.more[0].value = 0.5 * self.more[0].value + self.h.value
        self.kept["both"][0].value = self.kept["both"][0].value + 1
        return self.more[0].value


def cells():
    return [Layers(), brainstate.nn.GRUCell(I, H), brainstate.nn.LSTMCell(I, H), etrax.nn.LSTMCell(I, H)]


def square(output):
    return (output**2).mean()


def run(call, steps=T):
    return np.stack([call(x) for x in XS[:steps]])


@pytest.mark.parametrize("cell", cells(), ids=lambda c: f"{type(c).__module__.split('.')[0]}.{type(c).__name__}")
def test_between_calls(cell):
    weights = [state.value for state in cell.states(brainstate.ParamState).values()]
    xs = XS.astype(jax.tree.leaves(weights)[0].dtype)
    online = etrax.Stateful(cell, "d_rtrl", xs[0], batch_size=B)
    objects = {path: id(state) for path, state in cell.states().items()}
    step = brainstate.transform.jit(lambda x: online(x))
    first = np.stack([step(x) for x in xs])
    trace = online.trace.value
    online.reset_state()
    assert not any(abs(a).sum() for a in jax.tree.leaves(online.trace.value))
    np.testing.assert_array_equal(np.stack([step(x) for x in xs]), first)
    jax.tree.map(np.testing.assert_array_equal, online.trace.value, trace)
    assert {path: id(state) for path, state in cell.states().items()} == objects


@pytest.mark.parametrize("batch_size", [None, B])
def test_gradients_between_calls(batch_size):
    """Against the gradient of the pure learner from its initial state."""
    module = Layers()
    online = etrax.Stateful(module, "rtrl", XS[0], batch_size=B)
    want = online.learner.value_and_grad(lambda o, _: square(o), window=1)
    (_, grads), _ = want(online.learner.params, online.learner.init(), XS)
    run = brainstate.transform.jit(lambda xs: online.etrace_grad(xs, step_fn=lambda x: square(online(x))))
    for _ in range(3):
        found = run(XS)
        for name in "wr":
            np.testing.assert_allclose(found[name,], grads[name], rtol=1e-10, atol=1e-14)
        online.reset_state(batch_size)


def test_inside_of_a_compiled_function():
    module = Layers()
    online = etrax.Stateful(module, "d_rtrl", XS[0], batch_size=B)
    step = brainstate.transform.jit(lambda x: online(x))
    want = run(step)

    @brainstate.transform.jit
    def sequence(xs):
        online.reset_state()
        return brainstate.transform.for_loop(online, xs)

    for _ in range(2):
        np.testing.assert_allclose(sequence(XS), want, rtol=1e-12)
        online.reset_state()  # outside: no state is of a trace that has ended
        np.testing.assert_array_equal(run(step), want)
    assert module.alias is module.h and int(module.kept["both"][0].value) == T


class MadeAtOnce(brainstate.nn.Module):
    """States of `__init__`, which no `init_state` makes again; one of them outlives a sequence."""

    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jnp.asarray(np.random.RandomState(1).standard_normal((I, H))))
        self.h = brainstate.HiddenState(jnp.full((B, H), 0.3))
        self.filtered = brainstate.ShortTermState({"slow": jnp.zeros((B, H))})
        self.calls = brainstate.LongTermState(jnp.zeros((), int))

    def update(self, x):
        self.calls.value = self.calls.value + 1
        self.h.value = 0.8 * self.h.value + jnp.tanh(x @ self.w.value)
        self.filtered.value = {"slow": 0.5 * self.filtered.value["slow"] + self.h.value}
        return self.filtered.value["slow"]


class Mixed(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = MadeAtOnce(), Layers()

    def update(self, x):
        return self.first(x) + self.second(x)


@pytest.mark.parametrize("make", [MadeAtOnce, Mixed])
def test_states_that_no_init_state_makes(make):
    module = make()
    brainstate.nn.init_all_states(module, B)
    online = etrax.Stateful(module, "d_rtrl", XS[0])
    step = brainstate.transform.jit(lambda x: online(x))
    first = run(step)
    online.reset_state()
    np.testing.assert_array_equal(run(step), first)

    @brainstate.transform.jit
    def sequence(xs):
        online.reset_state()
        return brainstate.transform.for_loop(online, xs)

    np.testing.assert_allclose(sequence(XS), first, rtol=1e-12)
    assert int(getattr(module, "first", module).calls.value) == 3 * T


def test_another_batch_size_between_calls():
    module = Layers()
    online = etrax.Stateful(module, "d_rtrl", XS[0], batch_size=B)
    step = brainstate.transform.jit(lambda x: online(x))
    want = run(step)
    online.reset_state(batch_size=1)
    np.testing.assert_allclose(np.stack([step(x[:1]) for x in XS]), want[:, :1], rtol=1e-12)
    online.reset_state(batch_size=B)
    np.testing.assert_array_equal(run(step), want)


def test_compiling_keeps_the_objects():
    """`compile(batch_size=)` makes values anew too: a function compiled before goes on with them."""
    module = Layers()
    module.init_state(B)
    step = brainstate.transform.jit(lambda x: module(x))
    want = run(step)
    etrax.compile(module, "d_rtrl", XS[0], batch_size=B)
    np.testing.assert_array_equal(run(step), want)


def test_a_reset_that_fails_changes_nothing():
    module = Layers()
    online = etrax.Stateful(module, "d_rtrl", XS[0], batch_size=B)
    step = brainstate.transform.jit(lambda x: online(x))
    step(XS[0])
    before = {path: (state, np.asarray(state.value)) for path, state in module.states().items()}

    def half(batch_size=None):
        Layers.init_state(module, batch_size)
        raise RuntimeError("no more")

    module.init_state = half
    with pytest.raises(RuntimeError, match="no more"):
        online.reset_state()
    for path, state in module.states().items():
        assert state is before[path][0]
        np.testing.assert_array_equal(state.value, before[path][1])
