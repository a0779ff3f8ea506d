"""SnAp: the sparse n-step approximation of RTRL, and OSTL, which is its first member.

    J_t = M_n ∘ (A_t J_{t-1} + C_t),   A = ∂h'/∂h,   C = ∂h'/∂θ   of the step as it is, with nothing cut

M_n keeps the influence of a weight on the positions that it reaches in n steps. With n = 1 that is its own position:

    ε_t = D_t ε_{t-1} + u_t ⊗ F_t,   D[p] = ∂h'[p]/∂h[p],   F[o] = ∂h'[pos(o)]/∂y[o]

as in D-RTRL, but with a neuron's own recurrent weights and gates counted in. With n large enough to reach everything
it is RTRL. The blocks of n = 1 take one pull-back for every neuron that a step joins with others; larger n move the
trace step by step.

Menick, Elsen, Evci, Osindero, Simonyan and Graves, "Practical real time recurrent learning with a sparse
approximation", ICLR, 2021. Bohnstingl, Woźniak, Pantazi and Eleftheriou, "Online spatio-temporal learning in deep
neural networks", IEEE TNNLS 34, 2023.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ..analysis import Facts, Kind, Verdict, reach_of, steps_to_fill
from ..analysis._verdicts import diagonal, unless_trivial
from ..engine import Transport, reaching_transport, whole_transport
from ._checks import ArgumentError, short
from ._rule import Rule


def snap(n: int) -> Rule:
    """SnAp-n: influence on what a weight reaches in n steps; exact where that is everything.

    >>> print(snap(2))
    snap(n=2)
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ArgumentError(
            f"`snap` takes a whole number of steps, at least 1, got {short(n)}. SnAp-0 is `tbptt` with windows of "
            "one step."
        )
    n = int(n)
    if n == 1:
        return Rule("snap", whole_transport, _own_position, options={"n": 1})

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return reaching_transport(facts, n, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return _within(facts, param, n)

    return Rule("snap", transport, verdict, options={"n": n})


def ostl() -> Rule:
    """Online spatio-temporal learning: each position's own share of the whole recurrence. The same as `snap(1)`.

    >>> print(ostl())
    ostl()
    """
    return Rule("ostl", whole_transport, _own_position)


def _own_position(facts: Facts, param: int) -> Verdict:
    plain = diagonal(facts, param)
    if plain.kind is not Kind.APPROXIMATE:
        return plain  # nothing meets another position, or there is no trace
    what = "each position keeps its own share of the whole recurrence; what positions do to each other is not carried"
    return Verdict(Kind.APPROXIMATE, f"{what}: {plain.reason}")


def _within(facts: Facts, param: int, n: int) -> Verdict:
    trivial = unless_trivial(facts, param)
    if trivial is not None:
        return trivial
    sites = [j for j in facts.sites_of(param) if ("y", j) in facts.live and facts.remembers(("y", j))]
    needed = max(steps_to_fill(facts, j) for j in sites)
    if needed > n:
        names = ", ".join(dict.fromkeys(facts.sites[j].label for j in sites if steps_to_fill(facts, j) > n))
        if not any(reach_of(facts, j, n).nnz for j in sites):
            return Verdict(
                Kind.TRUNCATED, f"{names} reaches no position in {n} steps; `snap({needed})` would carry all of it"
            )
        more = f"{names} reaches more than that, all of it in {needed}: `snap({needed})` would be exact"
        return Verdict(Kind.APPROXIMATE, f"the influence on positions reached in {n} steps is carried; {more}")
    if facts.nonlinear:
        return Verdict(Kind.APPROXIMATE, f"all that it reaches is carried; {facts.nonlinear[0].text}")
    return Verdict(
        Kind.EXACT, f"all that it ever reaches, it reaches in {needed} step{'s' * (needed > 1)}, and {n} are carried"
    )
