"""Synthetic gradients: truncated BPTT whose windows end in a learned estimate of what later losses owe to the state.

    g = ∂L/∂θ |h_0 fixed + γ ŝ(h_K) · ∂h_K/∂θ        ŝ(h) = M [h; 1]

M is trained alongside, on what each window finds at its own entry: ŝ(h_0) → ∂L/∂h_0 + γ ŝ(h_K) · ∂h_K/∂h_0. No trace is
carried, so memory is that of M, (H × (H + 1)) for H state scalars of a sample, whatever the number of parameters. M is
zero at first: the rule begins as truncated BPTT. The stream is taken to go on after every window. A new sequence
begins with `learner.init(learned=learner.learned(state))`, so that M goes on learning.

Jaderberg, Czarnecki, Osindero, Vinyals, Graves, Silver and Kavukcuoglu, "Decoupled neural interfaces using synthetic
gradients", ICML, 2017.
"""

from __future__ import annotations

from typing import Any

from ..analysis import Facts, Kind, Verdict
from ..analysis._verdicts import unless_trivial
from ..engine import Transport, synthetic_transport
from ._checks import check_decay, check_number
from ._rule import Rule


def synthetic(rate: float = 0.1, discount: float = 1.0) -> Rule:
    """Truncated BPTT with learned future credit at the window's exit; `rate` (0 to 2) is that of normalised LMS.

    >>> print(synthetic())
    synthetic(rate=0.1, discount=1.0)
    """
    rate = check_number("synthetic", "rate", rate, 0, 2, "between 0 and 2, where its learning is stable", ends="()")
    discount = check_decay("synthetic", "discount", discount, closed=True)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return synthetic_transport(facts, rate, discount, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        trivial = unless_trivial(facts, param)
        if trivial is not None:
            return trivial
        return Verdict(
            Kind.APPROXIMATE, "no trace is carried; what it does to later windows is credited by a learned estimate"
        )

    options = {"rate": rate, "discount": discount}
    return Rule("synthetic", transport, verdict, options=options)
