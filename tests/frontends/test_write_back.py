"""Trained values go home into the module that they came from."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

brainstate = pytest.importorskip("brainstate")
unit = pytest.importorskip("brainunit")
nnx = pytest.importorskip("flax.nnx")
eqx = pytest.importorskip("equinox")

XS, YS = jax.random.normal(jax.random.key(0), (6, 2, 3)), jnp.zeros((6, 2, 4))


def trained(learner):
    """Parameters and state after some updates."""
    run = learner.train(optax.sgd(0.1), lambda o, y: ((o - y) ** 2).mean(), window=2)
    params, _, state, _ = run(learner.params, optax.sgd(0.1).init(learner.params), learner.init(), XS, YS)
    assert not np.allclose(jax.tree.leaves(params)[-1], jax.tree.leaves(learner.params)[-1])
    return params, state


class InVolts(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState({"in": jnp.ones((3, 4)) * unit.mV})
        self.v = brainstate.HiddenState(jnp.zeros((2, 4)) * unit.mV)

    def update(self, x):
        self.v.value = 0.9 * self.v.value + x @ self.w.value["in"]
        return self.v.value / unit.mV


def test_brainstate_with_units():
    module = InVolts()
    params, state = trained(learner := etrax.compile(module, "d_rtrl", XS[0]))
    assert etrax.write_back(module, params, state) is module
    np.testing.assert_array_equal(module.w.value["in"].to_decimal(unit.mV), params["w"]["in"])
    np.testing.assert_array_equal(module.v.value.to_decimal(unit.mV), state.hidden["v"])
    _, output = learner.step(params, state, XS[0])
    np.testing.assert_allclose(module(XS[0]), output, rtol=1e-6)  # the module goes on where the learner ended


class Leaky(nnx.Module):
    def __init__(self):
        self.w, self.v = nnx.Param(jnp.ones((3, 4))), nnx.Variable(jnp.zeros((2, 4)))

    def __call__(self, x):
        self.v[...] = 0.9 * self.v[...] + x @ self.w[...]
        return self.v[...]


def test_nnx():
    module = Leaky()
    params, state = trained(learner := etrax.compile(module, "d_rtrl", XS[0]))
    assert etrax.write_back(module, params, state) is module
    _, output = learner.step(params, state, XS[0])
    np.testing.assert_allclose(module(XS[0]), output, rtol=1e-6)
    np.testing.assert_array_equal(params["w"][...], module.w[...])
    module.w[...] = jnp.zeros((3, 4))
    assert float(abs(params["w"][...]).sum()) > 0  # what was written is a copy


def test_nnx_with_a_carry():
    cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    params, _ = trained(etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((2, 4))))
    etrax.write_back(cell, params)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(cell, nnx.Param), params)


def test_equinox():
    cell = eqx.nn.GRUCell(3, 4, key=jax.random.key(0))
    call = lambda cell, h, x: (jax.vmap(cell)(x, h),) * 2
    params, _ = trained(etrax.compile(cell, "d_rtrl", XS[0], hidden=jnp.zeros((2, 4)), call=call))
    new = etrax.write_back(cell, params)
    assert new.hidden_size == 4 and new.weight_hh is params.weight_hh
    assert etrax.write_back(cell) is cell


def test_what_does_not_fit():
    module = Leaky()
    learner = etrax.compile(module, "d_rtrl", XS[0])
    wrong = jax.tree.map(lambda a: jnp.zeros((2, 2)), learner.params)
    for act, message in (
        (lambda: etrax.write_back(module, wrong), r"'w' of shape \[2, 2\]"),
        (lambda: etrax.write_back(module, {"w": jnp.ones((3, 4))}), "`nnx.State` that the learner returned"),
        (lambda: etrax.write_back(module, learner.params, wrong), r"'w' of shape"),
        (lambda: etrax.write_back(lambda x: x, {}), "A plain function has no values"),
        (lambda: etrax.write_back(InVolts(), {"u": jnp.ones(3)}), "has no state there"),
        (lambda: etrax.write_back(InVolts(), {"w": {"in": jnp.ones(3)}}), "of shape"),
        (lambda: etrax.write_back(eqx.nn.Linear(2, 2, key=jax.random.key(0)), None, jnp.ones(2)), "holds none"),
    ):
        with pytest.raises(etrax.EtraxError, match=message):
            act()
    assert float(module.w[...].sum()) == 12  # nothing was half-written
