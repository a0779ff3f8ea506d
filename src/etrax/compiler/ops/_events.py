"""Events times a dense matrix: a matmul of what the events count for.

y[o, f] = Σ_c w[c, o] φ(u[c, f])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from ..primitives import PRODUCTS, Stored
from ._base import OpCall, OpRule, register_weight_op
from ._matmul import MATMUL
from ._synapses import counts_of


def _accepts(call: OpCall) -> bool:
    return call.weight == 0 and counts_of(call) is not None


def _matmul(call: OpCall) -> OpCall:
    """The `dot_general` of the same operands: the weight is on the left, the last axis of y is that of samples."""
    contracted = 0 if call.params["transpose"] else 1
    return replace(call, params={"dimension_numbers": (((contracted,), (0,)), ((), ()))})


def _data(call: OpCall, u: Sequence[Array]) -> tuple[Array]:
    """The factor with which each event (k, c, f) enters the derivative."""
    counts = counts_of(call)
    assert counts is not None
    return (jnp.asarray(counts.backward(u[0]), call.w.dtype),)


EVENTS = OpRule(
    name="matmul of events",
    mixes=True,
    accepts=_accepts,
    trace_shape=lambda call: MATMUL.trace_shape(_matmul(call)),
    outer=lambda call, fixed, u, c: MATMUL.outer(_matmul(call), fixed, _data(call, u), c),
    spread=lambda call, fixed, p: MATMUL.spread(_matmul(call), fixed, p),
    apply=lambda call, fixed, trace, g: MATMUL.apply(_matmul(call), fixed, trace, g),
    grad=lambda call, fixed, u, g: MATMUL.grad(_matmul(call), fixed, _data(call, u), g),
    features=lambda call, fixed, u: _data(call, u)[0],
    own_feature_grad=lambda call, fixed, x, g: MATMUL.grad(_matmul(call), fixed, (x,), g),
    narrow=True,
)
for _name, _product in PRODUCTS.items():
    if _product.stored is Stored.DENSE:
        register_weight_op(_name, EVENTS)
