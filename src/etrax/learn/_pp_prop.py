"""pp-prop: D-RTRL with its trace factored into one trace of the op's input and one of its output.

    x̂ ← α x̂ + u        f̂ ← α D f̂ + (1 − α) F        ε ≈ f̂ / (1 − α^t) ⊗ x̂

Memory B·(I + O·S) instead of B·I·O·S. The factorisation is justified for inputs of constant sign (spikes, rates);
elementwise weights (biases, leaks) are carried unfactored, at the same memory.

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

from .._errors import EtraxError
from ..analysis import Facts, Kind, Verdict
from ..analysis._verdicts import diagonal
from ..engine import factored_bytes, factored_transport
from ..ops import ALIGNED
from ._rule import Rule


def pp_prop(decay: float = 0.9) -> Rule:
    """Factored diagonal traces: the cheapest rule with a trace; approximate for weights that meet data in a product.

    >>> print(pp_prop(0.95))
    pp_prop(decay=0.95)
    """
    if not 0 <= decay < 1:
        raise PpPropError(f"`pp_prop` takes a decay from 0 up to but not including 1, got {decay!r}.")

    def verdict(facts: Facts, param: int) -> Verdict:
        plain = diagonal(facts, param)
        products = [
            j for j in facts.sites_of(param) if facts.sites[j].rule is not ALIGNED and facts.remembers(("y", j))
        ]
        if plain.kind in (Kind.UNUSED, Kind.TRUNCATED) or not products:
            return plain
        names = ", ".join(facts.sites[j].label for j in products)
        text = f"the trace of {names} is factored into input and output, which assumes inputs of constant sign"
        more = "" if plain.kind is Kind.EXACT else f"; moreover, {plain.reason}"
        return Verdict(Kind.APPROXIMATE, text + more)

    def transport(facts, sites=None, trace_dtype=None):
        return factored_transport(facts, decay, sites, trace_dtype)

    return Rule("pp_prop", transport, verdict, factored_bytes, {"decay": decay})


class PpPropError(EtraxError, ValueError):
    """A decay outside [0, 1)."""
