"""Steps and samples that do not count: their data may be NaN, and neither loss nor gradient sees it.

A factor of zero is not enough, since 0 · NaN is NaN. The loss is therefore chosen after it was computed, and what it is
computed from is chosen before, so that its derivative is zero there whatever the loss makes of the data.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..compiler.ir import PyTree


def without_masked_nans(tree: PyTree, weight: Array | None) -> PyTree:
    """Arrays of a sequence in which NaN is zero wherever the weight is: states evolve there too, and stay finite.

    With weights (T, B), an array whose second axis is as long as the batch has its own weight for each sample; one that
    all samples share is masked at a step where all of them are.
    """
    if weight is None:
        return tree
    masked = weight == 0

    def one(a: Array) -> Array:
        a = jnp.asarray(a)
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return a
        by_sample = masked.ndim == 1 or a.shape[1:2] == masked.shape[1:]
        here = masked if by_sample else masked.all(1)
        here = lax.broadcast_in_dim(here, a.shape, tuple(range(here.ndim)))
        return jnp.where(here & jnp.isnan(a), jnp.zeros((), a.dtype), a)

    return jax.tree.map(one, tree)


def differentiated_where(counts: Array, tree: PyTree) -> PyTree:
    """Values as they are, which a derivative reaches only where they count. `counts` lies along their first axes."""

    def one(a: Array) -> Array:
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return a
        here = lax.broadcast_in_dim(counts, a.shape, tuple(range(counts.ndim)))
        return jnp.where(here, a, lax.stop_gradient(a))

    return jax.tree.map(one, tree)


def weighed(loss: Array, weight: Array) -> Array:
    """Loss times weight, and zero where the weight is, whatever the loss."""
    product = loss * weight
    return jnp.where(weight == 0, jnp.zeros((), product.dtype), product)
