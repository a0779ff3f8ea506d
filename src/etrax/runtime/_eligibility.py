"""The eligibility of a group's activity: its derivatives at each step, and one reverse recursion over a window.

    r = ∂z/∂h        q = ∂z/∂y        a_{k−1} = r_k b_k + D_kᵀ a_k,   a_K = 0        c_k = q_k b_k + F_k · a_k

for any weights b_k per position. Then Σ_k b_k dz_k/dw = a_0 · ε_0 + Σ_k u_k ⊗ c_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from .._compat import common_dtype
from ..compiler.analysis import Visible
from . import _site_math as site_math
from ._blocks import total
from ._plan import Plan
from ._pulls import AnyBlock, Rows
from ._site_math import Operands
from ._source import ObservedStep, observe_step, on_activity
from ._suffix import Entries, driven_dot, pulled_back
from ._transport import WindowData
from ._zeros import times

# Per group, one array for each state scalar.
Signals: TypeAlias = dict[int, Rows]


class Eligibility(NamedTuple):
    """r per group (one array per state scalar) and q per relation, of the groups that were asked for."""

    r: Signals
    q: dict[int, Array]


def observe_cut_step(
    visible: Visible, plan: Plan, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
) -> ObservedStep:
    """The cut step, ready to pull from activity to old states and to the ops of the plan, which gave `ys`."""
    return observe_step(visible, visible.facts.cut, leaves, weights, sorted({r.site for r in plan.relations}), ys)


def eligibility(
    visible: Visible, plan: Plan, observed: ObservedStep, groups: Sequence[int], errors: Mapping[int, Array] | None,
    old: Sequence[Array],
) -> Eligibility:  # fmt: skip
    """r and q of the activity itself, or (with errors) of the outputs that show it, weighted by their errors.

    `old` are the states before the step: r of one that follows from others is theirs.
    """
    found = Eligibility({}, {})
    for g in groups:
        one = jnp.ones(visible.facts.groups[g].num_positions) if errors is None else None
        h_bar, d_bar = observed.pull(on_activity(visible, observed, g, one, errors or {}))
        layout, h_bar = plan.probes.layouts[g], plan.probes.without_derived(h_bar, old)
        found.r[g] = jax.tree.map(_wide, layout.read_rows({i: h_bar[i] for i in layout.group.leaves}))
        found.q.update({k: _wide(d_bar[r.site]) for k, r in enumerate(plan.relations) if r.group == g})
    return found


def backward(
    plan: Plan, records: tuple[Sequence[AnyBlock], Sequence[Rows]], seen: Eligibility, late: Mapping[int, Array]
) -> tuple[Signals, dict[int, Array]]:
    """a_0 per group and c_k per relation, stacked over steps; `late` are the b_k, (steps, positions) per group."""
    blocks, rows = records
    layouts = plan.probes.layouts
    weight = {g: late[g].reshape(-1, *layouts[g].shape) for g in seen.r}

    def body(later: Signals, step: tuple[Signals, dict[int, Array], Sequence[AnyBlock]]) -> tuple[Signals, Signals]:
        r, b, d = step
        new = {}
        for g, a in later.items():
            new[g] = jax.tree.map(
                lambda x, y, b=b[g]: times(x, b.astype(x.dtype), plan.steep) + y.astype(x.dtype),
                r[g],
                pulled_back(d[g], a, plan.steep),
            )
        return new, later

    start = jax.tree.map(lambda x: jnp.zeros_like(x[0]), seen.r)
    entry, a = lax.scan(body, start, (seen.r, weight, blocks), reverse=True)
    c = {}
    for k, q in seen.q.items():
        g = plan.relations[k].group
        c[k] = times(q, at_ops(plan, k, weight[g].astype(jnp.real(q).dtype)), plan.steep)
        c[k] += driven_dot(plan, k, rows[k], a[g])
    return entry, c


def trace_part(plan: Plan, k: int, entries: Entries, entry: Rows, fixed: Sequence[Operands]) -> Array:
    """a_0 · ε_0 of relation k, of the weight's shape."""
    if not isinstance(entries, tuple):
        one = jax.vmap(lambda e, x: plan.apply(k, e, plan.gathers[k](x).astype(e.dtype), fixed))
        return one(entries, jnp.asarray(entry)).sum(0)
    at = [plan.gathers[k](x) for x in entry]
    return total(plan.apply(k, e, x.astype(e.dtype), fixed) for e, x in zip(entries, at, strict=True))


def moved_part(plan: Plan, k: int, entries: Entries, entry: Rows, window: WindowData) -> Array:
    """a_0 · ε_0 of relation k, entry by entry, of the trace's shape."""
    if not isinstance(entries, tuple):
        at = jax.vmap(lambda x, e: plan.at_trace(k, x, e, window.fixed))(jnp.asarray(entry), entries)
        return (at.astype(entries.dtype) * entries).sum(0)
    return total(plan.at_trace(k, x, e, window.fixed).astype(e.dtype) * e for e, x in zip(entries, entry, strict=True))


def _wide(a: Array) -> Array:
    return a.astype(common_dtype(a.dtype, jnp.float32))


def at_ops(plan: Plan, k: int, x: Array) -> Array:
    """(steps, positions…) → (steps, …) at the elements of y, with axes of one for inner loops."""
    site = plan.facts.sites[plan.relations[k].site]
    return site_math.beside_loops(site, jax.vmap(plan.gathers[k])(x), lead=1)
