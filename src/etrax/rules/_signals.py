"""Windows of learning signals: a signal b_t on a group's activity z_t in place of ∂ℓ_t/∂z_t (docs/mathematics.md, 5).

    g = Σ_t b_t · ē_t        ē_t = κ ē_{t-1} + e_t        e_t = dz_t/dw = r_t · ε_{t-1} + q_t ⊗ u_t

ε is the trace of D-RTRL, r = ∂z/∂h and q = ∂z/∂y are those of the cut step: e_t is the eligibility of the activity
itself, step t included. Over a window, with b̃_k = b_k + κ b̃_{k+1} and the recursion of `_eligibility.py`,

    g = Σ_k u_k ⊗ c_k  +  a_0 · ε_0  +  κ b̃_1 ē_0

and the same recursion with κ^{K−k} in place of b̃_k moves ē. Groups that the outputs show directly take their
own error, unfiltered. An op whose trace cannot be carried by position has the derivative of one step; what reaches
no state keeps the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..compiler.analysis import NO_FAN_OUT, Facts, FanOut, OpNode, Visible, elements_without_memory, find_visible
from ..runtime import (
    EachStep,
    Persistent,
    Plan,
    Signal,
    StepOutputs,
    Transport,
    WindowData,
    add_to,
    at_lanes,
    by_site,
    carried_relations,
    live_sites,
    plan_of,
    plan_probes,
    reduced_view,
    remaining,
    site_math,
)
from ..runtime.blocks import reverse_leak
from ..runtime.traces import PositionTrace, Traces, chosen_plan
from ._eligibility import Eligibility, backward, eligibility, observe_cut_step, weighted
from ._kinds import CHEAP_FAN_OUT
from ._own_loss import pull_to_ops
from ._source import Source, moment_of, observe_step, on_activity


class GuidedTrace(NamedTuple):
    """ε of D-RTRL, ē of each relation that is filtered, and what the source of the signal carries."""

    plain: PositionTrace
    filtered: list[Array]
    source: Any


class StepRecord(NamedTuple):
    """D and F of the cut step; with a filter, the eligibility of what it shows of each group that takes a signal."""

    blocks: Any
    seen: Eligibility


class StepSignal(NamedTuple):
    """Signals per group that is filtered; for the others, their eligibility under the signal or under the error of the
    outputs that show them; signals at ops without a trace; and what the source wants to remember of the step."""

    on_groups: dict[int, Array]
    at_once: Eligibility
    at_ops: dict[int, Array]
    memo: Any


@dataclass(frozen=True, eq=False)
class _Guided:
    """`groups` have a trace; those of them in `signalled` take a signal that meets the filtered eligibility, the others
    take theirs at once. `filtered` are the relations to the former; `untraced` ops reach a state by no trace. `shown`
    are elements of an op's output that reach no state (the half of a fused product that gates the output): they keep
    the gradient of the loss."""

    traces: Traces
    visible: Visible
    source: Source
    kappa: float
    groups: list[int]
    signalled: list[int]
    filtered: list[int]
    untraced: list[int]
    shown: dict[int, np.ndarray]

    @property
    def plan(self) -> Plan:
        return self.traces.plan

    @property
    def beside(self) -> list[int]:
        """Groups whose signal is filtered, while outputs that show them act at once."""
        return [g for g in self.signalled if self.source.beside and self.visible.outputs[g]]

    def init(self) -> GuidedTrace:
        zeros = [self.plan.zeros(k) for k in self.filtered]
        return GuidedTrace(self.traces.init(), zeros, self.source.init())

    def record(self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> StepRecord:
        blocks = self.plan.recorder.record(leaves, weights, ys)
        if not self.signalled:
            return StepRecord(blocks, Eligibility({}, {}))
        observed = observe_cut_step(self.visible, self.plan, leaves, weights, ys)
        old = self.plan.facts.step.states_of(leaves)
        return StepRecord(blocks, eligibility(self.visible, self.plan, observed, self.signalled, None, {}, old))

    def signal(
        self, trace: GuidedTrace, leaves: Sequence[Array], weights: Sequence[Array], ran: StepOutputs, step_data: Any,
        loss_of: Any, loss_weight: Array | float,
    ) -> StepSignal:  # fmt: skip
        facts, visible = self.plan.facts, self.visible
        observed = observe_cut_step(visible, self.plan, leaves, weights, ran.ys)
        moment = moment_of(visible, observed, ran.outputs, step_data, loss_of)
        on_groups, memo = self.source.signal(trace.source, moment)
        old, others = facts.step.states_of(leaves), [g for g in self.groups if g not in self.signalled]
        at_once = eligibility(visible, self.plan, observed, others, on_groups, moment.errors, old, self.source.beside)
        if self.beside:
            unsignalled = {g: jnp.zeros_like(on_groups[g]) for g in self.beside}
            more = eligibility(visible, self.plan, observed, self.beside, unsignalled, moment.errors, old, beside=True)
            at_once = Eligibility({**at_once.r, **more.r}, {**at_once.q, **more.q})
        bars = on_groups, moment.errors, self.source.beside
        at_ops = _immediate(visible, self.untraced, leaves, weights, ran.ys, *bars)
        if self.shown:
            bars = pull_to_ops(facts, sorted(self.shown), leaves, weights, ran.ys)(moment.errors)[0]
            # Elements that no state reads have no eligibility: they keep the gradient of the loss.
            for j, at in self.shown.items():
                at_ops[j] = jnp.where(at, bars[j], at_ops.get(j, 0))
        return StepSignal({g: on_groups[g] for g in self.signalled}, at_once, at_ops, memo)

    def credit(self, trace: GuidedTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        """Σ_k u_k ⊗ c_k + a_0 · ε_0 + κ b̃_1 ē_0."""
        plan, signals, sites = self.plan, window.signals, self.plan.facts.sites
        out: dict[int, Array] = {}
        for j, bar in signals.at_ops.items():
            add_to(out, j, site_math.grad(sites[j], window.fixed[j], window.data(j), bar))
        if not plan.relations:
            return out
        blocks, activity = window.records
        resets = self._resets(window)
        entry, weights = reverse_leak(signals.on_groups, self.kappa, resets) if self.signalled else ({}, {})
        filtered = weighted(plan, activity, weights)
        # Both are linear in what acts on the activity, so one recursion serves the sum.
        every = _sum(filtered, signals.at_once)
        a, c = backward(plan, window, blocks, every)
        for k, r in enumerate(plan.relations):
            add_to(out, r.site, plan.grad(k, self._on_states(k, c[k]), window))
        for j, term in self.traces.credit(trace.plain, a, window).items():
            add_to(out, j, term)
        for k, e in zip(self.filtered, trace.filtered, strict=True):
            r = plan.relations[k]
            signal = plan.gathers[k](entry[r.group]).astype(e.dtype)
            add_to(out, r.site, plan.of_weight(k, plan.apply(k, e, signal, window.fixed)))
        return out

    def move(self, trace: GuidedTrace, window: WindowData) -> GuidedTrace:
        source = self.source.move(trace.source, window.signals.memo) if window.signals else trace.source
        if not self.plan.relations:
            return trace._replace(source=source)
        plain = self.traces.move(trace.plain, window, window.records.blocks)
        return GuidedTrace(plain, self._moved(trace, window), source)

    def _moved(self, trace: GuidedTrace, window: WindowData) -> list[Array]:
        """ē at the exit: κ^K ē_0 + Σ_k κ^{K−k} e_k."""
        if not self.filtered:
            return trace.filtered
        plan, kappa, n = self.plan, self.kappa, window.steps
        blocks, activity = window.records
        powers = jnp.asarray(kappa ** np.arange(n - 1, -1, -1, dtype=np.float64))[:, None]
        # ē moves as if each step had the signal κ^(K−k), so the recursion of credit gives its blocks, too.
        weights = {g: jnp.broadcast_to(powers, (n, plan.facts.groups[g].num_positions)) for g in activity.r}
        left = {g: remaining(flags) for g, flags in self._resets(window).items()}
        weights = {g: jnp.where(left[g][1:], w, 0) if g in left else w for g, w in weights.items()}
        a, c = backward(plan, window, blocks, weighted(plan, activity, weights), until_exit=True)
        moved = []
        for k, e in zip(self.filtered, trace.filtered, strict=True):
            group = plan.relations[k].group
            old = self.traces.summed(k, trace.plain, a[group], window)
            if group in left:
                e = self._where(k, left[group][0], e, window)
            fresh = plan.outer(k, self._on_states(k, c[k]).astype(e.dtype), window)
            moved.append((kappa**n * e + old + fresh).astype(e.dtype))
        return moved

    def _on_states(self, k: int, c: Array) -> Array:
        """Signals at the outputs of relation k's op, without those that reach no state."""
        shown = self.shown.get(self.plan.relations[k].site)
        return c if shown is None else jnp.where(shown, 0, c)

    def _resets(self, window: WindowData) -> dict[int, Array]:
        """Flags at the positions, in one axis, of the groups whose eligibility is filtered; nothing if none is set."""
        if window.resets is None:
            return {}
        lanes = {g: self.plan.lanes[g] for g in self.signalled}
        return {g: at_lanes(window.resets, None if a is None else a.reshape(-1), 1, 1) for g, a in lanes.items()}

    def _where(self, k: int, at: Array, e: Array, window: WindowData) -> Array:
        """An eligibility of relation k at some positions, zero at others."""
        plan = self.plan
        at = jnp.broadcast_to(at, plan.facts.groups[plan.relations[k].group].num_positions).astype(e.dtype)
        return jnp.where(
            site_math.spread(plan.site(k), window.fixed[plan.relations[k].site], plan.gathers[k](at)) != 0, e, 0
        )

    def parts(self, trace: GuidedTrace) -> dict[int, list[Array]]:
        relations = self.plan.relations
        sites = [relations[k].site for k in [*range(len(relations)), *self.filtered]]
        return by_site(sites, [*trace.plain.entries, *trace.filtered])


