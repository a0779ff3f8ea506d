"""A trace with one array for each slot, with axes of one where it is equal along them: for few states at a position.

Where an array has the form of the op's data (a factored trace), its credit is a row more of the window's own product.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from .. import _site_math as site_math
from .._plan import Plan
from .._site_math import wide_dtype, widened
from .._transport import WindowData
from ..blocks import Matrix, Vector, row_times, shortened, total


def fits(plan: Plan, k: int, by_sample: bool) -> bool:
    return True


def zeros(plan: Plan, k: int) -> tuple[Array, ...]:
    """Zero trace of relation k, of the slots that it reaches."""
    if not plan.is_narrow(k):
        return (plan.zeros(k),) * len(plan.carried[k])
    return tuple(jnp.zeros(plan.narrow_shape(k, plan.along[k][s]), plan.dtypes[k]) for s in plan.carried[k])


def _is_data(plan: Plan, k: int, entry: Array) -> bool:
    return plan.is_narrow(k) and plan.is_data(k, entry)


def credit(
    plan: Plan, k: int, entries: tuple[Array, ...], signal: Vector, window: WindowData, fused: bool
) -> Array | None:
    """Σ_s g_s · ε_s of relation k, of the weight's shape, but for what `fused_rows` give if credit is `fused`."""
    terms = [
        plan.apply(k, e, signal[s].astype(wide_dtype(e.dtype)), window.fixed)
        for s, e in zip(plan.carried[plan.source(k)], entries, strict=True)
        if signal[s] is not None and not (fused and _is_data(plan, k, e))
    ]
    return plan.of_weight(k, total(terms)) if terms else None


def fused_rows(
    plan: Plan, k: int, entries: tuple[Array, ...], signal: Vector, window: WindowData
) -> list[tuple[Array, Array]]:
    """Credit as data and cotangents of steps more, for arrays that are of the data's form."""
    site, out = plan.site(k), []
    for s, e in zip(plan.carried[plan.source(k)], entries, strict=True):
        if signal[s] is not None and _is_data(plan, k, e) and site.rule.as_data is not None:
            bar = plan.met(k, e, signal[s], window.fixed).astype(site.call.out.dtype)
            out.append((site.rule.as_data(site.call, e), bar))
    return out


def moved(
    plan: Plan, k: int, entries: tuple[Array, ...], window_product: Matrix, suffix_rows: Vector, window: WindowData
) -> tuple[Array, ...]:
    """P ε_0 + Σ_k u_k ⊗ c_k for one relation."""
    site, fixed = plan.site(k), window.fixed[plan.relations[k].site]
    data, slots, narrow = window.data(plan.relations[k].site), plan.carried[k], plan.is_narrow(k)
    at, dtype = plan.at_op(k, window_product), wide_dtype(plan.dtypes[k])
    at = [[at[s][t] for t in slots] for s in slots]
    move = site_math.kernels(site).move
    if move is not None and not narrow:
        met = [
            [None if p is None else plan.met(k, e, p, window.fixed) for p, e in zip(row, entries, strict=True)]
            for row in at
        ]
        none = jnp.zeros((window.steps, *site.y_shape), dtype)
        rows = [none if suffix_rows[s] is None else suffix_rows[s] for s in slots]
        return move(site.call, fixed, met, entries, data, rows)
    new: list[Array] = []
    one_step = window.steps == 1 and window.resets is None
    low_pass = plan.reader.low_pass(plan.relations[k].group) if one_step else {}
    for n, s in enumerate(slots):
        if s in low_pass and low_pass[s][0] in slots:
            # Over one step, a low-pass copy is the old one and what its slot has just become: x̄ ← κ x̄ + x'.
            original, kappa = low_pass[s]
            new.append((kappa * entries[n] + new[slots.index(original)]).astype(entries[n].dtype))
            continue
        row = [None if p is None else plan.at_trace(k, p, e, window.fixed) for p, e in zip(at[n], entries, strict=True)]
        c, entry, steep = suffix_rows[s], entries[n], plan.steep and narrow
        if c is None:
            value = row_times(row, entries, steep)
        else:
            if narrow:
                c = jnp.broadcast_to(c, (window.steps, *shortened(site.call.out.shape, plan.along[k][s])))
            u = [widened(a, c.dtype) for a in data]
            value = site_math.moved(site, fixed, row, entries, n, u, c, steep)
        value = jnp.zeros_like(entry) if value is None else value
        new.append(jnp.broadcast_to(value, entry.shape).astype(entry.dtype))
    return tuple(new)


def summed(plan: Plan, k: int, entries: tuple[Array, ...], signal: Vector, window: WindowData) -> Array:
    """Σ_s g_s · ε_s of relation k, entry by entry, of the trace's shape."""
    out = plan.zeros(k)
    for s, e in zip(plan.carried[k], entries, strict=True):
        at = plan.met(k, e, signal[s], window.fixed)
        spread = site_math.spread(plan.site(k), window.fixed[plan.relations[k].site], at)
        out = out + spread.astype(e.dtype) * e
    return out
