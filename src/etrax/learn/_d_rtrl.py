"""D-RTRL: real-time recurrent learning with the per-position blocks of the cut step.

    ε_t[i, o, :] = D_t[pos(o)] ε_{t-1}[i, o, :] + u_t[i] F_t[o, :]

D = ∂h'[p]/∂h[p] with the weight ops that mix positions cut, F = ∂h'/∂y. Exact where the cut recurrence is the whole
recurrence: diagonal state-space models, LIF and ALIF layers without recurrent weights, leaky readouts.

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

from ..analysis._verdicts import diagonal
from ..engine import diagonal_bytes, diagonal_transport
from ._rule import Rule


def d_rtrl() -> Rule:
    """Diagonal RTRL: traces of size B·|θ|·S, exact where no weight op feeds a state back across positions.

    >>> print(d_rtrl())
    d_rtrl()
    """
    return Rule("d_rtrl", diagonal_transport, diagonal, diagonal_bytes)
