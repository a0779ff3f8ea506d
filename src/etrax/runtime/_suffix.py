"""A window's products of blocks, and the one move of a trace that they make.

    P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k        ε_K = P ε_0 + Σ_k u_k ⊗ c_k

No trace is touched step by step: P and c_k are as large as states and outputs of ops (docs/mathematics.md, 3).
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _site_math as site_math
from . import _stacked as stacked
from ._blocks import Block, block_product, block_times, full, total, transposed_times
from ._layout import Layout, closure
from ._plan import Plan, wide_dtype, widened
from ._pulls import AnyBlock, Rows
from ._stacked import Sparse
from ._transport import WindowData
from ._zeros import times

# A product of blocks: lists, or of a group that is stacked an array (S, S, *positions).
Whole: TypeAlias = Block | Array
# A trace: one array per slot, or of a group that is stacked an array (S, …).
Entries: TypeAlias = tuple[Array, ...] | Array


def trace_zeros(plan: Plan, k: int, by_sample: bool = False) -> Entries:
    """The trace of relation k of parameters that have not acted yet.

    With `by_sample` it may be one array also where blocks are lists, which `moved_trace` moves sample by sample.
    """
    zero, n = plan.zeros(k), plan.layout(k).size
    whole = plan.layout(k).stacked or (by_sample and _moved_by_sample(plan, k))
    return jnp.zeros((n, *zero.shape), zero.dtype) if whole else (zero,) * n


def _moved_by_sample(plan: Plan, k: int) -> bool:
    """Whether the op's family holds the traces of several states as one array."""
    site = plan.site(k)
    return site_math.kernels(site).stacks(site.call, plan.layout(k).size)


def trace_credit(plan: Plan, k: int, entries: Entries, signal: Rows, window: WindowData) -> Array:
    """Σ_s g_s · ε_s of relation k, of the weight's shape; `signal` is g at the positions."""

    def one(entry: Array, s: Array) -> Array:
        return plan.apply(k, entry, plan.gathers[k](s).astype(wide_dtype(entry.dtype)), window.fixed)

    if not isinstance(entries, tuple):
        site, kernels = plan.site(k), site_math.kernels(plan.site(k))
        if _moved_by_sample(plan, k) and kernels.apply_stack is not None:
            at = jax.vmap(plan.gathers[k])(jnp.asarray(signal)).astype(wide_dtype(entries.dtype))
            at = jax.vmap(lambda entry, s: plan.met(k, entry, s, window.fixed))(entries, at)
            return plan.of_weight(k, kernels.apply_stack(site.call, entries, at))
        return jax.vmap(one)(entries, jnp.asarray(signal)).sum(0)
    first, *rest = (one(e, s) for e, s in zip(entries, signal, strict=True))
    return sum(rest, first)


def suffix_products(plan: Plan, window: WindowData) -> tuple[list[Whole], list[Rows]]:
    """P per group, and c_k per relation and state scalar, stacked over k. A narrow trace is moved by wide products."""
    layouts = plan.probes.layouts
    dtypes = [wide_dtype(d) for d in plan.dtypes]

    def body(suffix: list[Whole], step: tuple[list[AnyBlock], list[Rows]]) -> tuple[list[Whole], list[Rows]]:
        d, f = step
        late = [late_rows(plan, k, suffix[r.group], f[k], dtypes[k]) for k, r in enumerate(plan.relations)]
        return [onward(q, d[g], plan.steep) for g, q in enumerate(suffix)], late

    kinds = [np.result_type(*(real_dtype(a.dtype) for a in layout.avals.values())) for layout in layouts]
    start = [unit(layout, kind, window.zero_after_credit) for layout, kind in zip(layouts, kinds, strict=True)]
    whole, late = lax.scan(body, start, window.records, reverse=True)
    return [_masked(q, layout, window.steps) for q, layout in zip(whole, layouts, strict=True)], late


