"""Online training through time: a trace of presynaptic data only.

    x̂_t = λ x̂_{t-1} + u_t        ε ≈ F ⊗ x̂

The hidden Jacobian is replaced by the leak λ of the membrane, and the postsynaptic factor F is that of the present:
for LIF neurons whose reset passes no gradient nothing but F's change over time is lost. One trace per weight op
serves all of its outputs: B·I.

F is that of the first step of the window in which the trace is used. Over a window x̂_K = λ^K x̂_0 + Σ_k λ^{K−k} u_k. An
elementwise weight meets no data: its u is 1, and one number serves all (docs/mathematics.md, 7).

Xiao, Meng, Zhang, He and Lin, "Online training through time for spiking neural networks", NeurIPS, 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from .._arguments import check_decay
from .._compat import common_dtype
from ..analysis import Facts
from ..engine import Transport, WindowData, add_to, by_site, bytes_of, plan_blocks, site_math
from ..ops import ALIGNED
from ._rflo import faded
from ._rule import Rule
from ._verdicts import Verdict, replaced


def presynaptic_transport(
    facts: Facts, decay: float, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """OTTT: a trace of the data of each weight op, and the trace of a constant 1."""
    plan = plan_blocks(facts, sites, trace_dtype)
    kinds = {
        r.site: d for r, d in zip(plan.relations, plan.dtypes, strict=True) if facts.sites[r.site].rule is not ALIGNED
    }
    elementwise = len(kinds) < len({r.site for r in plan.relations})

    def init() -> Any:
        data = {j: site_math.feature_zeros(facts.sites[j], d) for j, d in kinds.items()}
        return data, jnp.zeros((), jnp.finfo(common_dtype(*plan.dtypes)).dtype) if elementwise else ()

    def record(leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> list[list[Any]]:
        return plan.probes(leaves, weights, ys)[1]

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        data, one = trace
        out: dict[int, Any] = {}
        for k, r in enumerate(plan.relations):
            site = facts.sites[r.site]
            first = [site_math.sum_loops(site, f[:1])[0].astype(plan.dtypes[k]) for f in window.records[k]]
            term: Any = sum(f * s for f, s in zip(first, plan.signals(k, g), strict=True))
            if r.site in kinds:
                term = site_math.feature_grad(site, window.fixed[r.site], data[r.site], term)
            else:
                term = term * one.astype(jnp.real(term).dtype)
            add_to(out, r.site, term)
        return out

    def move(trace: Any, window: WindowData) -> Any:
        data, one = trace
        n = window.steps
        moved = {}
        for j, old in data.items():
            features = site_math.features(facts.sites[j], window.fixed[j], window.data(j))
            moved[j] = decay**n * old + faded(features, decay, old.dtype).sum(0)
        return moved, decay**n * one + faded(jnp.ones(n), decay, one.dtype).sum(0) if elementwise else ()

    return Transport(
        init,
        record if plan.relations else None,
        credit,
        move,
        bytes_of(init),
        parts=lambda trace: by_site(trace[0], trace[0].values()),
    )


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
