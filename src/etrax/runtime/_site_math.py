"""The functions of an op family (`OpRule`) at a site, which may stand inside loops of the step.

Arrays per step have axes (k, loops…, *y): k steps, then the iterations of inner loops. Iterations that share a weight
count as steps; a loop that reads a slice of the weight at each iteration ("sliced") has a trace for each slice, so that
traces, weights and sums over steps begin with axes (slices…).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from .._compat import common_dtype
from ..compiler.analysis import Copies, Facts, Relation
from ..compiler.opened import WeightSite
from ..compiler.ops import Kernels
from ._zeros import finite_unless
from .blocks import Entry, row_times

# Operands of an op that do not change from step to step; constants may be numpy's.
Operands: TypeAlias = Sequence[Array | np.ndarray]


def _arranged(site: WeightSite, a: Array) -> Array:
    """(k, loops…, …) → (slices, k·other loops, …): steps and loops that share a weight are one axis."""
    lead = 1 + len(site.loops)  # the axis of steps stands before those of the loops
    sliced = [1 + i for i, is_sliced in enumerate(site.sliced) if is_sliced]
    slices, rest = math.prod(site.slices), a.shape[lead:]
    # No loop may run at all: then there are no slices, and no steps are divided among them.
    steps = math.prod(a.shape[:lead]) // max(slices, 1)
    a = a.transpose(*sliced, 0, *_shared_loops(site), *range(lead, a.ndim))
    return a.reshape(slices, steps, *rest)


def _per_slice(site: WeightSite, f: Callable[..., Array], *args: Array | Sequence[Array]) -> Array:
    """`f` of arguments with a leading axis of slices; for a weight that is not sliced, of what they hold."""
    if not site.slices:
        return f(*jax.tree.map(lambda a: a[0], args))
    return _apart(site, jax.vmap(f)(*args))


def _together(site: WeightSite, a: Array) -> Array:
    """(slices…, …) → (slices, …)."""
    return a.reshape(math.prod(site.slices), *a.shape[len(site.slices) :])


def _apart(site: WeightSite, a: Array) -> Array:
    """(slices, …) → (slices…, …)."""
    return a.reshape(*site.slices, *a.shape[1:])


def kernels(site: WeightSite) -> Kernels:
    """What the family of a site's op can do faster: nothing inside a loop, where traces have axes of slices."""
    return Kernels() if site.loops else site.rule.kernels


def trace_shape(site: WeightSite) -> tuple[int, ...]:
    """(slices…, *trace), per state scalar."""
    return (*site.slices, *site.rule.trace_shape(site.call))


def outer(site: WeightSite, fixed: Operands, u: Sequence[Array], c: Array) -> Array:
    """Σ_k ∂y_k/∂w · c_k, of trace shape."""
    data = [_arranged(site, a) for a in u]
    return _per_slice(site, lambda u, c: site.rule.outer(site.call, fixed, u, c), data, _arranged(site, c))


def moved(
    site: WeightSite, fixed: Operands, row: Sequence[Entry], entries: Sequence[Array], number: int, u: Sequence[Array],
    c: Array, steep: bool = False,
) -> Array:  # fmt: skip
    """Σ_t row_t · entry_t + Σ_k ∂y_k/∂w · c_k, in place of entry `number`; `row` is spread over the trace."""
    # A steep model has infinite factors that meet zeros of the trace, which a plain product would make NaN.
    by_sample = None if steep else kernels(site).move_by_sample
    entry = None if by_sample is None else by_sample(site.call, row, entries, number, u, c)
    if entry is not None:
        return entry
    carried, new = row_times(row, entries, steep), outer(site, fixed, u, c)
    return new if carried is None else carried + new


def grad(site: WeightSite, fixed: Operands, u: Sequence[Array], g: Array) -> Array:
    """Σ_k (∂y_k/∂w)ᵀ g_k, of w's shape."""
    data = [_arranged(site, a) for a in u]
    return _as_weight(
        site, _per_slice(site, lambda u, g: site.rule.grad(site.call, fixed, u, g), data, _arranged(site, g))
    )


def spread(site: WeightSite, fixed: Operands, p: Array) -> Array:
    """Values per element of y, broadcastable to trace shape."""
    return _per_slice(site, lambda p: site.rule.spread(site.call, fixed, p), _together(site, p))


