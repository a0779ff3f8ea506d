"""Online training through time: a trace of presynaptic data only.

    x̂_t = λ x̂_{t-1} + u_t        ε ≈ F ⊗ x̂

The hidden Jacobian is replaced by the leak λ of the membrane, and the postsynaptic factor F is that of the present:
for LIF neurons whose reset passes no gradient nothing but F's change over time is lost. One trace per weight op
serves all of its outputs: B·I.

Xiao, Meng, Zhang, He and Lin, "Online training through time for spiking neural networks", NeurIPS, 2022.
"""

from __future__ import annotations

from typing import Any

from ..analysis import Facts, Verdict
from ..engine import Transport, presynaptic_transport
from ._checks import check_decay
from ._rflo import replaced
from ._rule import Rule


def ottt(decay: float) -> Rule:
    """OTTT: the data of each weight op, remembered with a leak of `decay` a step (that of the membrane).

    >>> print(ottt(0.5))
    ottt(decay=0.5)
    """
    decay = check_decay("ottt", "decay", decay, closed=True)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return presynaptic_transport(facts, decay, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        what = f"only the data of its weight op are remembered, with a leak of {decay:g}"
        return replaced(facts, param, f"{what}, and not what its outputs did to the states")

    return Rule("ottt", transport, verdict, options={"decay": decay})
