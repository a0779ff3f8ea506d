"""One weight for a whole connectivity: all synapses alike, or drawn from a distribution of which it is a parameter.

With s = A(1) φ(u), the product for a weight of one and for zeros in place of other weights (the mean where this one
is the spread):

    y = w s + (what other weights bring)        trace of the shape of y
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..primitives import PRODUCTS
from ._base import OpCall, Operands, OpRule, register_weight_op, size, sum_unrolled
from ._synapses import is_linear, with_weight


def _accepts(call: OpCall) -> bool:
    return call.weight in PRODUCTS[call.primitive].weights and size(call.w.shape) == 1 and is_linear(call)


def _units(call: OpCall, fixed: Operands, u: Sequence[Array]) -> Array:
    """s of each step, (k, *y)."""
    product = PRODUCTS[call.primitive]
    values: list[Array | np.ndarray] = [jnp.zeros(a.shape, a.dtype) for a in call.operands]
    w = jnp.ones(call.w.shape, call.w.dtype)
    for i, value in zip(product.fixed, fixed, strict=True):
        values[i] = value

    def one(x: Array) -> Array:
        return with_weight(call, [x if i == product.data else v for i, v in enumerate(values)], w)

    # The data stand behind the other weights. One step is not looped over, so that it can fuse with what reads it.
    return one(u[-1][0])[None] if u[-1].shape[0] == 1 else lax.map(one, u[-1])


def _grad(call: OpCall, fixed: Operands, u: Sequence[Array], g: Array) -> Array:
    return jnp.sum(_units(call, fixed, u) * g).reshape(call.w.shape)


for _name, _product in PRODUCTS.items():
    _rule = OpRule(
        name="product with one weight",
        mixes=True,
        accepts=_accepts,
        trace_shape=lambda call: call.out.shape,
        outer=lambda call, fixed, u, c: sum_unrolled(_units(call, fixed, u) * c),
        spread=lambda call, fixed, p: p,
        apply=lambda call, fixed, trace, g: jnp.sum(trace * g).reshape(call.w.shape),
        grad=_grad,
        features=_units,
        own_feature_grad=lambda call, fixed, x, g: jnp.sum(x * g).reshape(call.w.shape),
        fixed_operands=_product.fixed,
    )
    register_weight_op(_name, _rule)
