"""Transport by per-position blocks with a low-pass filter on the trace: ε̄ ← κ ε̄ + ε.

With Q_k = D_K ··· D_{k+1} as in D-RTRL, what a window adds to the filtered trace is a second suffix recursion,

    R_K = I,   R_k = κ^{K−k} I + R_{k+1} D_{k+1}        ε̄_K = κ^K ε̄_0 + (R_1 D_1) ε_0 + Σ_k u_k ⊗ (R_k F_k)

which is the second half of D-RTRL's recursion for the blocks [[D, 0], [D, κ I]] and [F; F].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..analysis import Facts
from ._blocks import Block, act, multiply
from ._plan import Plan, plan_blocks
from ._transport import Transport, WindowData, add_to, by_site, bytes_of


def filtered_transport(
    facts: Facts, kappa: float, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """e-prop with a filter: per relation and state scalar the trace, and the filtered trace, which is read."""
    plan = plan_blocks(facts, sites, trace_dtype)

    def init() -> list[Any]:
        return filtered_zeros(plan)

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for k, (r, (_, filtered)) in enumerate(zip(plan.relations, trace, strict=True)):
            for entry, s in zip(filtered, plan.signals(k, g), strict=True):
                add_to(out, r.site, plan.apply(k, entry, s, window.fixed))
        return out

    def move(trace: Any, window: WindowData) -> Any:
        return move_filtered(plan, kappa, trace, window)

    return Transport(
        init,
        plan.probes if plan.relations else None,
        credit,
        move,
        bytes_of(init),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace),
    )


def filtered_zeros(plan: Plan) -> list[Any]:
    """Per relation, a pair of traces: as it is, and filtered."""
    return [[tuple(plan.zeros(k) for _ in plan.layout(k).slots) for _ in range(2)] for k in range(len(plan.relations))]


def move_filtered(plan: Plan, kappa: float, trace: Any, window: WindowData) -> list[Any]:
    """Both traces at the window's exit."""
    if not plan.relations:
        return trace
    if window.steps == 1:
        return _moved_once(plan, kappa, trace, window)
    whole, fresh = _suffixes(plan, kappa, window.records)
    moved = []
    for k, (r, (plain, filtered)) in enumerate(zip(plan.relations, trace, strict=True)):
        product, summed = ([[plan.at_trace(k, p, window.fixed) for p in row] for row in b[r.group]] for b in whole)
        new = [plan.outer(k, c, window) for c in fresh.plain[k]]
        new_filtered = [plan.outer(k, c, window) for c in fresh.filtered[k]]
        kept = [kappa**window.steps * old + more for old, more in zip(filtered, act(summed, plain), strict=True)]
        moved.append([_plus(act(product, plain), new, plan.dtypes[k]), _plus(kept, new_filtered, plan.dtypes[k])])
    return moved


def _moved_once(plan: Plan, kappa: float, trace: Any, window: WindowData) -> list[Any]:
    """Over one step: ε moves, and then ε̄ ← κ ε̄ + ε, each in its place."""
    blocks, rows = jax.tree.map(lambda a: a[0], window.records)
    moved = []
    for k, (r, (plain, filtered)) in enumerate(zip(plan.relations, trace, strict=True)):
        now = 1 + jnp.asarray(window.after, plan.dtypes[k])  # one, but not before the old trace has been read
        block = [
            [None if d is None else plan.at_trace(k, d * now, window.fixed) for d in row] for row in blocks[r.group]
        ]
        fresh = [plan.outer(k, (f * now)[None].astype(plan.dtypes[k]), window) for f in rows[k]]
        new = _plus(act(block, plain), fresh, plan.dtypes[k])
        moved.append([new, tuple(kappa * old + e for old, e in zip(filtered, new, strict=True))])
    return moved


def _plus(old: Sequence[Any], new: Sequence[Any], dtype: Any) -> tuple[Any, ...]:
    return tuple(a.astype(dtype) + b for a, b in zip(old, new, strict=True))


class Fresh(NamedTuple):
    """What each step adds at the exit, per relation and state scalar, stacked over steps."""

    plain: list[list[Any]]
    filtered: list[list[Any]]


def _suffixes(plan: Plan, kappa: float, records: Any) -> tuple[tuple[list[Block], list[Block]], Fresh]:
    """(Q_0, R_1 D_1) per group, and Q_k F_k, R_k F_k per relation."""
    groups = range(len(plan.probes.layouts))
    dtypes = [_real(plan, g) for g in groups]

    def body(carry: Any, step: Any) -> tuple[Any, Fresh]:
        suffix, behind, scale = carry  # Q_k, R_{k+1} D_{k+1}, κ^{K−k}
        blocks, rows = step
        summed = [_add_diagonal(b, scale) for b in behind]
        found = Fresh(
            *([_at(plan, k, b[r.group], rows[k]) for k, r in enumerate(plan.relations)] for b in (suffix, summed))
        )
        onward = [[_like(multiply(b[g], blocks[g]), plan, g, dtypes[g]) for g in groups] for b in (suffix, summed)]
        return (*onward, scale * kappa), found

    start = [_scaled(plan, g, 1.0, dtypes[g]) for g in groups], [_scaled(plan, g, 0.0, dtypes[g]) for g in groups]
    (suffix, behind, _), found = lax.scan(body, (*start, jnp.ones(())), records, reverse=True)
    return (suffix, behind), found


def _at(plan: Plan, k: int, block: Block, row: Sequence[Any]) -> list[Any]:
    at = [[_loops(plan.gathers[k](q), row[0]) for q in line] for line in block]
    return [c.astype(plan.dtypes[k]) for c in act(at, row)]


def _scaled(plan: Plan, g: int, scale: float, dtype: Any) -> Block:
    """scale · I."""
    layout = plan.probes.layouts[g]
    n = layout.size
    return [[jnp.full(layout.shape, scale if s == t else 0.0, dtype) for t in range(n)] for s in range(n)]


def _add_diagonal(block: Block, scale: Any) -> Block:
    return [[q + scale.astype(q.dtype) if s == t else q for t, q in enumerate(row)] for s, row in enumerate(block)]


def _like(block: Block, plan: Plan, g: int, dtype: Any) -> Block:
    """Every entry an array of the group's type."""
    zero = jnp.zeros(plan.probes.layouts[g].shape, dtype)
    return [[zero if q is None else q.astype(dtype) for q in row] for row in block]


def _real(plan: Plan, g: int) -> Any:
    """The real type of a group's state scalars, at least float32."""
    layout = plan.probes.layouts[g]
    wide = any(np.dtype(layout.avals[i].dtype).name in ("float64", "complex128") for i in layout.group.leaves)
    return np.dtype(np.float64 if wide else np.float32)


def _loops(q: Any, like: Any) -> Any:
    """Values per element of y, beside an array that has leading axes of inner loops."""
    return q.reshape((1,) * (like.ndim - q.ndim) + q.shape)
