"""pp-prop: D-RTRL with its trace factored into one trace of the op's input and one of its output.

    x̂ ← α x̂ + u        f̂ ← α D f̂ + (1 − α) F        ε ≈ f̂ / (1 − α^t) ⊗ x̂

Memory B·(I + O·S) instead of B·I·O·S. The factorisation is justified for inputs of constant sign (spikes, rates);
elementwise weights (biases, leaks) are carried unfactored, at the same memory.

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..analysis import Facts, Kind, Verdict
from ..analysis._ranges import ANY
from ..analysis._verdicts import diagonal
from ..engine import factored_bytes, factored_transport
from ..ops import ALIGNED
from ._checks import check_decay
from ._rule import Rule


def pp_prop(decay: float = 0.9) -> Rule:
    """Factored diagonal traces: the cheapest rule with a trace; approximate for weights that meet data in a product.

    >>> print(pp_prop(0.95))
    pp_prop(decay=0.95)
    """
    decay = check_decay("pp_prop", "decay", decay)

    def verdict(facts: Facts, param: int) -> Verdict:
        plain = diagonal(facts, param)
        products = [j for j in facts.sites_of(param) if _factored(facts, j)]
        if plain.kind in (Kind.UNUSED, Kind.TRUNCATED) or not products:
            return plain
        names = ", ".join(facts.sites[j].label for j in products)
        text = f"the trace of {names} is factored into input and output, which assumes inputs of constant sign"
        text += f" ({_signs(facts, products)})"
        more = "" if plain.kind is Kind.EXACT else f"; moreover, {plain.reason}"
        return Verdict(Kind.APPROXIMATE, text + more)

    def transport(facts, sites=None, trace_dtype=None):
        return factored_transport(facts, decay, sites, trace_dtype)

    return Rule("pp_prop", transport, verdict, factored_bytes, {"decay": decay}, warns=_warns)


def _factored(facts: Facts, site: int) -> bool:
    return facts.sites[site].rule is not ALIGNED and facts.remembers(("y", site))


def _signs(facts: Facts, sites: Sequence[int]) -> str:
    if all(j in facts.ranges and facts.ranges[j].one_sign for j in sites):
        return "they are"
    if all(j in facts.ranges_of_positive and facts.ranges_of_positive[j].one_sign for j in sites):
        return "they are if the inputs of the step are never negative"
    return "these can change sign"


def _warns(facts: Facts, inputs: Sequence[Any] | None) -> list[str]:
    """Sites whose data can change sign, by the model itself or by the inputs that came."""
    sites = [j for j in range(len(facts.sites)) if ("y", j) in facts.live and _factored(facts, j)]
    loose = {j for j in sites if not facts.ranges_of_positive.get(j, ANY).one_sign}
    why = "which the model does not rule out"
    if inputs is not None:
        real = [np.asarray(a) for a in inputs if jnp.issubdtype(a.dtype, jnp.floating)]
        if not any((a < 0).any() and (a > 0).any() for a in real):
            return []
        loose = {j for j in sites if not facts.ranges.get(j, ANY).one_sign} - loose
        why = "as the inputs do"
    if not loose:
        return []
    names = ", ".join(dict.fromkeys(facts.sites[j].label for j in sorted(loose)))
    return [
        f"`pp_prop` factors the trace of {names}, but what these weights are multiplied with can change sign, {why}: "
        "the gradient may be far off. Check with `etrax.testing.compare`, or use `d_rtrl`."
    ]
