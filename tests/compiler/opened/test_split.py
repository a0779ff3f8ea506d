"""Products that are cut into heads have the axis of heads in their weight, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etrax.compiler.ir import equations, trace_step
from etrax.compiler.opened import find_sites, with_heads_apart

DRAW = np.random.RandomState(0)


def normal(*shape):
    return jnp.asarray(DRAW.standard_normal(shape))


def step_of(op, w, shape):
    def fn(params, hidden, other, x):
        y = op(x, params)
        return 0.5 * hidden + y, None, hidden.sum()

    return trace_step(fn, w, jnp.zeros(shape), (normal(2, 3),))


CUT = {
    "heads": (lambda x, w: (x @ w).reshape(2, 2, 4), (3, 8), (2, 2, 4)),
    "heads within heads": (lambda x, w: (x @ w).reshape(2, 2, 2, 2), (3, 8), (2, 2, 2, 2)),
    "outputs first": (lambda x, w: jnp.einsum("bi,oi->bo", x, w).reshape(2, 2, 4), (8, 3), (2, 2, 4)),
    "transposed": (lambda x, w: (x @ w.T).reshape(2, 2, 4), (8, 3), (2, 2, 4)),
}
LEFT = {
    "read twice": (lambda x, w: (lambda y: y.reshape(2, 2, 4) + y.sum())(x @ w), (3, 8), (2, 2, 4)),
    "samples are cut as well": (lambda x, w: (x @ w).reshape(4, 4), (3, 8), (4, 4)),
    "between them a function": (lambda x, w: jnp.tanh(x @ w).reshape(2, 2, 4), (3, 8), (2, 2, 4)),
    "joined": (lambda x, w: (x @ w).reshape(16), (3, 8), (16,)),
}


def shapes_of(step):
    return [eqn.outvars[0].aval.shape for eqn in equations(step.jaxpr) if eqn.primitive.name == "dot_general"]


def values(step, leaves):
    return jax.core.eval_jaxpr(step.jaxpr, step.consts, *leaves)


@pytest.mark.parametrize("name", CUT)
def test_the_weight_has_the_axes_of_the_cut(name):
    op, weight, shape = CUT[name]
    step = step_of(op, normal(*weight), shape)
    apart = with_heads_apart(step, find_sites(step), [0])
    assert shapes_of(apart) == [shape] != shapes_of(step)
    leaves = [normal(*leaf.aval.shape) for leaf in step.ins]
    for a, b in zip(values(step, leaves), values(apart, leaves), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert with_heads_apart(apart, find_sites(apart), [0]) is apart


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_as_they_are(name):
    op, weight, shape = LEFT[name]
    step = step_of(op, normal(*weight), shape)
    assert with_heads_apart(step, find_sites(step), range(len(find_sites(step)))) is step