def apply(site: WeightSite, fixed: Operands, trace: Array, g: Array) -> Array:
    """Σ over elements of y of trace · g, of w's shape."""
    both = _together(site, trace), _together(site, g)
    return _as_weight(site, _per_slice(site, lambda t, g: site.rule.apply(site.call, fixed, t, g), *both))


def _as_weight(site: WeightSite, g: Array) -> Array:
    """A gradient of a weight; that of a real weight that meets complex data is the real part."""
    is_real = not jnp.issubdtype(site.call.w.dtype, jnp.complexfloating)
    return jnp.real(g) if is_real and jnp.iscomplexobj(g) else g


def met(site: WeightSite, fixed: Operands, trace: Array, g: Array) -> Array:
    """g at the elements of y, with 0 for what is not finite where all of an element's trace is zero.

    An axis of one in the trace stands for all along it.
    """
    shape = trace_shape(site)

    def spread_out(p: Array) -> Array:
        return jnp.broadcast_to(spread(site, fixed, p), shape)

    # The transpose of `spread` counts, for each element of y, the entries of its trace that are not zero.
    _, pull = jax.vjp(spread_out, jnp.zeros(output_shape(site), jnp.float32))
    counts = pull(jnp.broadcast_to(trace != 0, shape).astype(jnp.float32))[0]
    return finite_unless(g, counts != 0)


def copies_added(copies: Copies, g: Array, column_axis: int) -> Array:
    """Values at an op's repeated columns, summed at the columns; `column_axis` is counted from the end."""
    axis = g.ndim + column_axis
    if copies.source is not None:
        return _all_columns(copies.of, copies.count, g, axis)
    # Columns that reach nothing have no copy: they are zero.
    present, of = np.unique(copies.of, return_inverse=True)
    regular = _repeated(of.reshape(-1), present.size)
    if regular is not None:
        # A sum over an axis, which runs much faster than a scatter.
        lead, times, trail = regular
        columns = g.reshape(*g.shape[:axis], lead, times, trail, *g.shape[axis + 1 :]).sum(axis + 1)
        columns = columns.reshape(*g.shape[:axis], present.size, *g.shape[axis + 1 :])
        columns = _all_columns(present, copies.count, columns, axis)
    else:
        # Copies in no regular order are added by number, which is a scatter.
        columns = jax.ops.segment_sum(jnp.moveaxis(g, axis, 0), copies.of, copies.count)
        columns = jnp.moveaxis(columns, 0, axis)
    return columns.squeeze(axis) if copies.columns.new else columns


def at_columns(copies: Copies, a: Array, axis: int) -> Array:
    """An array of all columns along an axis, at those that are copied."""
    runs = [lax.slice_in_dim(a, run[0], run[-1] + 1, axis=axis) for run in _runs(copies.of)]
    return jnp.concatenate(runs, axis) if len(runs) > 1 else runs[0]


def _all_columns(of: np.ndarray, count: int, a: Array, axis: int) -> Array:
    """An array of some columns along an axis, among all `count` of them, with zeros in the others."""
    if of.size == count:
        return a
    parts, done = [], 0  # columns of `a` that were put in their places

    def padded(part: Array, before: int, behind: int) -> Array:
        return jnp.pad(part, [(before, behind) if i == axis else (0, 0) for i in range(a.ndim)])

    for run in _runs(of):
        part = lax.slice_in_dim(a, done, done + run.size, axis=axis)
        # Zeros from the column where the parts so far end to the first one of this run.
        parts.append(padded(part, run[0] - sum(p.shape[axis] for p in parts), 0))
        done += run.size
    parts[-1] = padded(parts[-1], 0, count - 1 - of[-1])
    return jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]


def _runs(of: np.ndarray) -> list[np.ndarray]:
    """Ascending numbers, split where one is left out."""
    return np.split(of, np.flatnonzero(np.diff(of) > 1) + 1)


