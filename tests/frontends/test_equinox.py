"""Modules of Equinox: its own cells and a user's, against BPTT written with Equinox alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from tests.learn.harness import in_numpy

import etrax

eqx = pytest.importorskip("equinox")

B, I, H, T = 2, 3, 4, 7
RNG = np.random.RandomState(0)
XS, YS = jnp.asarray(RNG.standard_normal((T, B, I))), jnp.asarray(RNG.standard_normal((T, B, H)))
KEY = jax.random.key(0)


def loss(output, target):
    return sum(((o - target) ** 2).mean() for o in jax.tree.leaves(output))


def bptt(module, hidden, call, xs=XS, ys=YS):
    """Loss and gradients as a user of Equinox would write them."""

    def total(module):
        def body(hidden, xy):
            hidden, out = call(module, hidden, xy[0])
            return hidden, loss(out, xy[1])

        return lax.scan(body, hidden, (xs, ys))[1].mean()

    return eqx.filter_value_and_grad(total)(module)


def online(learner, window, xs=XS, ys=YS):
    run = learner.value_and_grad(loss, window=window)
    return in_numpy(lambda *a: run(*a)[0], learner.params, learner.init(), xs, ys)


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) > 1
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


def as_cell(module, hidden, x):
    new = module(x, hidden)
    return new, new


CELLS = {
    "gru": lambda: (eqx.nn.GRUCell(I, H, key=KEY), jnp.zeros(H)),
    "lstm": lambda: (eqx.nn.LSTMCell(I, H, key=KEY), (jnp.zeros(H), jnp.ones(H))),
}


@pytest.mark.parametrize("name", CELLS)
def test_own_cells(name):
    """Called as Equinox does, with one sample; the output is the new state."""
    cell, hidden = CELLS[name]()
    xs, ys = XS[:, 0], YS[:, 0]
    want = bptt(cell, hidden, as_cell, xs, ys)
    for rule, window in (("rtrl", 3), ("d_rtrl", T)):
        learner = etrax.compile(cell, rule, xs[0], hidden=hidden)
        assert_same(online(learner, window, xs, ys), want)
        assert ("weight_hh",) in learner.report.verdicts


def test_batched_by_vmap():
    cell, _ = CELLS["gru"]()

    def call(cell, hidden, x):
        new = jax.vmap(cell)(x, hidden)
        return new, new

    learner = etrax.compile(cell, "rtrl", XS[0], hidden=jnp.zeros((B, H)), call=call)
    assert_same(online(learner, 2), bptt(cell, jnp.zeros((B, H)), call))


class Leaky(eqx.Module):
    """Arrays that are trained, integers that are not, a function, and a static number."""

    w: jax.Array
    order: jax.Array
    inner: eqx.nn.Linear
    activation: Any
    leak: float = eqx.field(static=True)

    def __init__(self):
        self.w, self.order = jax.random.normal(KEY, (I, H)), jnp.array([2, 0, 1])
        self.inner, self.activation, self.leak = eqx.nn.Linear(H, H, key=KEY), jax.nn.tanh, 0.9

    def __call__(self, x, hidden):
        return self.leak * hidden + self.activation(x[:, self.order] @ self.w)


def readout(module, hidden, x):
    hidden = module(x, hidden)
    return hidden, jax.vmap(module.inner)(hidden)


def test_what_is_a_parameter():
    module, hidden = Leaky(), jnp.zeros((B, H))
    learner = etrax.compile(module, "d_rtrl", XS[0], hidden=hidden, call=readout)
    verdicts = learner.report.verdicts
    assert set(verdicts) == {("w",), ("inner", "weight"), ("inner", "bias")}
    assert {v.kind for v in verdicts.values()} == {"exact"}
    assert_same(online(learner, 3), bptt(module, hidden, readout))


def test_some_arrays_are_not_trained():
    module, hidden = Leaky(), jnp.zeros((B, H))
    params = eqx.tree_at(lambda m: m.inner.weight, eqx.filter(module, eqx.is_inexact_array), None)
    learner = etrax.compile(module, "d_rtrl", XS[0], params=params, hidden=hidden, call=readout)
    assert set(learner.report.verdicts) == {("w",), ("inner", "bias")}
    (_, grads), _ = learner.value_and_grad(loss, window=3)(params, learner.init(), XS, YS)
    want = bptt(module, hidden, readout)[1]
    assert grads.inner.weight is None
    np.testing.assert_allclose(grads.w, want.w, rtol=1e-10)


def test_gradients_are_in_the_modules_tree():
    module, hidden = Leaky(), jnp.zeros((B, H))
    learner = etrax.compile(module, "d_rtrl", XS[0], hidden=hidden, call=readout)
    optimizer = optax.adam(1e-2)
    (_, grads), _ = learner.value_and_grad(loss, window=3)(learner.params, learner.init(), XS, YS)
    updates, _ = optimizer.update(grads, optimizer.init(learner.params))
    new = eqx.apply_updates(module, updates)
    assert new.activation is module.activation and not np.allclose(new.w, module.w)
    np.testing.assert_array_equal(new.order, module.order)


class Counts(eqx.Module):
    """A stateful layer."""

    w: jax.Array
    v: eqx.nn.StateIndex
    n: eqx.nn.StateIndex

    def __init__(self):
        self.w = jax.random.normal(KEY, (I, H))
        self.v, self.n = eqx.nn.StateIndex(jnp.zeros((B, H))), eqx.nn.StateIndex(jnp.array(0))

    def __call__(self, x, state):
        v, n = 0.9 * state.get(self.v) + x @ self.w, state.get(self.n) + 1
        return jnp.tanh(v), state.set(self.v, v).set(self.n, n)


def test_stateful_layers():
    module, state = eqx.nn.make_with_state(Counts)()
    learner = etrax.compile(module, "d_rtrl", XS[0], hidden=state)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    assert_same(online(learner, 2), bptt(module, state, lambda m, s, x: m(x, s)[::-1]))
    end = learner.init()
    for x in XS:
        end, _ = learner.step(learner.params, end, x)
    assert int(end.hidden.get(module.n)) == T


def test_a_wrapped_function_is_a_function():
    """`eqx.filter_jit` makes a module of a function; with parameters of its own it is one."""
    step = eqx.filter_jit(lambda w, h, x: (0.9 * h + x @ w,) * 2)
    learner = etrax.compile(step, "d_rtrl", XS[0], params=jnp.ones((I, H)), hidden=jnp.zeros((B, H)))
    assert learner.report.verdicts[()].kind == "exact"


class ReturnsAPair(eqx.Module):
    def __call__(self, x, hidden):
        return hidden, x


def test_wrong_calls():
    cell, hidden = CELLS["gru"]()
    with pytest.raises(etrax.CompilationError, match="`hidden=` was not given"):
        etrax.compile(cell, "d_rtrl", XS[0, 0])
    with pytest.raises(etrax.CompilationError, match="Equinox's layers take one sample"):
        etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((B, H)))
    with pytest.raises(etrax.CompilationError, match="Say how it is called"):
        etrax.compile(ReturnsAPair(), "d_rtrl", XS[0], hidden=hidden)
    with pytest.raises(etrax.CompilationError, match="for a plain function"):
        etrax.compile(lambda p, h, x: (h, x), "d_rtrl", XS[0], params={}, hidden=hidden, call=lambda *a: a)
    with pytest.raises(TypeError, match="`call` is an int"):
        etrax.compile(cell, "d_rtrl", XS[0], hidden=hidden, call=3)


def test_a_list_of_modules():
    """Layers in a list, a leaky state above the first."""
    modules = [eqx.nn.Linear(I, H, key=KEY), eqx.nn.Linear(H, H, key=jax.random.key(1))]

    def call(modules, h, x):
        h = 0.9 * h + jax.vmap(modules[0])(x)
        return h, jax.vmap(modules[1])(jnp.tanh(h))

    hidden = jnp.zeros((B, H))
    learner = etrax.compile(modules, "d_rtrl", XS[0], hidden=hidden, call=call)
    assert {verdict.kind for verdict in learner.report.verdicts.values()} == {"exact"}
    want = bptt(modules, hidden, call)[1]
    assert_same(online(learner, 3)[1], eqx.filter(want, eqx.is_inexact_array))
    written = etrax.write_back(modules, jax.tree.map(jnp.zeros_like, learner.params))
    assert isinstance(written, list) and not written[0].weight.any()
    with pytest.raises(etrax.CompilationError, match="list of Equinox modules"):
        etrax.compile(modules, "d_rtrl", XS[0], hidden=hidden)


@pytest.mark.parametrize("window", (1, 3))
@pytest.mark.parametrize("kind", ("bounded", "checkpointed"))
def test_loops_of_equinox(kind, window):
    """Sub-steps in a loop of `equinox.internal`, which every solve of diffrax is made of."""
    from equinox.internal import while_loop

    def call(cell, h, x):
        drive = jax.vmap(cell)(x)

        def body(carry):
            return carry[0] + 1, 0.8 * carry[1] + 0.1 * jnp.tanh(drive)

        start = jnp.asarray(0), h
        _, h = while_loop(lambda carry: carry[0] < 3, body, start, max_steps=4, kind=kind)
        return h, h

    cell, hidden = eqx.nn.Linear(I, H, key=KEY), jnp.zeros((B, H))
    learner = etrax.compile(cell, "d_rtrl", XS[0], hidden=hidden, call=call)
    assert {verdict.kind for verdict in learner.report.verdicts.values()} == {"exact"}
    run = learner.value_and_grad(loss, window=window)
    grads = run(learner.params, learner.init(), XS, YS)[0][1]
    want = bptt(cell, hidden, lambda cell, h, x: call(cell, h, x))[1]
    assert_same(grads, eqx.filter(want, eqx.is_inexact_array))
