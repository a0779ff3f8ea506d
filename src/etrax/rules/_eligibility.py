"""The eligibility of a group's activity: its derivatives at each step, and their way back over a window.

    r = ∂z/∂h        q = ∂z/∂y        a_{k−1} = r_k b_k + D_kᵀ a_k,   a_K = 0        c_k = q_k b_k + F_k · a_k

for any weights b_k per position. Then Σ_k b_k dz_k/dw = a_0 · ε_0 + Σ_k u_k ⊗ c_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._compat import common_dtype
from ..compiler.analysis import Visible
from ..runtime import Plan, WindowData, site_math, times
from ..runtime.blocks import Step, Vector
from ._source import ObservedStep, observe_step, on_activity


class Eligibility(NamedTuple):
    """r per group and slot, and q per relation, of the groups that were asked for."""

    r: dict[int, Vector]
    q: dict[int, Array]


def observe_cut_step(
    visible: Visible, plan: Plan, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
) -> ObservedStep:
    """The cut step, ready to pull from activity to old states and to the ops of the plan, which gave `ys`."""
    return observe_step(visible, visible.facts.cut, leaves, weights, sorted({r.site for r in plan.relations}), ys)


def eligibility(
    visible: Visible, plan: Plan, observed: ObservedStep, groups: Sequence[int],
    weights: Mapping[int, Array] | None, errors: Mapping[int, Array], old: Sequence[Array], beside: bool = False,
) -> Eligibility:  # fmt: skip
    """r and q of the activity, weighted by what acts on it at each position.

    `weights` are those per group; None is one everywhere, and a group that is missing takes the errors of the outputs
    that show it; with `beside` these errors are added to the weights. `old` are the states before the step: r of one
    that follows from others is theirs.
    """
    out = Eligibility({}, {})
    for g in groups:
        one = jnp.ones(visible.facts.groups[g].num_positions) if weights is None else weights.get(g)
        h_bar, d_bar = observed.pull(on_activity(visible, observed, g, one, errors, beside))
        layout, h_bar = plan.reader.layouts[g], plan.reader.view.pull(h_bar, old)
        out.r[g] = jax.tree.map(_wide, layout.vector({i: h_bar[i] for i in layout.group.leaves}))
        out.q.update({k: _wide(d_bar[r.site]) for k, r in enumerate(plan.relations) if r.group == g})
    return out


def weighted(plan: Plan, activity: Eligibility, weights: Mapping[int, Array]) -> Eligibility:
    """r_k b_k and q_k b_k, for b_k as (steps, positions) per group."""
    layouts = plan.reader.layouts
    b = {g: weights[g].reshape(-1, *layouts[g].shape) for g in activity.r}
    r, q = {}, {}
    for g, rows in activity.r.items():
        # Of many states, rows have an axis of slots behind that of steps.
        each = jax.vmap(lambda v, x, g=g: plan.algebras[g].map_vector(lambda a: _scaled(plan, a, x), v))
        r[g] = each(rows, b[g])
    for k, a in activity.q.items():
        at = jax.vmap(plan.gathers[k])(b[plan.relations[k].group].astype(jnp.real(a).dtype))
        at = site_math.beside_loops(plan.facts.sites[plan.relations[k].site], at, lead=1)
        q[k] = times(a, at, plan.steep)
    return Eligibility(r, q)


def _scaled(plan: Plan, a: Array, b: Array) -> Array:
    return times(a, b.astype(a.dtype), plan.steep)


def backward(
    plan: Plan, window: WindowData, records: Step, activity: Eligibility, until_exit: bool = False
) -> tuple[dict[int, Vector], dict[int, Array]]:
    """a_0 per group, and c_k at y per relation, stacked over steps, for r and q that are weighted.

    With `until_exit` what happened before a reset does not count at all.
    """
    entry, suffix_rows = plan.pulled_rows(window, records, {}, activity.r, until_exit)
    q = activity.q
    direct = {k: plan.since_reset(k, one, window) for k, one in q.items()} if until_exit else q
    return entry, {k: one + suffix_rows[k] for k, one in direct.items()}


def _wide(a: Array) -> Array:
    return a.astype(common_dtype(a.dtype, jnp.float32))
