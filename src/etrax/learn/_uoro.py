"""Unbiased online recurrent optimisation: a random rank-one estimate of the influence matrix.

    dh/dθ ≈ h̃ θ̃ᵀ        h̃ ← ρ_0 A h̃ + ρ_1 ν        θ̃ ← θ̃ / ρ_0 + (νᵀ C) / ρ_1

with random signs ν. The estimate equals RTRL's matrix on average, for any model, at B·(H + |θ|) numbers; single
estimates are noisy, so it wants small learning rates. Within a window the gradient is exact: longer windows have
less noise.

Tallec and Ollivier, "Unbiased online recurrent optimization", arXiv:1702.05043, 2017.
"""

from __future__ import annotations

from typing import Any

from ..analysis import Facts, Kind, Verdict
from ..analysis._verdicts import unless_trivial
from ..engine import Transport, rank_one_transport
from ._checks import check_key
from ._rule import Rule


def uoro(key: Any) -> Rule:
    """UORO. `key` (a number or a `jax.random` key) starts the signs; each learner state carries its own from there.

    >>> print(uoro(0))
    uoro()
    """
    key = check_key("`uoro`", key)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return rank_one_transport(facts, key, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        trivial = unless_trivial(facts, param)
        if trivial is not None:
            return trivial
        if facts.nonlinear:
            return Verdict(Kind.APPROXIMATE, f"a random estimate of rank one is carried; {facts.nonlinear[0].text}")
        return Verdict(
            Kind.APPROXIMATE, "a random estimate of rank one is carried: it equals BPTT on average, not each time"
        )

    return Rule("uoro", transport, verdict)
