"""Random feedback local online learning, its transport: every recurrence is taken for one leak.

    ε_t = λ ε_{t-1} + u_t ⊗ F_t

F = ∂h'/∂y as in D-RTRL; the hidden Jacobian D is replaced by λ, the leak of the neurons (λ = 1 − 1/τ for a rate
network of time constant τ). The trace has one number per parameter for each state scalar that a weight op drives
directly: B·|θ|.

Over a window of K steps, with nothing but scalars to carry across it,

    ε_K = λ^K ε_0 + Σ_k u_k ⊗ λ^{K−k} F_k

A state scalar that an op does not drive within its own step never gets a trace, so there is none for it
(docs/mathematics.md, 7).

Murray, "Local online learning in recurrent networks with random feedback", eLife 8, 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._compat import common_dtype
from ..compiler.analysis import Facts
from ..runtime import (
    EachStep,
    FusedCredit,
    Layout,
    OverProbes,
    Plan,
    Probes,
    Transport,
    by_site,
    plain_algebra,
    plan_of,
    whole_view,
)
from ..runtime.blocks import Block, Vector
from ..runtime.traces import PositionTrace, Traces, chosen_plan
from ._kinds import CHEAP_FAN_OUT
from ._leak import leak_rule
from ._reached import Flags, Reached
from ._rule import Rule


@dataclass(frozen=True, eq=False)
class Leaky(OverProbes):
    """λ in place of D, and F, for the slots that some op drives within its step: no other ever has a trace."""

    decay: float
    driven: tuple[tuple[int, ...], ...]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return self._layouts

    @cached_property
    def _layouts(self) -> tuple[Layout, ...]:
        pairs = zip(self.probes.layouts, self.driven, strict=True)
        return tuple(self._of_driven(layout, driven) if layout.slots else layout for layout, driven in pairs)

    def _of_driven(self, layout: Layout, driven: Sequence[int]) -> Layout:
        slots, alone = tuple(layout.slots[s] for s in driven), np.eye(len(driven), dtype=bool)
        return replace(layout, slots=slots, known=alone, stacked_as=False)

    def drives(self, k: int) -> np.ndarray:
        return self.probes.drives(k)[list(self.driven[self.relations[k].group])]

    def low_pass(self, group: int) -> Mapping[int, tuple[int, float]]:
        return {}

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]:
        _, rows = self.probes(leaves, weights, ys)
        blocks = [self._block(layout) for layout in self.layouts]
        return blocks, [self._row(k, f) for k, f in enumerate(rows)]

    def _block(self, layout: Layout) -> Block:
        wide = common_dtype(*(jnp.finfo(a.dtype).dtype for a in layout.avals.values()), jnp.float32)
        leak, n = jnp.full((1,) * len(layout.shape), self.decay, wide), layout.size
        return [[leak if s == t else None for t in range(n)] for s in range(n)]

    def _row(self, k: int, f: Vector) -> Vector:
        group = self.relations[k].group
        acts = self.probes.drives(k)
        values = dict(plain_algebra(self.probes.layouts[group], False).driven(f, acts))
        return [values.get(s) for s in self.driven[group]]


def leaky_reader(probes: Probes, decay: float) -> Leaky:
    """One leak for every recurrence, for the relations of some probes."""
    driven = [np.zeros(layout.size, bool) for layout in probes.layouts]
    for k, r in enumerate(probes.relations):
        driven[r.group] = driven[r.group] | probes.drives(k)
    return Leaky(probes, decay, tuple(tuple(np.flatnonzero(d).tolist()) for d in driven))


class LeakyTrace(NamedTuple):
    """Per relation, the arrays of its trace, for slots that its op drives directly; and what the ops have reached."""

    plain: PositionTrace
    reached: Flags


def leaky_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, decay: float
) -> tuple[Plan, Transport[LeakyTrace]]:
    """The traces of D-RTRL, with λ in place of D, and their plan."""
    plan = chosen_plan(
        facts, sites, trace_dtype, CHEAP_FAN_OUT, whole_view(facts), lambda probes: leaky_reader(probes, decay)
    )
    reader = plan.reader
    assert isinstance(reader, Leaky)
    traces, reached = Traces(plan), Reached(plan_of(reader.probes, trace_dtype))
    driven = [reader.driven[r.group] for r in plan.relations]

    def meets(trace: LeakyTrace) -> Callable[[int, Vector], Vector]:
        return lambda k, signal: reached.met(k, trace.reached, signal, driven[k])

    return plan, Transport(
        lambda: LeakyTrace(traces.init(), reached.init()),
        lambda trace, g, window: traces.credit(trace.plain, plan.vectors(g), window, True, meets(trace)),
        lambda trace, window: LeakyTrace(traces.move(trace.plain, window, window.records), window.carry),
        EachStep(plan.recorder.record, lambda trace: trace.reached, reached.advance, reached.restart)
        if plan.relations
        else EachStep(),
        fused=FusedCredit(
            lambda trace, g, window: traces.fused_rows(trace.plain, plan.vectors(g), window, meets(trace))
        ),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace.plain.entries),
    )


def rflo(decay: float, *, credit: str = "step") -> Rule:
    """RFLO: traces that leak by `decay` a step, whatever the recurrence does. Takes a leak of 0 up to 1.

    - `decay`: the factor by which a trace shrinks in a step.
    - `credit`: "state" is the published definition for an update at every step; see `d_rtrl`.

    >>> print(rflo(0.9))
    rflo(decay=0.9)
    """
    how = "the recurrence of every state is replaced by a leak of {:g}"
    return leak_rule("rflo", leaky_transport, decay, how, credit)
