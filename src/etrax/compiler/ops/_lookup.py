"""Rows of a table chosen by data: `w[token]`, `jnp.take(w, token, axis=0)`, `lax.dynamic_index_in_dim(w, i)`.

y[f, o] = w[token[f], o]        trace[f, v, o]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from ._base import Columns, OpCall, Operands, OpRule, register_weight_op, size


def _accepts_gather(call: OpCall) -> bool:
    """Whole rows, chosen by one number each, stand behind the axes of the numbers.

    A slice that `vmap` has made a gather has an axis of length one for the row, and coordinates for the other axes,
    which are clipped to zero: slices are as long as these axes.
    """
    d, rank = call.params["dimension_numbers"], len(call.w.shape)
    batch_rank, collapsed = len(call.operands[1].shape) - 1, len(d.collapsed_slice_dims)
    by_row_alone = tuple(d.start_index_map) == (0,)
    return (
        call.weight == 0
        and tuple(d.collapsed_slice_dims) in ((0,), ())
        and (by_row_alone or ("CLIP" in str(call.params["mode"]) and tuple(d.start_index_map)[:1] == (0,)))
        and not d.operand_batching_dims
        and tuple(call.params["slice_sizes"]) == (1, *call.w.shape[1:])
        and tuple(d.offset_dims) == tuple(range(batch_rank, batch_rank + rank - collapsed))
    )


def _accepts_slice(call: OpCall) -> bool:
    return call.weight == 0 and len(call.w.shape) > 0 and tuple(call.params["slice_sizes"]) == (1, *call.w.shape[1:])


def _tokens(call: OpCall, u: Sequence[Array]) -> Array:
    """Row numbers, (k, f); the number of rows where no row is read."""
    # A gather has an axis for the coordinates of a row, that of the row first; a slice has coordinates for the other
    # axes in operands of their own. These are zero: slices are as long as these axes.
    rows, n = (u[0][..., 0] if call.primitive == "gather" else u[0]), call.w.shape[0]
    if call.primitive == "dynamic_slice" or "CLIP" in str(call.params["mode"]):
        rows = jnp.clip(rows, 0, n - 1)
    return jnp.where((rows < 0) | (rows >= n), n, rows).reshape(rows.shape[0], -1)


def _flat(call: OpCall, y: Array, lead: int) -> Array:
    """An array like y behind `lead` axes, as (…, f, o)."""
    o = size(call.w.shape[1:])
    return y.reshape(*y.shape[:lead], size(call.out.shape) // max(o, 1), o)


def _trace_shape(call: OpCall) -> tuple[int, ...]:
    o = size(call.w.shape[1:])
    return size(call.out.shape) // max(o, 1), call.w.shape[0], o


def _one_hot(call: OpCall, u: Sequence[Array], dtype: DTypeLike) -> Array:
    """(k, f, v); all zeros where no row is read."""
    return (_tokens(call, u)[..., None] == jnp.arange(call.w.shape[0])).astype(dtype)


def _grad(call: OpCall, fixed: Operands, u: Sequence[Array], g: Array) -> Array:
    """By adding rows of g to those that were read; a row number that is out of bounds is dropped."""
    g, rows = _flat(call, g, 1), _tokens(call, u)
    table = jnp.zeros((call.w.shape[0], g.shape[-1]), g.dtype)
    return table.at[rows.reshape(-1)].add(g.reshape(-1, g.shape[-1]), mode="drop").reshape(call.w.shape)


def _rule(accepts: Callable[[OpCall], bool]) -> OpRule:
    return OpRule(
        name="lookup",
        mixes=True,
        accepts=accepts,
        trace_shape=_trace_shape,
        outer=lambda call, fixed, u, c: jnp.einsum("kfv,kfo->fvo", _one_hot(call, u, c.dtype), _flat(call, c, 1)),
        spread=lambda call, fixed, p: _flat(call, p, 0)[:, None, :],
        apply=lambda call, fixed, trace, g: jnp.einsum("fvo,fo->vo", trace, _flat(call, g, 0)).reshape(call.w.shape),
        grad=_grad,
        features=lambda call, fixed, u: _one_hot(call, u, call.w.dtype),
        own_feature_grad=lambda call, fixed, x, g: jnp.einsum("kfv,kfo->vo", x, _flat(call, g, 1)).reshape(
            call.w.shape
        ),
        columns=lambda call: Columns(-1, -1, new=len(call.w.shape) == 1),
    )


register_weight_op("gather", _rule(_accepts_gather))
register_weight_op("dynamic_slice", _rule(_accepts_slice))
