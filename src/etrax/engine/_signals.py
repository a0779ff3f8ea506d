"""Windows of learning signals: a signal s_t per step in place of ∂ℓ_t/∂h_t (MATH.md §5).

    g = Σ_t s_t · ε̄_t,   ε_t = D_t ε_{t-1} + u_t ⊗ F_t,   ε̄_t = κ ε̄_{t-1} + ε_t

In closed form, by one reverse recursion over the window:

    b_k = s_k + κ b_{k+1}        a_k = b_k + D_{k+1}ᵀ a_{k+1}
    g = Σ_k u_k ⊗ (F_k · a_k)  +  (D_1ᵀ a_1) · ε_0  +  κ b_1 · ε̄_0

A source gives the signal on a group's *activity*, what the step itself reads of its new state; from there the step's
own derivative takes it to the states (the pseudo-derivative of a spike). An op whose trace cannot be carried by
position has the immediate derivative under the signal; what reaches no state keeps the gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..analysis import Facts, OpenStep, find_visible
from . import _site_math as site_math
from ._blocks import act_transposed
from ._diagonal import diagonal_transport
from ._filtered import filtered_transport
from ._plan import Plan, add_to, bytes_of, plan_blocks
from ._source import Source, state_signals
from ._transport import Transport, WindowData
from ._window import live_sites


def guided_transport(
    facts: Facts, source: Source, kappa: float = 0.0, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """The trace of D-RTRL (filtered if κ > 0) under a learning signal."""
    plan = plan_blocks(facts, sites, trace_dtype)
    base = (
        filtered_transport(facts, kappa, sites, trace_dtype) if kappa else diagonal_transport(facts, sites, trace_dtype)
    )
    guided = frozenset(j for j in live_sites(facts) if (sites is None or j in sites) and facts.remembers(("y", j)))
    untraced = sorted(guided - {r.site for r in plan.relations})
    visible = find_visible(facts)

    def init() -> Any:
        return base.init(), source.init()

    def signal(trace: Any, leaves: Sequence[Any], weights: Sequence[Any], along: Any, loss_of: Any) -> Any:
        leaves, weights, own = lax.stop_gradient((list(leaves), list(weights), trace[1]))
        on_states, memo = state_signals(visible, source, own, leaves, along, loss_of)
        return on_states, _immediate(facts, untraced, leaves, weights, on_states), memo

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        on_states, now, _ = window.signals
        out = _credit(plan, kappa, trace[0], on_states, window) if plan.relations else {}
        for j, bar in now.items():
            add_to(out, j, site_math.grad(facts.sites[j], window.fixed[j], window.data(j), bar))
        return out

    def move(trace: Any, window: WindowData) -> Any:
        own = source.move(trace[1], window.signals[2]) if window.signals else trace[1]
        return base.move(trace[0], window), own

    return Transport(init, base.record, credit, move, bytes_of(init), signal, guided)


def _immediate(
    facts: Facts, sites: Sequence[int], leaves: Sequence[Any], weights: Sequence[Any], bars: Mapping[int, Any]
) -> dict[int, Any]:
    """The signal at the outputs of ops, within their own step and with nothing cut."""
    if not sites:
        return {}
    opened = OpenStep(facts.step, facts.sites, frozenset())
    deltas = {j: jnp.zeros(facts.sites[j].y_shape, facts.sites[j].call.out.dtype) for j in sites}

    def run(deltas: dict[int, Any]) -> dict[int, Any]:
        outs, _ = opened(leaves, [deltas.get(j) for j in range(len(facts.sites))], weights)
        return {i: outs[i] for i in bars}

    return jax.vjp(run, deltas)[1](dict(bars))[0]


def _credit(plan: Plan, kappa: float, trace: Any, on_states: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
    blocks, rows = window.records
    layouts = plan.probes.layouts
    signals = [jax.vmap(lay.read)({i: on_states[i] for i in lay.group.leaves}) if lay.size else [] for lay in layouts]
    kinds = [[jnp.promote_types(s.dtype, jnp.float32) for s in found] for found in signals]
    signals = [[s.astype(d) for s, d in zip(found, ds, strict=True)] for found, ds in zip(signals, kinds, strict=True)]

    def body(carry: Any, step: Any) -> tuple[Any, list[list[Any]]]:
        later, filtered = carry  # D_{k+1}ᵀ a_{k+1}, κ b_{k+1}
        s, d = step
        b = [[x + y for x, y in zip(one, two, strict=True)] for one, two in zip(s, filtered, strict=True)]
        a = [[x + y for x, y in zip(one, two, strict=True)] for one, two in zip(b, later, strict=True)]
        onward = [_like(act_transposed(m, one), one) for m, one in zip(d, a, strict=True)]
        return (onward, [[kappa * x for x in one] for one in b]), a

    zeros = [[jnp.zeros_like(s[0]) for s in found] for found in signals]
    (entry, entry_filtered), a = lax.scan(body, (zeros, zeros), (signals, blocks), reverse=True)
    out: dict[int, Any] = {}
    for k, r in enumerate(plan.relations):
        plain, filtered = trace[k] if kappa else (trace[k], ())
        c = sum(f * _over_steps(plan, k, x, f) for f, x in zip(rows[k], a[r.group], strict=True))
        add_to(out, r.site, plan.grad(k, c, window))
        for entries, signal in ((plain, entry), (filtered, entry_filtered)):
            for e, x in zip(entries, signal[r.group] if entries else (), strict=True):
                add_to(out, r.site, plan.apply(k, e, plan.gathers[k](x).astype(e.dtype), window.fixed))
    return out


def _like(found: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Arrays of the given types; zeros for None."""
    return [jnp.zeros_like(x) if y is None else y.astype(x.dtype) for y, x in zip(found, like, strict=True)]


def _over_steps(plan: Plan, k: int, x: Any, like: Any) -> Any:
    """(steps, positions…) at the elements of y, beside an array with axes of inner loops behind the steps."""
    found = jax.vmap(plan.gathers[k])(x)
    return found.reshape(found.shape[0], *[1] * (like.ndim - found.ndim), *found.shape[1:])
