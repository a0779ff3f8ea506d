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
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from ..compiler.analysis import Facts, OpNode, Visible, find_visible
from ..runtime import (
    EachStep,
    Eligibility,
    Lasting,
    Plan,
    RanStep,
    Signal,
    Source,
    Transport,
    WindowData,
    add_to,
    backward,
    by_site,
    carried_relations,
    eligibility,
    live_sites,
    moment_of,
    moved_part,
    observe_cut_step,
    observe_step,
    on_activity,
    plan_of,
    plan_probes,
    site_math,
    trace_part,
)
from ._d_rtrl import DiagonalTrace, diagonal_transport


class GuidedTrace(NamedTuple):
    """ε of D-RTRL, ē of each relation that is filtered, and what the source of the signal carries."""

    plain: DiagonalTrace
    filtered: list[Array]
    source: Any


class StepRecord(NamedTuple):
    """D and F of the cut step, and the eligibility of what it shows of each group that takes a signal."""

    blocks: Any
    seen: Eligibility


class StepSignal(NamedTuple):
    """Signals per group; for groups that take their own error, their eligibility under it; signals at ops without a
    trace; and what the source wants to remember of the step."""

    on_groups: dict[int, Array]
    errors: Eligibility
    at_ops: dict[int, Array]
    memo: Any