def unit(layout: Layout, dtype: np.dtype, zero: Array | float = 0.0) -> Whole:
    """I, in the form of all products of the group's blocks."""
    one = jnp.ones(layout.shape, dtype) + jnp.asarray(zero, dtype)
    if layout.stacked:
        return stacked.identity(layout.size, one)
    none, closed, n = jnp.zeros(layout.shape, dtype), closure(layout.links), layout.size
    return [[(one if s == t else none) if closed[s, t] else None for t in range(n)] for s in range(n)]


def onward(q: Whole, d: AnyBlock, steep: bool) -> Whole:
    """q · d, in the form of q, so that a loop can carry it."""
    if isinstance(d, Sparse):
        assert not isinstance(q, list)
        return stacked.product(q, d, steep).astype(q.dtype)
    assert isinstance(q, list)
    return [
        [
            None if b is None else jnp.zeros_like(b) if a is None else a.astype(b.dtype)
            for a, b in zip(found, like, strict=True)
        ]
        for found, like in zip(block_product(q, d, steep), q, strict=True)
    ]


def late_rows(plan: Plan, k: int, q: Whole, row: Rows, dtype: np.dtype) -> Rows:
    """q · F at the elements of relation k's y."""
    site, gather = plan.site(k), plan.gathers[k]

    def at(p: Array) -> Array:
        return site_math.beside_loops(site, gather(p))

    if not isinstance(q, list):
        driven = q[:, plan.probes.drives(k)]
        return times(jax.vmap(jax.vmap(at))(driven), jnp.asarray(row)[None], plan.steep).sum(1).astype(dtype)
    found = block_times([[None if p is None else at(p) for p in line] for line in q], list(row), plan.steep)
    return [jnp.zeros_like(row[0], dtype) if c is None else c.astype(dtype) for c in found]


def _masked(q: Whole, layout: Layout, steps: int) -> Whole:
    """A product of so many blocks, without what is always zero after as many steps."""
    if not isinstance(q, list):
        return q
    links = power(layout.links, steps)
    return [[p if links[s, t] else None for t, p in enumerate(row)] for s, row in enumerate(q)]


