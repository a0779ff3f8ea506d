"""Truncated BPTT: no trace at all.

    A = C = 0,   g = ∂L/∂θ |h_0 fixed

Exact inside a window, blind beyond it; with windows of one step it is the immediate derivative (SnAp-0).

Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network trajectories",
Neural Computation 2, 1990.
"""

from __future__ import annotations

from typing import NamedTuple

from jax.typing import DTypeLike

from ..compiler.analysis import Facts
from ..runtime import Transport
from ._rule import Rule
from ._verdicts import no_trace_verdict


class NoTrace(NamedTuple):
    """Nothing is carried."""


def no_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
) -> Transport[NoTrace]:
    return Transport(NoTrace, lambda trace, g, window: {}, lambda trace, window: trace)


def tbptt() -> Rule:
    """Truncated back-propagation through time: the gradient inside each window, no trace.

    >>> print(tbptt())
    tbptt()
    """
    return Rule("tbptt", no_transport, no_trace_verdict)
