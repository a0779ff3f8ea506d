"""Random feedback local online learning, its transport: every recurrence is taken for one leak.

    ε_t = λ ε_{t-1} + u_t ⊗ F_t

F = ∂h'/∂y as in D-RTRL; the hidden Jacobian D is replaced by λ, the leak of the neurons (λ = 1 − 1/τ for a rate
network of time constant τ). The trace has one number per parameter for each state scalar that a weight op drives
directly: B·|θ|.

Over a window of K steps, with nothing but scalars to carry across it,

    ε_K = λ^K ε_0 + Σ_k u_k ⊗ λ^{K−k} F_k

A state scalar that an op does not drive within its own step never gets a trace, so none is kept for it
(docs/mathematics.md, 7).

Murray, "Local online learning in recurrent networks with random feedback", eLife 8, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._arguments import check_decay
from ..analysis import Facts, OpNode, StateNode
from ..engine import Plan, Transport, WindowData, add_to, by_site, bytes_of, plan_blocks
from ._rule import Rule
from ._verdicts import Verdict, replaced


def leaky_transport(
    facts: Facts, decay: float, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """RFLO: the trace of a relation is one array per state scalar that its op drives directly."""
    plan = plan_blocks(facts, sites, trace_dtype)
    driven = [_driven(plan, k) for k in range(len(plan.relations))]

    def init() -> list[tuple[Any, ...]]:
        return [tuple(plan.zeros(k) for _ in slots) for k, slots in enumerate(driven)]

    def record(leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> list[list[Any]]:
        _, rows = plan.probes(leaves, weights, ys)
        return [[rows[k][s] for s in slots] for k, slots in enumerate(driven)]

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for k, (r, entries) in enumerate(zip(plan.relations, trace, strict=True)):
            signal = plan.signals(k, g)
            for s, entry in zip(driven[k], entries, strict=True):
                add_to(out, r.site, plan.apply(k, entry, signal[s], window.fixed))
        return out

    def move(trace: Any, window: WindowData) -> Any:
        n = window.steps
        moved = []
        for k, entries in enumerate(trace):
            late = [faded(f, decay, plan.dtypes[k]) for f in window.records[k]]
            moved.append(tuple(decay**n * e + plan.outer(k, c, window) for e, c in zip(entries, late, strict=True)))
        return moved

    return Transport(
        init,
        record if plan.relations else None,
        credit,
        move,
        bytes_of(init),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace),
    )


def _driven(plan: Plan, k: int) -> list[int]:
    """Slots of the group that the op reaches within its own step."""
    r = plan.relations[k]
    return [
        s
        for s, slot in enumerate(plan.layout(k).slots)
        if (OpNode(r.site), StateNode(slot.leaf)) in plan.facts.edges.dep
    ]


def faded(a: Any, decay: float, dtype: Any) -> Any:
    """a_k · decay^(K−k)."""
    powers = decay ** np.arange(a.shape[0] - 1, -1, -1, dtype=np.float64)
    a = a.astype(dtype)
    return a * jnp.asarray(powers, jnp.real(a).dtype).reshape(-1, *[1] * (a.ndim - 1))


def rflo(decay: float) -> Rule:
    """RFLO: traces that leak by `decay` a step, whatever the recurrence does. Takes a leak of 0 up to 1.

    >>> print(rflo(0.9))
    rflo(decay=0.9)
    """
    decay = check_decay("rflo", "decay", decay, closed=True)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return leaky_transport(facts, decay, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return replaced(facts, param, f"the recurrence of every state is replaced by a leak of {decay:g}")

    return Rule("rflo", transport, verdict, options={"decay": decay})
