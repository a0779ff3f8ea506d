"""The stateful style over NNX modules: the online gradient of the pure learner, and states that advance."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

nnx = pytest.importorskip("flax.nnx")

B, I, H, T = 2, 3, 4, 6
RNG = np.random.RandomState(0)
XS = jnp.asarray(RNG.standard_normal((T, B, I)))
MASK = jnp.asarray([1.0, 0.0, 2.0, 1.0, 1.0, 0.5])


class Layer(nnx.Module):
    """A recurrent layer with its state in a variable, a counter, and a readout."""

    def __init__(self):
        rng = np.random.RandomState(1)
        self.w = nnx.Param(jnp.asarray(rng.standard_normal((I, H))))
        self.r = nnx.Param(jnp.asarray(rng.standard_normal((H, H)) * 0.3))
        self.out = nnx.Param(jnp.asarray(rng.standard_normal((H, 2))))
        self.h = nnx.Variable(jnp.zeros((B, H)))
        self.seen = nnx.Variable(jnp.zeros((), int))

    def __call__(self, x):
        self.h[...] = 0.8 * self.h[...] + x @ self.w[...] + jnp.tanh(self.h[...]) @ self.r[...]
        self.seen[...] = self.seen[...] + 1
        return self.h[...] @ self.out[...]


class Cell(nnx.Module):
    """The same with the carry as an argument."""

    def __init__(self):
        self.layer = Layer()

    def __call__(self, carry, x):
        carry = 0.8 * carry + x @ self.layer.w[...] + jnp.tanh(carry) @ self.layer.r[...]
        return carry, carry @ self.layer.out[...]


def square(output):
    return (output**2).mean()


def pure(window=1, mask=None):
    learner = etrax.compile(Layer(), "d_rtrl", XS[0])
    run = learner.value_and_grad(lambda o, _: square(o), window=window)
    (loss, grads), state = run(learner.params, learner.init(), XS, None, mask)
    return loss, grads, state


@pytest.fixture(scope="module")
def online():
    return etrax.Stateful(Layer(), "d_rtrl", XS[0])


def assert_same(found, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), nnx.to_pure_dict(found), want)


def test_gradient_of_a_sequence(online):
    online.reset_state()
    grads, loss = online.etrace_grad(
        XS, step_fn=lambda online, x: square(online(x)), return_value=True, loss_output="scalar"
    )
    want_loss, want, state = pure()
    assert_same(grads, nnx.to_pure_dict(want))
    np.testing.assert_allclose(loss, want_loss, rtol=1e-12)
    np.testing.assert_allclose(online.module.h[...], state.hidden["h"][...], rtol=1e-12)
    assert int(online.module.seen[...]) == T
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), online.trace.get_value(), state.trace)
    assert online.get_etrace_of(online.module.w)[0].shape == online.get_etrace_of(("w",))[0].shape
    with pytest.raises(etrax.ArgumentError, match="no parameter at"):
        online.get_etrace_of("u")


def test_windows_masks_and_what_is_returned(online):
    online.reset_state()
    step_fn = lambda online, xs: (jax.vmap(square)(online(etrax.MultiStepData(xs))), xs.sum())
    grads, losses, aux = online.etrace_grad(
        XS, step_fn=step_fn, chunk_size=3, mask=MASK, has_aux=True, return_value=True, loss_output="masked"
    )
    loss, want, _ = pure(3, MASK)
    assert_same(grads, nnx.to_pure_dict(want))
    np.testing.assert_allclose(losses.sum() / MASK.sum(), loss, rtol=1e-12)
    assert losses.shape == (T,) and aux.shape == (2,)


class Shown(Layer):
    """The same, which shows its state as well."""

    def __call__(self, x):
        return super().__call__(x), self.h[...]


def test_a_loss_sees_parameters_and_states(online):
    """A penalty on weights and one on states count in full, those of states through the trace."""
    online.reset_state()

    def step_fn(online, x):
        loss = square(online(x)) + square(online.module.h[...])
        return loss + 0.1 * (online.module.w[...] ** 2).sum(), online.module.h[...]

    grads, states = online.etrace_grad(XS, step_fn=step_fn, has_aux=True)
    learner = etrax.compile(Shown(), "d_rtrl", XS[0])
    run = learner.value_and_grad(lambda o, _: square(o[0]) + square(o[1]), window=1)
    (_, want), _ = run(learner.params, learner.init(), XS, None)
    want = nnx.to_pure_dict(want)
    assert_same(grads, want | {"w": want["w"] + 0.2 * online.module.w[...]})
    assert states.shape == (T, B, H)
    np.testing.assert_allclose(states[-1], online.module.h[...])


def test_one_step_by_the_librarys_own_transformations():
    online = etrax.Stateful(Layer(), "d_rtrl", XS[0])
    optimizer = nnx.Optimizer(online, optax.adam(0.01), wrt=nnx.Param)

    @nnx.jit
    def learn(online, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda online, x: square(online(x)))(online, x)
        optimizer.update(online, grads)
        return loss

    losses = [float(learn(online, optimizer, x)) for x in [*XS] * 6]
    assert int(online.module.seen[...]) == 6 * T
    assert sum(losses[-T:]) < sum(losses[:T])


def test_a_carry_that_is_an_argument_is_kept(online):
    online.reset_state()
    outs = online.etrace_evolve(XS, return_outputs=True)
    cell = etrax.Stateful(Cell(), "d_rtrl", XS[0], hidden=jnp.zeros((B, H)))
    np.testing.assert_allclose(jnp.stack([cell(x) for x in XS]), outs, rtol=1e-12)
    np.testing.assert_allclose(cell.carry.get_value(), online.module.h[...], rtol=1e-12)
    cell.reset_state()
    assert not np.asarray(cell.carry.get_value()).any()


def test_some_weights(online):
    """A filter reads paths as the module has them."""
    online.reset_state()
    whole = online.etrace_grad(XS, step_fn=lambda o, x: square(o(x)))
    for weights in (nnx.PathContains("w"), lambda path, _: path == ("w",)):
        online.reset_state()
        grads = online.etrace_grad(XS, step_fn=lambda o, x: square(o(x)), weights=weights)
        assert list(grads) == ["w"]
        np.testing.assert_allclose(grads["w"][...], whole["w"][...], rtol=1e-12)


def test_what_is_refused(online):
    with pytest.raises(etrax.ArgumentError, match="called the learner 2 times"):
        online.etrace_grad(XS, step_fn=lambda o, x: square(o(x)) + square(o(x)))
    with pytest.raises(etrax.ArgumentError, match="called the learner 0 times"):
        online.etrace_grad(XS, step_fn=lambda o, x: x.sum())
    with pytest.raises(etrax.ArgumentError, match="makes its states in `__init__`"):
        online.reset_state(batch_size=5)
    for weights, message in (
        (3, "`weights` is an int"),
        ("nowhere", "`weights` selects nothing"),
        (nnx.BatchStat, "`weights` selects nothing"),
        (nnx.Variable, "which is no parameter"),
        (online.module.w, "`weights` is a Param"),
    ):
        with pytest.raises(etrax.ArgumentError, match=message):
            online.etrace_grad(XS, step_fn=lambda o, x: square(o(x)), weights=weights)
    for inputs, message in (((XS,), "mark a window of steps"), ((), "given nothing"), (("x",), "is a str")):
        with pytest.raises(etrax.ArgumentError, match=message):
            online(*inputs)
    with pytest.raises(etrax.ArgumentTypeError, match=r"brainstate.nn.Module` or an `nnx.Module`"):
        etrax.Stateful(lambda x: x, "d_rtrl", XS[0])


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("donate", [(), (0,)])
def test_reset_between_calls_and_inside(carry, donate):
    """A compiled function sees a reset, also one that uses up the arrays of the module that it is given."""
    if carry:
        online = etrax.Stateful(Cell(), "d_rtrl", XS[0], hidden=jnp.ones((B, H)))
    else:
        online = etrax.Stateful(Layer(), "d_rtrl", XS[0])
    step = nnx.jit(lambda online, x: online(x), donate_argnums=donate)
    want = [step(online, x) for x in XS]

    @nnx.jit
    def from_the_start(online, x):
        online.reset_state()
        return online(x)

    for _ in range(2):
        online.reset_state()
        np.testing.assert_array_equal([step(online, x) for x in XS], want)
        np.testing.assert_allclose(from_the_start(online, XS[0]), want[0], rtol=1e-12)
        np.testing.assert_allclose(step(online, XS[1]), want[1], rtol=1e-12)
