"""W @ x of mapped samples runs with the samples first, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.learn.oracle import relative_error

import etrax
from etrax.compiler.ir import equations, trace_step
from etrax.compiler.opened import with_data_first

DRAW = np.random.RandomState(0)


def normal(*shape):
    return jnp.asarray(DRAW.standard_normal(shape))


def step_of(op, w, x):
    """A step whose output is an op's result, and what follows from its slices."""

    def fn(params, hidden, other, x):
        y = op(x, params)
        return 0.5 * hidden + y.sum(), None, y

    return trace_step(fn, w, jnp.zeros(()), (x,))


def mapped(f):
    return lambda x, w: jax.vmap(lambda one: f(one, w))(x)


def right(w, x):
    return lax.dot_general(w, x, (((1,), (1,)), ((), ())))


def gates(x, w):
    a, b = jnp.split(w @ x, 2)
    return jax.nn.sigmoid(a) * jnp.tanh(2 * b)


X, W = normal(4, 3), normal(6, 3)
# What a user writes, its data and weight, and how many transposes are left of data.
TURNED = {
    "a product": (mapped(lambda x, w: w @ x), X, W, 0),
    "gates": (mapped(gates), X, W, 0),
    "slices": (mapped(lambda x, w: (w @ x)[1:4] - (w @ x)[::2]), X, W, 0),
    "two axes of samples": (jax.vmap(mapped(lambda x, w: w @ x), (0, None)), normal(2, 4, 3), W, 0),
    "two axes of outputs": (mapped(lambda x, w: jnp.einsum("abi,i->ab", w, x)), X, normal(2, 5, 3), 0),
    "two axes contracted": (mapped(lambda x, w: jnp.einsum("oij,ij->o", w, x)), normal(4, 2, 3), normal(5, 2, 3), 0),
    "heads": (
        mapped(lambda x, w: lax.dot_general(w, x, (((2,), (1,)), ((0,), (0,))))),
        normal(4, 2, 3),
        normal(2, 5, 3),
        1,
    ),
    "a bias": (mapped(lambda x, w: w @ x + w[:, 0]), X, W, 0),
    "a sum over outputs": (mapped(lambda x, w: jnp.cumsum(w @ x)), X, W, None),
    "read as it is, and turned": (lambda x, w: (lambda y: y[:4] @ y.T)(right(w, x)), X, W, None),
}
LEFT = {
    "samples last": (lambda x, w: w @ x, X.T, W),
    "samples first already": (lambda x, w: x @ w.T, X, W),
    "one sample": (lambda x, w: w @ x, X[0], W),
    "one output": (mapped(lambda x, w: w @ x), X, W[0]),
    "no weight": (lambda x, w: (x @ x.T) * w[0, 0], X, W),
}


def transposes_of_data(step):
    """How many transposes there are beside that of the weight."""
    w = step.jaxpr.invars[len(step.consts)]
    return sum(eqn.primitive.name == "transpose" and eqn.invars[0] is not w for eqn in equations(step.jaxpr))


@pytest.mark.parametrize("name", TURNED)
def test_data_are_the_left_operand(name):
    op, x, w, left = TURNED[name]
    step = step_of(op, w, x)
    first = with_data_first(step)
    products = [e for e in equations(first.jaxpr) if e.primitive.name == "dot_general"]
    assert first is not step
    assert all(e.outvars[0].aval.shape[0] in x.shape[:2] for e in products)
    assert left is None or transposes_of_data(first) == left
    leaves = [normal(*leaf.aval.shape) for leaf in step.ins]
    both = (jax.core.eval_jaxpr(s.jaxpr, s.consts, *leaves) for s in (step, first))
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    assert with_data_first(first) is first


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_as_they_are(name):
    op, x, w = LEFT[name]
    step = step_of(op, w, x)
    assert with_data_first(step) is step


def cell(weight_first):
    """A GRU that resets after its product, in either spelling."""

    def one(p, h, x):
        a, b = (p["w"] @ x + p["b"], p["u"] @ h) if weight_first else (x @ p["w"].T + p["b"], h @ p["u"].T)
        (ar, az, an), (br, bz, bn) = jnp.split(a, 3), jnp.split(b, 3)
        r, z = jax.nn.sigmoid(ar + br), jax.nn.sigmoid(az + bz)
        h = (1 - z) * jnp.tanh(an + r * bn) + z * h
        return h, p["out"] @ h if weight_first else h @ p["out"].T

    return lambda p, h, x: jax.vmap(one, (None, 0, 0))(p, h, x)


@pytest.mark.parametrize("window", [1, 3, 8])
def test_gradients_are_those_of_the_other_spelling(window):
    params = {"w": normal(12, 3), "u": 0.4 * normal(12, 4), "b": normal(12), "out": normal(2, 4)}
    xs, targets, h = normal(8, 5, 3), normal(8, 5, 2), normal(5, 4)

    def loss(y, target):
        return jnp.mean((y - target) ** 2)

    found = []
    for weight_first in (True, False):
        step = cell(weight_first)
        learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=h)
        assert learner.report.verdicts["w",].kind == "approximate"
        state = learner.init()
        (_, grads), _ = learner.value_and_grad(loss, window=window)(params, state, xs, targets)
        found.append(grads)
    for k in params:
        assert relative_error(found[0][k], found[1][k]) < 1e-12, k

    def total(params):
        def body(h, xy):
            h, y = cell(True)(params, h, xy[0])
            return h, loss(y, xy[1])

        return lax.scan(body, h, (xs, targets))[1].mean()

    true = jax.grad(total)(params)
    errors = [relative_error(found[0][k], true[k]) for k in params]
    assert max(errors) < 1e-12 if window == 8 else max(errors) > 1e-6
