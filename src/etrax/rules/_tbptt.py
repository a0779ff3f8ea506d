"""Truncated BPTT: no trace at all.

    A = C = 0,   g = ∂L/∂θ |h_0 fixed

Exact inside a window, blind beyond it; with windows of one step it is the immediate derivative (SnAp-0). With `steps`
windows overlap: the last steps before each window are stored and run again at today's parameters, so that every loss
sees so many steps, in a window of one step too. That is BPTT(h; 1) of Williams and Peng, at `steps` times the work.

Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network trajectories",
Neural Computation 2, 1990.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from jax.typing import DTypeLike

from .._arguments import check_whole
from ..compiler.analysis import Facts, is_forgotten
from ..runtime import Past, Transport, past_transport
from ._rule import Rule
from ._verdicts import Kind, Verdict, no_trace_verdict, whole_influence_verdict


class NoTrace(NamedTuple):
    """Nothing is carried."""


def no_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
) -> Transport[NoTrace]:
    return Transport(NoTrace, lambda trace, g, window: {}, lambda trace, window: trace)


def tbptt(*, steps: int | None = None) -> Rule:
    """Truncated back-propagation through time: the gradient inside each window, no trace.

    - `steps`: lets windows overlap, so that every loss reaches back at least so many steps, its own included.

    The steps of the overlap are stored and run again for every window, at the present parameters. With an update after
    every step this is the rolling truncated BPTT that streaming learners are compared with. It is exact for whatever is
    forgotten within these steps: a token shift, a short convolution, a cache.

    >>> print(tbptt(), tbptt(steps=10))
    tbptt() tbptt(steps=10)
    """
    if steps is None or check_whole("tbptt(steps=...)", steps, "steps") == 1:
        return Rule("tbptt", no_transport, no_trace_verdict, {} if steps is None else {"steps": 1})

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Past]:
        return past_transport(facts, sites, steps - 1)

    return Rule("tbptt", transport, partial(_overlapping_verdict, steps=steps), {"steps": int(steps)})


def _overlapping_verdict(facts: Facts, param: int, steps: int) -> Verdict:
    plain = no_trace_verdict(facts, param)
    if plain.kind is not Kind.TRUNCATED:
        return plain
    is_sound = whole_influence_verdict(facts, param).kind is Kind.EXACT and not facts.edges.problems
    if is_sound and is_forgotten(facts, tuple(facts.live_sites_of(param)), steps - 1):
        return Verdict(Kind.EXACT, f"no state holds what it did longer than the {steps} steps that each loss sees")
    reason = f"each loss sees the last {steps} steps; what it did before is not carried"
    least = plain.least_window
    if least is not None and least > steps:
        least -= steps - 1
        reason += f"; no credit reaches it in windows of fewer than {least} steps, where its gradient is zero"
        return Verdict(Kind.TRUNCATED, reason, least)
    return Verdict(Kind.TRUNCATED, reason, None if least is None else 1)
