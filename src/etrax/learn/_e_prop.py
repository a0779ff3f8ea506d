"""e-prop: the trace of D-RTRL, low-pass filtered, and a choice of learning signal.

    ε_t = D_t ε_{t-1} + u_t ⊗ F_t        ε̄_t = κ ε̄_{t-1} + ε_t

The filter κ stands for a readout that leaks by κ and is not itself a state of the model: an error at time t is then due to
all that the readout has summed. With κ = 0 and the symmetric signal, e-prop is D-RTRL.

Bellec, Scherr, Subramoney, Hajek, Salaj, Legenstein and Maass, "A solution to the learning dilemma for recurrent networks of
spiking neurons", Nature Communications 11, 2020.
"""

from __future__ import annotations

from typing import Any

from ..analysis import Facts, Verdict
from ..analysis._verdicts import diagonal
from ..engine import Transport, diagonal_transport, filtered_transport
from ._checks import check_decay
from ._rflo import replaced
from ._rule import Rule


def e_prop(kappa: float = 0.0) -> Rule:
    """e-prop.

    >>> print(e_prop(0.9))
    e_prop(kappa=0.9)
    """
    check_decay("e_prop", "kappa", kappa)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        if kappa == 0:
            return diagonal_transport(facts, sites, trace_dtype)
        return filtered_transport(facts, kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        if kappa == 0:
            return diagonal(facts, param)
        return replaced(facts, param, f"its trace is low-pass filtered by {kappa:g}, which BPTT does not do")

    return Rule("e_prop", transport, verdict, lambda facts: transport(facts).nbytes, {"kappa": kappa})
