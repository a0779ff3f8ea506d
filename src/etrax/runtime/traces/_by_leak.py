"""A trace of filtered data with many leaks: an array for each slot, with a first axis of leaks (`Facts.leaky`).

    ε_r̃j ← P_j ε_v + κ_j^K ε_r̃j + Σ_k u_k ⊗ c_kj        for all leaks j, in one pass over the trace

Slots that stand for themselves have an axis of one there.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from .. import _site_math as site_math
from .._plan import Plan
from .._site_math import wide_dtype, widened
from .._transport import WindowData
from ..blocks import Entry, Matrix, Vector, row_times, shortened


def fits(plan: Plan, k: int, by_sample: bool) -> bool:
    return bool(plan.layout(k).counts)


def _shape(plan: Plan, k: int, s: int) -> tuple[int, ...]:
    """That of the array of a slot, with axes of one where it is equal along them."""
    alone = plan.narrow_shape(k, plan.along[k][s][1:]) if plan.is_narrow(k) else site_math.trace_shape(plan.site(k))
    return (*plan.layout(k).leads[s], *alone)


def zeros(plan: Plan, k: int) -> tuple[Array, ...]:
    """Zero trace of relation k, of the slots that it reaches."""
    return tuple(jnp.zeros(_shape(plan, k, s), plan.dtypes[k]) for s in plan.carried[k])


def _is_data(plan: Plan, k: int, entry: Array) -> bool:
    return plan.is_narrow(k) and plan.is_data(k, entry[0])


def _per_leak(f: Callable[..., Array], *arrays: Array) -> Array:
    """f of arrays with a first axis of leaks, which is of one where all leaks have the same."""
    count = max(a.shape[0] for a in arrays)
    alone = [a.shape[0] == 1 < count for a in arrays]
    axes = tuple(None if one else 0 for one in alone)
    return jax.vmap(f, axes)(*(a[0] if one else a for a, one in zip(arrays, alone, strict=True)))


def credit(
    plan: Plan, k: int, entries: tuple[Array, ...], signal: Vector, window: WindowData, fused: bool
) -> Array | None:
    """Σ_s g_s · ε_s of relation k, of the weight's shape, but for what `fused_rows` give if credit is `fused`."""
    terms = []
    for s, e in zip(plan.carried[plan.source(k)], entries, strict=True):
        g = signal[s]
        if g is None or (fused and _is_data(plan, k, e)):
            continue
        g = jnp.broadcast_to(g, (e.shape[0], *g.shape[1:])).astype(wide_dtype(e.dtype))
        terms.append(_applied(plan, k, e, g, window))
    return sum(terms[1:], terms[0]) if terms else None


def _applied(plan: Plan, k: int, entry: Array, g: Array, window: WindowData) -> Array:
    """Σ_j g_j · ε_j over leaks, of the weight's shape."""
    site = plan.site(k)
    apply_stack = site_math.kernels(site).apply_stack
    if apply_stack is None or entry.shape[1:] != site_math.trace_shape(site):
        return plan.of_weight(k, jax.vmap(lambda e, g: plan.apply(k, e, g, window.fixed))(entry, g).sum(0))
    return plan.of_weight(
        k, apply_stack(site.call, entry, _per_leak(lambda e, g: plan.met(k, e, g, window.fixed), entry, g))
    )


def fused_rows(
    plan: Plan, k: int, entries: tuple[Array, ...], signal: Vector, window: WindowData
) -> list[tuple[Array, Array]]:
    """Credit as data and cotangents of steps more, for arrays that are of the data's form."""
    site, out = plan.site(k), []
    for s, e in zip(plan.carried[plan.source(k)], entries, strict=True):
        g = signal[s]
        if g is not None and _is_data(plan, k, e) and site.rule.as_data is not None:
            bars = jnp.broadcast_to(g, (e.shape[0], *g.shape[1:]))
            for one, bar in zip(e, bars, strict=True):
                bar = plan.met(k, one, bar, window.fixed).astype(site.call.out.dtype)
                out.append((site.rule.as_data(site.call, one), bar))
    return out


def moved(
    plan: Plan, k: int, entries: tuple[Array, ...], window_product: Matrix, suffix_rows: Vector, window: WindowData
) -> tuple[Array, ...]:
    """P ε_0 + Σ_k u_k ⊗ c_k for one relation."""
    site, slots, at = plan.site(k), plan.carried[k], plan.at_op(k, window_product)
    data = [widened(a, wide_dtype(plan.dtypes[k])) for a in window.data(plan.relations[k].site)]
    new = []
    for n, s in enumerate(slots):
        row = [_spread(plan, k, at[s][t], e, window) for t, e in zip(slots, entries, strict=True)]
        c, entry = suffix_rows[s], entries[n]
        if plan.is_narrow(k) and c is not None:
            c = jnp.broadcast_to(c, (*c.shape[:2], *shortened(site.call.out.shape, plan.along[k][s][1:])))
        new.append(_moved(plan, k, row, entries, n, data, c, window).astype(entry.dtype))
    return tuple(new)


def _spread(plan: Plan, k: int, p: Entry, entry: Array, window: WindowData) -> Entry:
    """What a trace is multiplied by, broadcastable to it."""
    return None if p is None else _per_leak(lambda p, e: plan.at_trace(k, p, e, window.fixed), p, entry)


def _moved(
    plan: Plan, k: int, row: Vector, entries: tuple[Array, ...], n: int, data: list[Array], c: Array | None,
    window: WindowData,
) -> Array:  # fmt: skip
    """Σ_t row_t · entry_t + Σ_k u_k ⊗ c_k, in place of entry `n`."""
    site, fixed, steep = plan.site(k), window.fixed[plan.relations[k].site], plan.steep and plan.is_narrow(k)
    by_sample = None if steep or c is None else site_math.kernels(site).move_leaks
    value = None if by_sample is None or c is None else by_sample(site.call, row, entries, n, data, c)
    if value is not None:
        return value

    def of_leak(a: Entry, j: int) -> Entry:
        return None if a is None else a[min(j, a.shape[0] - 1)]

    each = []
    for j, entry in enumerate(entries[n]):
        line, traces = [of_leak(p, j) for p in row], [e[min(j, e.shape[0] - 1)] for e in entries]
        if c is None:
            value = row_times(line, traces, steep)
        else:
            value = site_math.moved(site, fixed, line, traces, n, data, c[:, min(j, c.shape[1] - 1)], steep)
        each.append(jnp.broadcast_to(jnp.zeros_like(entry) if value is None else value, entry.shape))
    return jnp.stack(each)


def summed(plan: Plan, k: int, entries: tuple[Array, ...], signal: Vector, window: WindowData) -> Array:
    """Σ_s g_s · ε_s of relation k, entry by entry, of the trace's shape."""
    out = plan.zeros(k)
    for s, e in zip(plan.carried[k], entries, strict=True):
        at = _spread(plan, k, signal[s], e, window)
        out = out if at is None else out + (at.astype(e.dtype) * e).sum(0)
    return out