@dataclass(frozen=True, eq=False)
class _Guided:
    """Groups that take the source's signal, and those that take their own error (`direct`); `filtered` relations;
    ops that reach a state by no trace."""

    plan: Plan
    base: Transport[DiagonalTrace]
    visible: Visible
    source: Source
    kappa: float
    signalled: list[int]
    direct: list[int]
    filtered: list[int]
    untraced: list[int]

    def init(self) -> GuidedTrace:
        return GuidedTrace(self.base.init(), [self.plan.zeros(k) for k in self.filtered], self.source.init())

    def record(self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> StepRecord:
        observed = observe_cut_step(self.visible, self.plan, leaves, weights, ys)
        blocks = self.plan.probes(leaves, weights, ys)
        old = self.plan.facts.step.states_of(leaves)
        return StepRecord(blocks, eligibility(self.visible, self.plan, observed, self.signalled, None, old))

    def signal(
        self, trace: GuidedTrace, leaves: Sequence[Array], weights: Sequence[Array], ran: RanStep, along: Any,
        loss_of: Any, share: Array | float,
    ) -> StepSignal:  # fmt: skip
        facts, visible = self.plan.facts, self.visible
        observed = observe_cut_step(visible, self.plan, leaves, weights, ran.ys)
        moment = moment_of(visible, observed, ran.outputs, along, loss_of)
        on_groups, memo = self.source.signal(trace.source, moment)
        old = facts.step.states_of(leaves)
        found = eligibility(visible, self.plan, observed, self.direct, moment.errors, old)
        at_ops = _immediate(visible, self.untraced, leaves, weights, ran.ys, on_groups, moment.errors)
        return StepSignal({g: on_groups[g] for g in self.signalled}, found, at_ops, memo)

    def credit(self, trace: GuidedTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        plan, signals = self.plan, window.signals
        groups, sites = plan.facts.groups, plan.facts.sites
        out: dict[int, Array] = {}
        for j, bar in signals.at_ops.items():
            add_to(out, j, site_math.grad(sites[j], window.fixed[j], window.data(j), bar))
        if not plan.relations:
            return out
        blocks, seen = window.records
        late, entry = _filter(signals.on_groups, self.kappa)
        late |= {g: jnp.ones((window.steps, groups[g].num_positions)) for g in self.direct}
        every = Eligibility({**seen.r, **signals.errors.r}, {**seen.q, **signals.errors.q})
        a, c = backward(plan, blocks, every, late)
        for k, (r, entries) in enumerate(zip(plan.relations, trace.plain.entries, strict=True)):
            term = plan.grad(k, c[k], window)
            add_to(out, r.site, term + trace_part(plan, k, entries, a[r.group], window.fixed))
        for k, e in zip(self.filtered, trace.filtered, strict=True):
            r = plan.relations[k]
            add_to(out, r.site, trace_part(plan, k, (e,), [entry[r.group]], window.fixed))
        return out

    def move(self, trace: GuidedTrace, window: WindowData) -> GuidedTrace:
        inner = window._replace(records=window.records.blocks) if self.plan.relations else window
        source = self.source.move(trace.source, window.signals.memo) if window.signals else trace.source
        return GuidedTrace(self.base.move(trace.plain, inner), self._moved(trace, window), source)

    def _moved(self, trace: GuidedTrace, window: WindowData) -> list[Array]:
        """ē at the exit: κ^K ē_0 + Σ_k κ^{K−k} e_k."""
        if not self.filtered:
            return trace.filtered
        plan, kappa, n = self.plan, self.kappa, window.steps
        blocks, seen = window.records
        powers = jnp.asarray(kappa ** np.arange(n - 1, -1, -1, dtype=np.float64))[:, None]
        late = {g: jnp.broadcast_to(powers, (n, plan.facts.groups[g].num_positions)) for g in seen.r}
        a, c = backward(plan, blocks, seen, late)
        moved = []
        for k, e in zip(self.filtered, trace.filtered, strict=True):
            old = moved_part(plan, k, trace.plain.entries[k], a[plan.relations[k].group], window)
            moved.append((kappa**n * e + old + plan.outer(k, c[k].astype(e.dtype), window)).astype(e.dtype))
        return moved

    def parts(self, trace: GuidedTrace) -> dict[int, list[Array]]:
        relations = self.plan.relations
        sites = [relations[k].site for k in [*range(len(relations)), *self.filtered]]
        return by_site(sites, [*trace.plain.entries, *trace.filtered])


def guided_transport(
    facts: Facts, source: Source, kappa: float = 0.0, sites: frozenset[int] | None = None,
    trace_dtype: DTypeLike | None = None,
) -> Transport[GuidedTrace]:  # fmt: skip
    """The trace of D-RTRL under a learning signal; if κ > 0, the filtered eligibility of the activity beside it."""
    plan = plan_of(facts, plan_probes(facts, carried_relations(facts, sites), reduced=True), trace_dtype)
    base = diagonal_transport(facts, sites, trace_dtype, plan.probes)
    used = sorted({r.group for r in plan.relations})
    signalled, direct = [g for g in used if g not in source.direct], [g for g in used if g in source.direct]
    filtered = [k for k, r in enumerate(plan.relations) if kappa and r.group in signalled]
    replaces = frozenset(j for j in live_sites(facts) if (sites is None or j in sites) and facts.remembers(OpNode(j)))
    untraced = sorted(replaces - {r.site for r in plan.relations})
    visible = find_visible(facts)
    guided = _Guided(plan, base, visible, source, kappa, signalled, direct, filtered, untraced)
    return Transport(
        guided.init,
        guided.credit,
        guided.move,
        EachStep(guided.record) if plan.relations else EachStep(),
        Signal(guided.signal, replaces),
        lasting=Lasting(lambda trace: trace.source, lambda fresh, source: fresh._replace(source=source)),
        parts=guided.parts,
    )


def _immediate(
    visible: Visible, sites: Sequence[int], leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array],
    signals: Mapping[int, Array], errors: Mapping[int, Array],
) -> dict[int, Array]:  # fmt: skip
    """The signal at the outputs of ops without a trace, within their own step and with nothing cut."""
    total: dict[int, Array] = {}
    if not sites:
        return total
    observed = observe_step(visible, frozenset(), leaves, weights, sites, ys)
    for g in range(len(visible.facts.groups)):
        for j, bar in observed.pull(on_activity(visible, observed, g, signals.get(g), errors))[1].items():
            add_to(total, j, bar)
    return total


def _filter(signals: Mapping[int, Array], kappa: float) -> tuple[dict[int, Array], dict[int, Array]]:
    """b̃_k per group, and κ b̃_1."""
    if not kappa or not signals:
        return dict(signals), {}

    def body(later: dict[int, Array], now: dict[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
        found = {g: now[g] + later[g] for g in now}
        return {g: kappa * b for g, b in found.items()}, found

    entry, late = lax.scan(body, {g: jnp.zeros_like(b[0]) for g, b in signals.items()}, dict(signals), reverse=True)
    return late, entry
