"""Ops that mix nothing are rewritten, and nothing else: outputs and dense Jacobians stay as they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax.compiler.ir import equations, trace_step
from etrax.compiler.opened import with_elementwise_ops

DRAW = np.random.RandomState(0)


def normal(*shape):
    return jnp.asarray(DRAW.standard_normal(shape))


def step_of(op, w, h):
    """A step whose state is what the op reads."""

    def fn(params, hidden, other, x):
        y = op(hidden, params)
        return 0.5 * hidden + x, None, y

    return trace_step(fn, w, h, (h,))


def conv(layout, groups, strides=(1,), padding="VALID", **more):
    return lambda u, w: lax.conv_general_dilated(
        u, w, strides, padding, dimension_numbers=layout, feature_group_count=groups, **more
    )


LAST, FIRST = ("NWC", "WIO", "NWC"), ("NCHW", "OIHW", "NCHW")
# Of each op: a function of data and weight, and the two.
BY_ELEMENT = {
    "no contraction": (lambda u, w: jnp.einsum("bd,dn->bdn", u, w), (2, 3), (3, 4)),
    "no contraction, the weight first": (lambda u, w: jnp.einsum("dn,bd->nbd", w, u), (2, 3), (3, 4)),
    "outer product": (lambda u, w: jnp.einsum("b,n->bn", u, w), (2,), (4,)),
    "channels": (lambda u, w: jnp.einsum("btc,tc->bc", u, w), (2, 3, 4), (3, 4)),
    "two axes of channels": (lambda u, w: jnp.einsum("htc,bhtc->bch", w, u), (2, 3, 4, 5), (3, 4, 5)),
    "a column for each channel": (lambda u, w: u[..., None, None] @ w, (2, 3), (3, 1, 4)),
    "one unit": (lambda u, w: u @ w, (2, 1), (1, 1)),
    "accumulated in double": (
        lambda u, w: jnp.einsum("bd,dn->bdn", u.astype(jnp.float32), w, preferred_element_type=float), (2, 3), (3, 4),
    ),
    "depthwise": (conv(LAST, 4), (2, 3, 4), (3, 1, 4)),
    "depthwise, two filters a channel": (conv(LAST, 4), (2, 3, 4), (3, 1, 8)),
    "depthwise, padded at both sides": (conv(LAST, 4, padding=[(2, 0)], rhs_dilation=(2,)), (2, 3, 4), (3, 1, 4)),
    "depthwise, in two dimensions": (conv(FIRST, 3, (1, 1)), (2, 3, 2, 4), (3, 1, 2, 4)),
    "depthwise, strides": (conv(LAST, 4, (5,)), (2, 6, 4), (3, 1, 4)),
    "depthwise, gaps in the data": (conv(LAST, 4, padding=[(0, 0)], lhs_dilation=(2,)), (2, 3, 4), (5, 1, 4)),
    "depthwise, the last place": (lambda u, w: conv(LAST, 4, padding=[(2, 0)])(u, w)[:, -1], (2, 3, 4), (3, 1, 4)),
    "depthwise, a place in the middle": (
        lambda u, w: conv(FIRST, 3, (2, 1), "SAME")(u, w)[:, :, 1, 2] * 2, (2, 3, 5, 4), (3, 1, 2, 3),
    ),
    "diagonal": (lambda u, w: u @ jnp.diag(w), (2, 3), (3,)),
    "diagonal, from the left": (lambda u, w: jnp.diag(jnp.exp(w)) @ u, (3, 2), (3,)),
    "diagonal for each head": (lambda u, w: jax.vmap(lambda u, w: u @ jnp.diag(w), (1, 0), 1)(u, w), (2, 3, 4), (3, 4)),
    "diagonal of a full matrix": (lambda u, w: u @ (w * jnp.eye(3)), (2, 3), (3, 3)),
    "inside a loop": (
        lambda u, w: lax.fori_loop(0, 2, lambda _, c: c + jnp.einsum("bd,dn->bdn", u, w), jnp.zeros((2, 3, 4))),
        (2, 3), (3, 4),
    ),
    "inside a branch": (
        lambda u, w: lax.cond(u.sum() > 0, lambda: jnp.einsum("bd,dn->bdn", u, w), lambda: jnp.zeros((2, 3, 4))),
        (2, 3), (3, 4),
    ),
}  # fmt: skip
MIXING = {
    "a product": (lambda u, w: u @ w, (2, 3), (3, 4)),
    "a readout": (lambda u, w: u @ w, (2, 3), (3,)),
    "one unit under a layer": (lambda u, w: u @ w, (2, 1), (1, 4)),
    "heads": (lambda u, w: jnp.einsum("bhi,hij->bhj", u, w), (2, 3, 4), (3, 4, 5)),
    "convolution over channels": (conv(LAST, 1), (2, 3, 4), (3, 4, 5)),
    "convolution of groups": (conv(LAST, 2), (2, 3, 4), (3, 2, 4)),
    "depthwise, two places": (lambda u, w: conv(LAST, 4, padding=[(2, 0)])(u, w)[:, 1:].sum(1), (2, 3, 4), (3, 1, 4)),
    "depthwise, all places": (conv(LAST, 4, padding="SAME"), (2, 3, 4), (3, 1, 4)),
    "two diagonals": (lambda u, w: u @ (jnp.diag(w) + jnp.diag(w[1:], 1)), (2, 3), (3,)),
    "a diagonal beside the middle": (lambda u, w: u @ jnp.diag(w[1:], 1), (2, 3), (3,)),
    "a triangle": (lambda u, w: u @ jnp.tril(w), (2, 3), (3, 3)),
}


def products(step):
    return [eqn for eqn in equations(step.jaxpr) if eqn.primitive.name in ("dot_general", "conv_general_dilated")]


def jacobians(step, leaves):
    """Outputs of a step, and their dense derivatives by all leaves."""
    return step.run(leaves), jax.jacrev(step.run)(leaves)


@pytest.mark.parametrize("name", BY_ELEMENT)
def test_rewritten(name):
    op, h, w = BY_ELEMENT[name]
    w, h = normal(*w), normal(*h)
    step = step_of(op, w, h)
    new, sites = with_elementwise_ops(step)
    assert products(step) and not products(new)
    assert sites and all(site.rule.name == "elementwise" for site in sites)
    assert all(site.source is not None and "test_by_element" in site.source.file for site in sites)
    leaves = [w, h, normal(*h.shape)]
    near = 1e-6 if "double" in name else 1e-13
    results = jacobians(new, leaves), jacobians(step, leaves)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, near, near), *results)
    again, _ = with_elementwise_ops(new)
    assert again is new


@pytest.mark.parametrize("name", MIXING)
def test_left_alone(name):
    op, h, w = MIXING[name]
    step = step_of(op, normal(*w), normal(*h))
    assert with_elementwise_ops(step)[0] is step


def test_left_alone_where_no_gradient_passes():
    """Data that are an input: nothing is lost by a cut."""
    step = trace_step(
        lambda w, h, other, x: (h + jnp.einsum("bd,dn->bdn", x, w).sum(-1), None, h),
        normal(3, 4), normal(2, 3), (normal(2, 3),),
    )  # fmt: skip
    assert with_elementwise_ops(step)[0] is step