def _repeated(of: np.ndarray, count: int) -> tuple[int, int, int] | None:
    """(lead, times, trail) if `of` numbers the columns (lead, trail) with each repeated along an axis in between."""
    times = of.size // max(count, 1)
    if count * times != of.size:
        return None
    # The first jump ends the numbers that stand side by side.
    trail = int(np.argmax(np.append(np.diff(of) != 1, True))) + 1
    if count % trail:
        return None
    # Columns stand as (lead, trail) and are repeated in between; whether that is so is checked against all numbers.
    lead = count // trail
    tiled = np.broadcast_to(np.arange(count).reshape(lead, 1, trail), (lead, times, trail))
    return (lead, times, trail) if np.array_equal(tiled.reshape(-1), of) else None


def output_shape(site: WeightSite) -> tuple[int, ...]:
    """(slices…, *y): iterations of an inner loop count as one, unless each reads a slice of the weight."""
    return (*site.slices, *site.call.out.shape)


def _shared_loops(site: WeightSite) -> tuple[int, ...]:
    """Axes of (k, loops…, …) along which one weight serves all iterations."""
    return tuple(1 + i for i, sliced in enumerate(site.sliced) if not sliced)


def sum_loops(site: WeightSite, c: Array) -> Array:
    """(k, loops…, …) → (k, slices…, …): iterations that share a weight are summed."""
    return c.sum(_shared_loops(site))


def features(site: WeightSite, fixed: Operands, u: Sequence[Array]) -> Array:
    """The op's data as numbers that can be averaged over time, (k, slices…, …); the mean over other inner loops."""
    lead = u[0].shape[: 1 + len(site.loops)]
    flat = site.rule.features(site.call, fixed, tuple(a.reshape(-1, *a.shape[len(lead) :]) for a in u))
    return flat.reshape(*lead, *flat.shape[1:]).mean(_shared_loops(site))


def data_structs(site: WeightSite) -> list[jax.ShapeDtypeStruct]:
    """The op's data over one step, with an axis of one for the step."""
    loops = tuple(n for _, n in site.loops)
    varying = [site.call.operands[i] for i in site.rule.varying(site.call)]
    return [jax.ShapeDtypeStruct((1, *loops, *a.shape), a.dtype) for a in varying]


def feature_zeros(site: WeightSite, dtype: DTypeLike) -> Array:
    """The trace of features before the first step."""
    data = data_structs(site)
    fixed = [site.call.operands[i] for i in site.rule.fixed_operands]
    shape = jax.eval_shape(lambda f, u: features(site, f, u), fixed, data).shape
    return jnp.zeros(shape[1:], dtype)


def features_are_data(site: WeightSite, dtype: DTypeLike) -> bool:
    """Whether a trace of the op's data could be its data, in form and type."""
    if site.rule.own_feature_grad is not None or site.loops:
        return False
    data = [site.call.operands[i].dtype for i in site.rule.varying(site.call)]
    return len(data) == 1 and data[0] == site.call.out.dtype == dtype


def feature_grad(site: WeightSite, fixed: Operands, x: Array, g: Array) -> Array:
    """∂y/∂wᵀ g for data given as features, of w's shape."""
    both = _together(site, x), _together(site, g)
    return _as_weight(
        site, _per_slice(site, lambda x, g: site.rule.feature_grad(site.call, fixed, x[None], g[None]), *both)
    )


def beside_loops(site: WeightSite, q: Array, lead: int = 0) -> Array:
    """(lead…, slices…, out…) → beside (lead…, loops…, out…), by axes of one."""
    return q.reshape((*q.shape[:lead], *site.beside_loops(q.shape[lead:])))


def trace_dtype_of(facts: Facts, relation: Relation, asked: DTypeLike | None) -> np.dtype:
    """The type of a relation's trace."""
    return wide_dtype(facts.sites[relation.site].call.out.dtype, asked)


def wide_dtype(dtype: np.dtype, asked: DTypeLike | None = None) -> np.dtype:
    """Traces accumulate in at least float32 unless asked otherwise; complex where the op is complex."""
    if asked is not None:
        complex_op = np.issubdtype(dtype, np.complexfloating)
        return common_dtype(asked, jnp.complex64) if complex_op else jnp.dtype(asked)
    return common_dtype(dtype, jnp.float32)


def widened(u: Array, dtype: DTypeLike) -> Array:
    """Data in at least the trace's precision; indices as they are."""
    return u.astype(common_dtype(u.dtype, dtype)) if jnp.issubdtype(u.dtype, jnp.inexact) else u
