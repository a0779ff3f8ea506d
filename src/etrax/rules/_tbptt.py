"""Truncated BPTT: no trace at all.

    A = C = 0,   g = ∂L/∂θ |h_0 fixed

Exact inside a window, blind beyond it; with windows of one step it is the immediate derivative (SnAp-0).

Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network trajectories",
Neural Computation 2, 1990.
"""

from __future__ import annotations

from ..engine import Transport
from ._rule import Rule
from ._verdicts import windowed

_NOTHING = Transport(
    init=lambda: (), record=None, credit=lambda trace, g, window: {}, move=lambda trace, w: trace, nbytes=0
)


def tbptt() -> Rule:
    """Truncated back-propagation through time: the gradient inside each window, no trace.

    >>> print(tbptt())
    tbptt()
    """
    return Rule("tbptt", lambda facts, sites, dtype: _NOTHING, windowed, lambda facts, dtype: 0)
