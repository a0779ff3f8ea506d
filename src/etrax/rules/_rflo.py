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

from collections.abc import Callable
from typing import NamedTuple

from jax.typing import DTypeLike

from ..compiler.analysis import Facts
from ..runtime import (
    EachStep,
    Flags,
    FusedCredit,
    Leaky,
    Plan,
    PositionTrace,
    Reached,
    Traces,
    Transport,
    Vector,
    by_site,
    chosen_plan,
    leaky_reader,
    plan_of,
    whole_view,
)
from ._kinds import CHEAP_FAN_OUT
from ._leak import leak_rule
from ._rule import Rule


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
        EachStep(plan.record, lambda trace: trace.reached, reached.advance, reached.restart)
        if plan.relations
        else EachStep(),
        fused=FusedCredit(
            lambda trace, g, window: traces.fused_rows(trace.plain, plan.vectors(g), window, meets(trace))
        ),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace.plain.entries),
    )


def rflo(decay: float, *, credit: str = "step") -> Rule:
    """RFLO: traces that leak by `decay` a step, whatever the recurrence does. Takes a leak of 0 up to 1.

    `credit="state"` is the published definition for an update at every step; see `d_rtrl`.

    >>> print(rflo(0.9))
    rflo(decay=0.9)
    """
    how = "the recurrence of every state is replaced by a leak of {:g}"
    return leak_rule("rflo", leaky_transport, decay, how, credit)
