"""Real-time recurrent learning: the whole influence matrix.

    J_t = (∂h_t/∂h_{t-1}) J_{t-1} + ∂h_t/∂θ

Exact for any model of any depth, at B·H·|θ| numbers. The matrix is moved once per window, sample by sample.

Williams and Zipser, "A learning algorithm for continually running fully recurrent neural networks", Neural
Computation 1, 1989.
"""

from __future__ import annotations

from ..analysis._verdicts import complete
from ..engine import dense_bytes, dense_transport
from ._rule import Rule


def rtrl() -> Rule:
    """Exact RTRL: every path is carried, whatever the model; memory B·H·|θ|.

    >>> print(rtrl())
    rtrl()
    """
    return Rule("rtrl", dense_transport, complete, dense_bytes)
