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

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..compiler.analysis import Facts
from ..runtime import EachStep, Flags, Reached, Transport, WindowData, add_to, by_site, plan_blocks
from ._leak import leak_rule, with_leak
from ._rule import Rule


class LeakyTrace(NamedTuple):
    """Per relation, one array for each state scalar that its op drives directly; and what the ops have reached."""

    entries: list[tuple[Array, ...]]
    reached: Flags


def leaky_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, decay: float
) -> Transport[LeakyTrace]:
    plan = plan_blocks(facts, sites, trace_dtype)
    reached = Reached(plan)
    driven = [np.flatnonzero(plan.probes.drives(k)).tolist() for k in range(len(plan.relations))]

    def init() -> LeakyTrace:
        return LeakyTrace([tuple(plan.zeros(k) for _ in slots) for k, slots in enumerate(driven)], reached.init())

    def record(leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> list[list[Array]]:
        _, rows = plan.probes(leaves, weights, ys)
        return [[f for _, f in plan.probes.by_slot(k, row)] for k, row in enumerate(rows)]

    def credit(trace: LeakyTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        for k, (r, entries) in enumerate(zip(plan.relations, trace.entries, strict=True)):
            signal = reached.met(k, trace.reached, plan.signals(k, g))
            for s, entry in zip(driven[k], entries, strict=True):
                add_to(out, r.site, plan.apply(k, entry, signal[s], window.fixed))
        return out

    def move(trace: LeakyTrace, window: WindowData) -> LeakyTrace:
        moved = []
        for k, entries in enumerate(trace.entries):
            late = [with_leak(f, decay, plan.dtypes[k]) for f in window.records[k]]
            pairs = zip(entries, late, strict=True)
            moved.append(tuple(decay**window.steps * e + plan.outer(k, c, window) for e, c in pairs))
        return LeakyTrace(moved, window.carry)

    return Transport(
        init,
        credit,
        move,
        EachStep(record, lambda trace: trace.reached, reached.advance) if plan.relations else EachStep(),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace.entries),
    )


def rflo(decay: float) -> Rule:
    """RFLO: traces that leak by `decay` a step, whatever the recurrence does. Takes a leak of 0 up to 1.

    >>> print(rflo(0.9))
    rflo(decay=0.9)
    """
    return leak_rule("rflo", leaky_transport, decay, "the recurrence of every state is replaced by a leak of {:g}")