def _sum(one: Eligibility, two: Eligibility) -> Eligibility:
    """Both together, where a group or a relation may be in one of them alone."""
    r = {g: jax.tree.map(jnp.add, a, two.r[g]) if g in two.r else a for g, a in one.r.items()}
    q = {k: a + two.q[k] if k in two.q else a for k, a in one.q.items()}
    return Eligibility({**two.r, **r}, {**two.q, **q})


def guided_fan_out(kappa: float) -> FanOut:
    """Outputs that reach several positions are carried where no filter stands between them and the signal."""
    return NO_FAN_OUT if kappa else CHEAP_FAN_OUT


def guided_transport(
    facts: Facts, source: Source, kappa: float = 0.0, sites: frozenset[int] | None = None,
    trace_dtype: DTypeLike | None = None,
) -> Transport[GuidedTrace]:  # fmt: skip
    """The trace of D-RTRL under a learning signal; if κ > 0, the filtered eligibility of the activity beside it."""
    # What is memoryless in the trace can be seen in the activity, so the view is that of all states that are read.
    view = reduced_view(facts)
    if kappa:
        # ē has an entry for every output of an op, also for those that act on the activity alone.
        plan = plan_of(plan_probes(view, carried_relations(facts, sites)), trace_dtype, structured=True)
    else:
        plan = chosen_plan(facts, sites, trace_dtype, guided_fan_out(kappa), view)
    signalled = [g for g in plan.groups if kappa and g not in source.direct]
    filtered = [k for k, r in enumerate(plan.relations) if r.group in signalled]
    replaces = frozenset(j for j in live_sites(facts) if (sites is None or j in sites) and facts.remembers(OpNode(j)))
    untraced = sorted(replaces - {r.site for r in plan.relations})
    shown = {j: at for j in sorted(replaces) if (at := elements_without_memory(facts, j)).any()}
    visible, groups = find_visible(facts), plan.groups
    guided = _Guided(Traces(plan), visible, source, kappa, groups, signalled, filtered, untraced, shown)
    return Transport(
        guided.init,
        guided.credit,
        guided.move,
        EachStep(guided.record) if plan.relations else EachStep(),
        Signal(guided.signal, replaces),
        persistent=Persistent(lambda trace: trace.source, lambda fresh, source: fresh._replace(source=source)),
        parts=guided.parts,
    )


def _immediate(
    visible: Visible, sites: Sequence[int], leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array],
    signals: Mapping[int, Array], errors: Mapping[int, Array], beside: bool,
) -> dict[int, Array]:  # fmt: skip
    """The signal at the outputs of ops without a trace, within their own step and with nothing cut."""
    total: dict[int, Array] = {}
    if not sites:
        return total
    observed = observe_step(visible, frozenset(), leaves, weights, sites, ys)
    for g in range(len(visible.facts.groups)):
        for j, bar in observed.pull(on_activity(visible, observed, g, signals.get(g), errors, beside))[1].items():
            add_to(total, j, bar)
    return total
