"""Windows of learning signals: a signal b_t on a group's activity z_t in place of ∂ℓ_t/∂z_t (MATH.md §5).

    g = Σ_t b_t · ē_t        ē_t = κ ē_{t-1} + e_t        e_t = dz_t/dw = r_t · ε_{t-1} + q_t ⊗ u_t

ε is the trace of D-RTRL, r = ∂z/∂h and q = ∂z/∂y those of the cut step: e_t is the eligibility of the activity itself, step t
included. In closed form, by one reverse recursion over the window with b̃_k = b_k + κ b̃_{k+1}:

    a_{k−1} = r_k b̃_k + D_kᵀ a_k,   a_K = 0        g = Σ_k u_k ⊗ (q_k b̃_k + F_k · a_k)  +  a_0 · ε_0  +  κ b̃_1 ē_0

The same recursion with κ^{K−k} in the place of b̃_k moves ē. Groups that the outputs show directly take their own error, unfiltered. An op
whose trace cannot be carried by position has the derivative of one step; what reaches no state keeps the loss gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..analysis import Facts, find_visible
from . import _site_math as site_math
from ._blocks import act_transposed
from ._diagonal import diagonal_transport
from ._plan import Plan, add_to, bytes_of, plan_blocks
from ._source import Source, moment_of, on_activity, show
from ._transport import Transport, WindowData
from ._window import live_sites


def guided_transport(
    facts: Facts, source: Source, kappa: float = 0.0, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """The trace of D-RTRL under a learning signal; if κ > 0, the filtered eligibility of the activity beside it."""
    guide = _guide(facts, source, sites, trace_dtype)
    plan, base = guide.plan, diagonal_transport(facts, sites, trace_dtype)
    filtered = [k for k in range(len(plan.relations)) if kappa]

    def init() -> Any:
        return base.init(), [plan.zeros(k) for k in filtered], source.init()

    def record(leaves: Sequence[Any], weights: Sequence[Any]) -> Any:
        return base.record(leaves, weights) if base.record else ([], []), guide.eligibility(leaves, weights)

    def signal(trace: Any, leaves: Sequence[Any], weights: Sequence[Any], along: Any, loss_of: Any) -> Any:
        return guide.signal(trace[2], leaves, weights, along, loss_of)

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        signals, direct, now, _ = window.signals
        out: dict[int, Any] = {}
        late, entry = _filter(signals, kappa)
        rows, ops = _merge(window.records[1], direct)
        _collect(plan, trace[0], _backward(plan, window, rows, ops, late), window, out)
        for e, k in zip(trace[1], filtered, strict=True):
            b = entry[plan.relations[k].group]
            if b is not None:
                add_to(out, plan.relations[k].site, plan.apply(k, e, plan.gathers[k](b).astype(e.dtype), window.fixed))
        for j, bar in now.items():
            add_to(out, j, site_math.grad(facts.sites[j], window.fixed[j], window.data(j), bar))
        return out

    def move(trace: Any, window: WindowData) -> Any:
        moved = trace[1]
        if filtered:
            powers = kappa ** np.arange(window.steps - 1, -1, -1, dtype=np.float64)
            late = [jnp.broadcast_to(jnp.asarray(powers)[:, None], (window.steps, g.num_positions)) for g in facts.groups]
            a, c = _backward(plan, window, *window.records[1], late)
            moved = [_eligible(plan, k, kappa**window.steps * e, trace[0][k], a, c, window) for e, k in zip(moved, filtered, strict=True)]
        inner = window._replace(records=window.records[0])
        own = source.move(trace[2], window.signals[3]) if window.signals else trace[2]
        return base.move(trace[0], inner), moved, own

    return Transport(init, record, credit, move, bytes_of(init), signal, guide.sites)
