"""e-prop's filter under the gradient of the loss: D-RTRL's trace of states with a low-pass copy beside them.

In closed form over a window (docs/mathematics.md, 5), the filter is turned on the signals, σ̃_k = σ_k + κ σ̃_{k+1}, and
one reverse recursion a_k = σ̃_k + D_{k+1}ᵀ a_{k+1} takes them back to the entry,

    g = Σ_k u_k ⊗ (δ_k + F_k · (a_k − s_k))  +  (D_1ᵀ a_1) · ε_0  +  (r_1 + κ σ̃_1) · ε̄_0

δ_k is the loss of step k at the op's output, all of it; F_k · s_k is the part that the states of its trace account for,
so that what they do not (a skip path, a state that no trace reaches) counts as it is. r_k is what the loss of step k
reads of the states before it, σ_k = s_k + r_{k+1}. Over a window of one step, s_1 · ε̄_1 is read off the trace that has
moved.

Both traces are one, that of D-RTRL for states with a low-pass copy beside them: its blocks are [[D, 0], [D, κ I]] and
[F; F], and the signals act on the copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..compiler.analysis import Facts
from ..runtime import (
    EachStep,
    FusedCredit,
    Layout,
    OverProbes,
    Probes,
    Signal,
    StepOutputs,
    Transport,
    WindowData,
    add_to,
    by_site,
    following_view,
    plain_algebra,
    site_math,
)
from ..runtime.blocks import Block, Vector
from ..runtime.traces import PositionTrace, Traces, accounted_by_states, chosen_plan
from ._kinds import CHEAP_FAN_OUT
from ._own_loss import OwnLoss, plan_own_loss


@dataclass(frozen=True)
class Copied:
    """The slots of a group that are kept as they are, and those that have a low-pass copy."""

    plain: tuple[int, ...]
    copied: tuple[int, ...]

    @property
    def slots(self) -> tuple[int, ...]:
        return (*self.plain, *self.copied)


@dataclass(frozen=True, eq=False)
class Filtered(OverProbes):
    """Blocks [[D, 0], [D, κ I]] and [F; F]: of some slots a copy x̄ ← κ x̄ + x' is carried, behind the others."""

    kappa: float
    copied: tuple[Copied, ...]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return self._layouts

    @cached_property
    def _layouts(self) -> tuple[Layout, ...]:
        return tuple(self._wider(layout, c) for layout, c in zip(self.probes.layouts, self.copied, strict=True))

    def _wider(self, layout: Layout, c: Copied) -> Layout:
        if not layout.slots:
            return layout
        links, n = np.zeros((len(c.slots), len(c.slots)), bool), len(c.plain)
        # A copy is driven by what drives its slot; beside that it acts on itself alone.
        links[:, :n] = layout.links[np.ix_(c.slots, c.plain)]
        links[np.arange(n, len(c.slots)), np.arange(n, len(c.slots))] = True
        slots = tuple(layout.slots[s] for s in c.slots)
        return replace(layout, slots=slots, known=links, stacked_as=layout.stacked)

    def low_pass(self, group: int) -> Mapping[int, tuple[int, float]]:
        c = self.copied[group]
        both = ((len(c.plain) + n, s) for n, s in enumerate(c.copied) if s in c.plain)
        return {n: (c.plain.index(s), self.kappa) for n, s in both}

    def drives(self, k: int) -> np.ndarray:
        return self.probes.drives(k)[list(self.copied[self.relations[k].group].slots)]

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]:
        blocks, rows = self.probes(leaves, weights, ys)
        algebras = [plain_algebra(layout, False) for layout in self.probes.layouts]
        wider = [
            a.with_copies(d, c.plain, c.copied, self.kappa) if layout.slots else d
            for a, d, c, layout in zip(algebras, blocks, self.copied, self.probes.layouts, strict=True)
        ]
        acts = [self.probes.drives(k) for k in range(len(rows))]
        groups = [r.group for r in self.relations]
        return wider, [
            algebras[g].chosen(f, act, self.copied[g].slots) for g, f, act in zip(groups, rows, acts, strict=True)
        ]


class _Signals(NamedTuple):
    """Per group and slot, the loss of a step in new states (s) and in old ones (r); per site, the loss in y (δ)."""

    new: dict[int, Vector]
    old: dict[int, Vector]
    ops: dict[int, Array]