def power(links: np.ndarray, steps: int) -> np.ndarray:
    """Which slots act on which in exactly so many steps."""
    found, square = np.eye(links.shape[0], dtype=bool), links
    while steps:
        if steps & 1:
            found = (found.astype(np.int64) @ square) > 0
        square, steps = (square.astype(np.int64) @ square) > 0, steps >> 1
    return found


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The real type of the coordinates of a state, at least float32."""
    return np.dtype(np.float64 if dtype.name in ("float64", "complex128") else np.float32)


def moved_trace(plan: Plan, k: int, entries: Entries, whole: Whole, suffixes: Rows, window: WindowData) -> Entries:
    """P ε_0 + Σ_k u_k ⊗ c_k for one relation."""
    r, gather = plan.relations[k], plan.gathers[k]
    if not isinstance(entries, tuple):
        return _moved_stack(plan, k, entries, whole, suffixes, window)
    assert isinstance(whole, list)
    site, fixed, data = plan.site(k), window.fixed[r.site], window.data(r.site)
    move = site_math.kernels(site).move
    if move is not None:
        pairs = (zip(row, entries, strict=True) for row in whole)
        at = [[None if p is None else plan.met(k, e, gather(p), window.fixed) for p, e in row] for row in pairs]
        return move(site.call, fixed, at, entries, data, suffixes)
    at = _at_traces(plan, k, whole, entries, window)
    new = []
    for own, (row, entry, c) in enumerate(zip(at, entries, suffixes, strict=True)):
        found = site_math.moved(site, fixed, row, entries, own, [widened(u, c.dtype) for u in data], c)
        new.append(found.astype(entry.dtype))
    return tuple(new)


def _moved_stack(plan: Plan, k: int, entries: Array, whole: Whole, late: Rows, window: WindowData) -> Array:
    """The same for a stack, with P only where it is not always zero."""
    links = power(plan.layout(k).links, window.steps)
    whole = _full(whole, plan.layout(k)) if isinstance(whole, list) else whole
    stack = jnp.stack(list(late), 1) if isinstance(late, list) else late
    site, shift = plan.site(k), plan.layout(k).stacked and stacked.is_shift(links)
    move_stack = site_math.kernels(site).move_stack
    if _moved_by_sample(plan, k) and move_stack is not None and not shift:
        data = [widened(u, stack.dtype) for u in window.data(plan.relations[k].site)]
        at = jax.vmap(jax.vmap(plan.gathers[k]))(whole)
        at = jax.vmap(jax.vmap(lambda p, entry: plan.met(k, entry, p, window.fixed)), (0, None))(at, entries)
        return move_stack(site.call, at, entries, data, jnp.moveaxis(stack, 1, 0))
    kept, fresh = times_trace(plan, k, whole, entries, window, links), outer_stack(plan, k, stack, window)
    return (jnp.asarray(kept) + jnp.asarray(fresh)).astype(entries.dtype)


def _full(block: Block, layout: Layout) -> Array:
    """(S, S, *positions), of lists."""
    zero = jnp.zeros(layout.shape, next((p.dtype for row in block for p in row if p is not None), np.float32))
    return jnp.stack([jnp.stack([zero if p is None else p for p in row]) for row in block])


def times_trace(
    plan: Plan, k: int, whole: Whole, entries: Entries, window: WindowData, links: np.ndarray | None = None
) -> Entries:
    """A full product of blocks times the trace of relation k; `links` are its entries that may differ from zero."""
    if not isinstance(entries, tuple):
        whole = _full(whole, plan.layout(k)) if isinstance(whole, list) else whole
        read = jax.vmap(lambda p, entry: plan.at_trace(k, p, entry, window.fixed))
        at = jax.vmap(read, (0, None))(whole, entries)
        return stacked.full_times(at, entries, closure(plan.layout(k).links) if links is None else links)
    assert isinstance(whole, list)
    return tuple(full(block_times(_at_traces(plan, k, whole, entries, window), entries)))


def _at_traces(plan: Plan, k: int, whole: Block, entries: tuple[Array, ...], window: WindowData) -> Block:
    """A product of blocks, each column broadcastable to the trace that it meets."""
    return [
        [None if p is None else plan.at_trace(k, p, entry, window.fixed) for p, entry in zip(row, entries, strict=True)]
        for row in whole
    ]


def outer_stack(plan: Plan, k: int, late: Rows, window: WindowData) -> Entries:
    """Σ_k u_k ⊗ c_k for all slots of relation k."""
    if not isinstance(late, list):
        return jax.vmap(lambda c: plan.outer(k, c, window), 1)(late)
    return tuple(plan.outer(k, c, window) for c in late)


def driven_dot(plan: Plan, k: int, rows: Rows, signal: Rows) -> Array:
    """Σ_s F_s · x_s at the elements of relation k's y, over steps: F is (steps, …), x (steps, positions…)."""
    site, gather = plan.site(k), plan.gathers[k]

    def at_ops(x: Array) -> Array:
        return site_math.beside_loops(site, jax.vmap(gather)(x), lead=1)

    if not isinstance(rows, list):
        signal = jnp.asarray(signal)[:, plan.probes.drives(k)]
        return times(rows, jax.vmap(at_ops, 1, 1)(signal), plan.steep).sum(1)
    return total(times(f, at_ops(x), plan.steep) for f, x in zip(rows, signal, strict=True))


def pulled_back(d: AnyBlock, v: Rows, steep: bool) -> Rows:
    """dᵀ · v, in the form of v."""
    if isinstance(d, Sparse):
        return stacked.transposed_times(d, jnp.asarray(v), steep).astype(jnp.asarray(v).dtype)
    found = transposed_times(d, list(v), steep)
    return [jnp.zeros_like(b) if a is None else a.astype(b.dtype) for a, b in zip(found, v, strict=True)]
