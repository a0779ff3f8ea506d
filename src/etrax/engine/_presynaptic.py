"""Transport of presynaptic data alone: x̂ ← λ x̂ + u, one trace per weight op, whatever its outputs do.

    ε ≈ F ⊗ x̂

F = ∂h'/∂y is that of the first step of the window in which the trace is used: the postsynaptic side is not
remembered at all. Over a window x̂_K = λ^K x̂_0 + Σ_k λ^{K−k} u_k. An elementwise weight meets no data: its u is 1,
and one number serves all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from .._compat import common_dtype
from ..analysis import Facts
from ..ops import ALIGNED
from . import _site_math as site_math
from ._leaky import faded
from ._plan import plan_blocks
from ._transport import Transport, WindowData, add_to, by_site, bytes_of


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
