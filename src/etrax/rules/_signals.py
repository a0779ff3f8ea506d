"""Windows of learning signals: a signal b_t on a group's activity z_t in place of ∂ℓ_t/∂z_t (docs/mathematics.md, 5).

    g = Σ_t b_t · ē_t        ē_t = κ ē_{t-1} + e_t        e_t = dz_t/dw = r_t · ε_{t-1} + q_t ⊗ u_t

ε is the trace of D-RTRL, r = ∂z/∂h and q = ∂z/∂y are those of the cut step: e_t is the eligibility of the activity
itself, step t included. Over a window, with b̃_k = b_k + κ b̃_{k+1} and the recursion of `_eligibility.py`,

    g = Σ_k u_k ⊗ c_k  +  a_0 · ε_0  +  κ b̃_1 ē_0

and the same recursion with κ^{K−k} in the place of b̃_k moves ē. Groups that the outputs show directly take their
own error, unfiltered. An op whose trace cannot be carried by position has the derivative of one step; what reaches
no state keeps the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..analysis import Facts, OpNode, Visible, find_visible
from ..engine import (
    Eligibility,
    Plan,
    Source,
    Transport,
    WindowData,
    add_to,
    backward,
    by_site,
    bytes_of,
    carried_relations,
    eligibility,
    live_sites,
    moment_of,
    moved_part,
    on_activity,
    plan_blocks,
    plan_probes,
    show,
    show_cut,
    site_math,
    trace_part,
)
from ._d_rtrl import diagonal_transport


def guided_transport(
    facts: Facts, source: Source, kappa: float = 0.0, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """The trace of D-RTRL under a learning signal; if κ > 0, the filtered eligibility of the activity beside it."""
    plan, base, visible = (
        plan_blocks(facts, sites, trace_dtype),
        diagonal_transport(facts, sites, trace_dtype, plan_probes(facts, carried_relations(facts, sites))),
        find_visible(facts),
    )
    used = sorted({r.group for r in plan.relations})
    fed, direct = [g for g in used if g not in source.direct], [g for g in used if g in source.direct]
    filtered = [k for k, r in enumerate(plan.relations) if kappa and r.group in fed]
    guided = frozenset(j for j in live_sites(facts) if (sites is None or j in sites) and facts.remembers(OpNode(j)))
    untraced = sorted(guided - {r.site for r in plan.relations})

    def init() -> Any:
        return base.init(), [plan.zeros(k) for k in filtered], source.init()

    def record(leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> Any:
        shown = show_cut(visible, plan, leaves, weights)
        return plan.probes(leaves, weights, ys), eligibility(visible, plan, shown, fed, None)

    def signal(trace: Any, leaves: Sequence[Any], weights: Sequence[Any], along: Any, loss_of: Any, _: Any) -> Any:
        leaves, weights, own = lax.stop_gradient((list(leaves), list(weights), trace[2]))
        shown = show_cut(visible, plan, leaves, weights)
        moment = moment_of(visible, shown, facts.step.run(leaves)[len(facts.states) :], along, loss_of)
        on_groups, memo = source.signal(own, moment)
        found = eligibility(visible, plan, shown, direct, moment.errors)
        return (
            {g: on_groups[g] for g in fed},
            found,
            _immediate(visible, untraced, leaves, weights, on_groups, moment.errors),
            memo,
        )

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for j, bar in window.signals[2].items():
            add_to(out, j, site_math.grad(facts.sites[j], window.fixed[j], window.data(j), bar))
        if not plan.relations:
            return out
        (signals, errors, *_), (records, seen) = window.signals, window.records
        late, entry = _filter(signals, kappa)
        late |= {g: jnp.ones((window.steps, facts.groups[g].num_positions)) for g in direct}
        a, c = backward(plan, records, Eligibility({**seen.r, **errors.r}, {**seen.q, **errors.q}), late)
        for k, r in enumerate(plan.relations):
            add_to(out, r.site, plan.grad(k, c[k], window) + trace_part(plan, k, trace[0][k], a[r.group], window.fixed))
        for k, e in zip(filtered, trace[1], strict=True):
            r = plan.relations[k]
            add_to(out, r.site, trace_part(plan, k, [e], [entry[r.group]], window.fixed))
        return out

    def move(trace: Any, window: WindowData) -> Any:
        inner = window._replace(records=window.records[0]) if plan.relations else window
        own = source.move(trace[2], window.signals[3]) if window.signals else trace[2]
        return base.move(trace[0], inner), _moved(plan, filtered, kappa, trace, window), own

    def parts(trace: Any) -> dict[int, list[Any]]:
        sites = [plan.relations[k].site for k in [*range(len(plan.relations)), *filtered]]
        return by_site(sites, [*trace[0], *trace[1]])

    return Transport(
        init,
        record if plan.relations else None,
        credit,
        move,
        bytes_of(init),
        signal,
        guided,
        parts=parts,
        learned=lambda trace: trace[2],
        renew=lambda fresh, learned: (*fresh[:2], learned),
    )


def _moved(plan: Plan, filtered: Sequence[int], kappa: float, trace: Any, window: WindowData) -> list[Any]:
    """ē at the exit: κ^K ē_0 + Σ_k κ^{K−k} e_k."""
    if not filtered:
        return trace[1]
    records, seen = window.records
    n = window.steps
    powers = jnp.asarray(kappa ** np.arange(n - 1, -1, -1, dtype=np.float64))[:, None]
    late = {g: jnp.broadcast_to(powers, (n, plan.facts.groups[g].num_positions)) for g in seen.r}
    a, c = backward(plan, records, seen, late)
    moved = []
    for k, e in zip(filtered, trace[1], strict=True):
        kept = moved_part(plan, k, trace[0][k], a[plan.relations[k].group], window)
        moved.append((kappa**n * e + kept + plan.outer(k, c[k].astype(e.dtype), window)).astype(e.dtype))
    return moved


def _immediate(
    visible: Visible, sites: Sequence[int], leaves: Sequence[Any], weights: Sequence[Any], signals: Sequence[Any],
    errors: Sequence[Any],
) -> dict[int, Any]:  # fmt: skip
    """The signal at the outputs of ops without a trace, within their own step and with nothing cut."""
    total: dict[int, Any] = {}
    if not sites:
        return total
    shown = show(visible, frozenset(), leaves, weights, sites)
    for g in range(len(visible.facts.groups)):
        for j, bar in shown.pull(on_activity(visible, shown, g, signals[g], errors))[1].items():
            add_to(total, j, bar)
    return total


def _filter(signals: Mapping[int, Any], kappa: float) -> tuple[dict[int, Any], dict[int, Any]]:
    """b̃_k per group, and κ b̃_1."""
    if not kappa or not signals:
        return dict(signals), {}

    def body(later: dict[int, Any], now: dict[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        found = {g: now[g] + later[g] for g in now}
        return {g: kappa * b for g, b in found.items()}, found

    entry, late = lax.scan(body, {g: jnp.zeros_like(b[0]) for g, b in signals.items()}, dict(signals), reverse=True)
    return late, entry
