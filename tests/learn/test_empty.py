"""Arrays without elements: they have a gradient of their own shape, and change nobody else's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.table import ROWS

import etrax

RNG = np.random.default_rng(0)
W, X = jnp.asarray(RNG.standard_normal((3, 4))), jnp.asarray(RNG.standard_normal((5, 2, 3)))


def contracted(p, h, x):
    """An empty sum: zero."""
    h = 0.9 * h + x @ p["w"] + x[:, :0] @ p["z"]
    return h, jnp.tanh(h)


def sliced(p, h, x):
    """The parameter has elements, the weight that is made of it has none."""
    h = 0.9 * h + x @ p["w"] + x[:, :0] @ p["z"][:0]
    return h, jnp.tanh(h)


def elementwise(p, h, x):
    h = jnp.tanh(0.9 * h + x @ p["w"] + p["z"].sum())
    return h, h


def looked_up(p, h, x):
    h = 0.9 * h + x @ p["w"] + p["z"][jnp.zeros((2, 0), int)].sum(1)
    return h, jnp.tanh(h)


def convolved(p, h, x):
    none = jax.lax.conv(x[:, None, :], p["z"], (1,), "SAME")
    h = 0.9 * h + x @ p["w"] + none.sum()
    return h, jnp.tanh(h)


def plain(p, h, x):
    h = 0.9 * h + x @ p["w"]
    return h, jnp.tanh(h)


MODELS = {
    "contracted": (contracted, jnp.ones((0, 4)), plain),
    "sliced": (sliced, jnp.ones((2, 4)), plain),
    "elementwise": (elementwise, jnp.ones((0,)), lambda p, h, x: (jnp.tanh(0.9 * h + x @ p["w"]),) * 2),
    "looked up": (looked_up, jnp.ones((5, 4)), plain),
    "convolved": (convolved, jnp.ones((0, 1, 3)), plain),
}


def loss(output, target):
    return (output**2).sum()


@pytest.mark.parametrize("rule", [row.rule for row in ROWS.values() if row.rule.name != "partition"], ids=str)
@pytest.mark.parametrize("name", ["contracted", "sliced"])
def test_every_rule(rule, name):
    check(rule, name)


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl", "pp_prop"])
@pytest.mark.parametrize("name", ["elementwise", "looked up", "convolved"])
def test_every_op(rule, name):
    check(rule, name)


def check(rule, name):
    """As the same model without the empty weight."""
    step, z, without = MODELS[name]
    params, h = {"w": W, "z": z}, jnp.zeros((2, 4))
    learner = etrax.compile(step, rule, X[0], params=params, hidden=h)
    (value, grads), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), X)
    other = etrax.compile(without, rule, X[0], params={"w": W}, hidden=h)
    (want_value, want), _ = other.value_and_grad(loss, window=2)({"w": W}, other.init(), X)
    np.testing.assert_allclose(value, want_value, rtol=1e-12)
    np.testing.assert_allclose(grads["w"], want["w"], rtol=1e-12)
    assert grads["z"].shape == z.shape and not np.any(grads["z"])
    assert str(learner.report.verdicts["z",].kind) == "unused"


def test_no_samples_and_no_neurons():
    """A batch of none, a layer of none: all gradients are zero."""
    for batch, units in ((0, 4), (2, 0)):
        params, h = {"w": jnp.ones((3, units))}, jnp.zeros((batch, units))
        for rule in ("tbptt", "d_rtrl", "pp_prop", "rtrl", etrax.snap(2), etrax.uoro(0)):
            learner = etrax.compile(plain, rule, jnp.ones((batch, 3)), params=params, hidden=h)
            (value, grads), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), jnp.ones((5, batch, 3)))
            assert value == 0 and grads["w"].shape == (3, units) and not np.any(grads["w"])
