"""Random feedback local online learning, its transport: every recurrence is taken for one leak.

    ε_t = λ ε_{t-1} + u_t ⊗ F_t

F = ∂h'/∂y as in D-RTRL; the hidden Jacobian D is replaced by λ, the leak of the neurons (λ = 1 − 1/τ for a rate
network of time constant τ). The trace has one number per parameter for each state scalar that a weight op drives
directly: B·|θ|.

Murray, "Local online learning in recurrent networks with random feedback", eLife 8, 2019.
"""

from __future__ import annotations

from typing import Any

from ..analysis import Facts, Kind, Verdict
from ..analysis._verdicts import carried_groups, diagonal, unless_trivial
from ..engine import Transport, leaky_transport
from ._checks import check_decay
from ._rule import Rule


def rflo(decay: float) -> Rule:
    """RFLO: traces that leak by `decay` a step, whatever the recurrence does. Takes a leak of 0 up to 1.

    >>> print(rflo(0.9))
    rflo(decay=0.9)
    """
    decay = check_decay("rflo", "decay", decay, closed=True)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return leaky_transport(facts, decay, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return replaced(facts, param, f"the recurrence of every state is replaced by a leak of {decay:g}")

    return Rule("rflo", transport, verdict, options={"decay": decay})


def replaced(facts: Facts, param: int, how: str) -> Verdict:
    """D-RTRL's verdict where there is a trace, but one whose recurrence is replaced by something not proven equal."""
    plain = diagonal(facts, param)
    if unless_trivial(facts, param) is not None or not carried_groups(facts, param):
        return plain
    more = "" if plain.kind is Kind.EXACT else f"; moreover, {plain.reason}"
    return Verdict(Kind.APPROXIMATE, how + more)