@dataclass(frozen=True, eq=False)
class _Filter:
    """e-prop with a filter and the gradient of the loss, in closed form over a window."""

    traces: Traces
    own_loss: OwnLoss
    accounted: frozenset[int]  # sites of which the loss of a step sees nothing but what their traces account for

    def signal(
        self, trace: PositionTrace, leaves: Sequence[Array], weights: Sequence[Array], ran: StepOutputs,
        step_data: Any, loss_of: Any, loss_weight: Array | float,
    ) -> _Signals:  # fmt: skip
        gradients, plan = self.own_loss(leaves, weights, ran, step_data, loss_of, loss_weight), self.traces.plan
        return _Signals(plan.vectors(gradients.new), plan.vectors(gradients.old), gradients.ops)

    def credit(self, trace: PositionTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        plan, losses = self.traces.plan, window.signals
        sites, bars = plan.facts.sites, dict(losses.ops)
        if self.reads_exit(window):
            # δ − F · s: what the traces do not account for.
            bars = {j: bar for j, bar in bars.items() if j not in self.accounted}
            for k, r in enumerate(plan.relations):
                if r.site in bars:
                    bars[r.site] = bars[r.site] - self._through_states(k, losses.new[r.group], window)
            return {j: site_math.grad(sites[j], window.fixed[j], window.data(j), bar) for j, bar in bars.items()}
        new = {g: self.on_copies(g, v, 1) for g, v in losses.new.items()}
        old = {g: self.on_copies(g, v, 1, zero=True) for g, v in losses.old.items()}
        entry, suffix_rows = plan.pulled_rows(window, window.records, new, old)
        out = {j: site_math.grad(sites[j], window.fixed[j], window.data(j), bar) for j, bar in bars.items()}
        for k, r in enumerate(plan.relations):
            if window.steps > 1:
                add_to(out, r.site, plan.grad(k, suffix_rows[k], window))
        for j, term in self.traces.credit(trace, entry, window).items():
            add_to(out, j, term)
        return out

    def reads_exit(self, window: WindowData) -> bool:
        """Whether s_1 · ε̄_1 is read off the trace that has moved."""
        return window.steps == 1 and not self.own_loss.old

    def _through_states(self, k: int, new: Vector, window: WindowData) -> Array:
        """F · s at y, of a window of one step."""
        plan, fixed = self.traces.plan, self.traces.plan.recorder.fixed(window)
        step = plan.recorder.read(fixed, jax.tree.map(lambda a: a[0], window.records))
        s = self.on_copies(plan.relations[k].group, jax.tree.map(lambda a: a[0], new), 0)
        bar = plan.driven_dot(k, s, step, fixed)
        return bar[None].astype(window.signals.ops[plan.relations[k].site].dtype)

    def on_copies(self, group: int, v: Vector, lead: int, zero: bool = False) -> Vector:
        """A row of which the slots alone count that are low-pass copies; `lead` axes stand before that of slots."""
        reader = self.traces.plan.reader
        assert isinstance(reader, Filtered)
        return self.traces.plan.algebras[group].only(v, len(reader.copied[group].plain), lead, zero)

    def at_exit(self, trace: PositionTrace, window: WindowData) -> dict[int, Array]:
        if not self.reads_exit(window):
            return {}
        new = {g: self.on_copies(g, jax.tree.map(lambda a: a[0], v), 0) for g, v in window.signals.new.items()}
        return self.traces.credit(trace, new, window)


def _copied(own_loss: OwnLoss, probes: Probes, group: int) -> Copied:
    """Slots that some state reads are carried as they are, those that the loss of a step sees have a low-pass copy."""
    layout = probes.layouts[group]
    every = tuple(range(layout.size))
    if layout.stacked:
        return Copied(every, every)
    read = tuple(s for s in every if layout.links[:, s].any())
    return Copied(read, tuple(s for s in every if layout.slots[s].leaf in own_loss.seen))


def filtered_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, kappa: float
) -> Transport[PositionTrace]:
    """e-prop with a filter: D-RTRL's trace for states with a low-pass copy of each that the loss of a step sees."""
    view, limit = following_view(facts), CHEAP_FAN_OUT
    own_loss = plan_own_loss(chosen_plan(facts, sites, trace_dtype, limit, view))

    def reader(probes: Probes) -> Filtered:
        groups = range(len(probes.layouts))
        return Filtered(probes, kappa, tuple(_copied(own_loss, probes, g) for g in groups))

    plan = chosen_plan(facts, sites, trace_dtype, limit, view, reader)
    traces = Traces(plan, by_sample=False)
    if not plan.relations:
        return Transport(traces.init, lambda trace, g, window: {}, lambda trace, window: trace)
    f = _Filter(traces, own_loss, accounted_by_states(plan, facts))
    return Transport(
        traces.init,
        f.credit,
        lambda trace, window: traces.move(trace, window, window.records),
        EachStep(plan.recorder.record),
        Signal(f.signal, frozenset(r.site for r in plan.relations), own_loss.seen),
        fused=FusedCredit(at_exit=f.at_exit),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace.entries),
    )
