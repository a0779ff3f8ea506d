"""A trace with one array (S, …) for all slots: for many states, or where an op's family moves it sample by sample."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from .. import _site_math as site_math
from .._layout import closure
from .._plan import Plan, wide_dtype, widened
from .._transport import WindowData
from ..blocks import Matrix, Vector, full_times, is_shift, power


def fits(plan: Plan, k: int, by_sample: bool) -> bool:
    """Of few states, only where the trace is held by sample, and the same for no two outputs."""
    return plan.layout(k).stacked or (by_sample and not plan.is_narrow(k) and _moved_by_sample(plan, k))


def _moved_by_sample(plan: Plan, k: int) -> bool:
    """Whether the op's family holds the traces of several states as one array."""
    site = plan.site(k)
    return site_math.kernels(site).stacks(site.call, plan.layout(k).size)


def zeros(plan: Plan, k: int) -> Array:
    """Zero trace of relation k."""
    zero = plan.zeros(k)
    return jnp.zeros((plan.layout(k).size, *zero.shape), zero.dtype)


def credit(plan: Plan, k: int, entries: Array, signal: Vector, window: WindowData, fused: bool) -> Array:
    """Σ_s g_s · ε_s of relation k, of the weight's shape."""
    site, at = plan.site(k), jnp.asarray(signal).astype(wide_dtype(entries.dtype))
    apply_stack = site_math.kernels(site).apply_stack
    if _moved_by_sample(plan, k) and apply_stack is not None:
        at = jax.vmap(lambda e, s: plan.met(k, e, s, window.fixed))(entries, at)
        return plan.of_weight(k, apply_stack(site.call, entries, at))
    return jax.vmap(lambda e, s: plan.apply(k, e, s, window.fixed))(entries, at).sum(0)


def fused_rows(plan: Plan, k: int, entries: Array, signal: Vector, window: WindowData) -> list[tuple[Array, Array]]:
    return []


def moved(plan: Plan, k: int, entries: Array, window_product: Matrix, suffix_rows: Vector, window: WindowData) -> Array:
    """P ε_0 + Σ_k u_k ⊗ c_k, with P only where it is not always zero."""
    layout, site, dtype = plan.layout(k), plan.site(k), wide_dtype(plan.dtypes[k])
    links = power(layout.links, window.steps)
    at = _at_op(plan, k, window_product)
    c = _stacked_rows(plan, k, suffix_rows, window, dtype)  # (K, S, …)
    # A shift reads each slot at another place, which costs less than a product by sample.
    shift = layout.stacked and is_shift(links)
    move_stack = site_math.kernels(site).move_stack
    if _moved_by_sample(plan, k) and move_stack is not None and not shift:
        data = [widened(u, c.dtype) for u in window.data(plan.relations[k].site)]
        at = jax.vmap(jax.vmap(lambda p, e: plan.met(k, e, p, window.fixed)), (0, None))(at, entries)
        return move_stack(site.call, at, entries, data, jnp.moveaxis(c, 1, 0))
    spread = jax.vmap(jax.vmap(lambda p, e: plan.at_trace(k, p, e, window.fixed)), (0, None))(at, entries)
    kept = full_times(spread, entries, closure(layout.links) if links is None else links)
    return (kept + jax.vmap(lambda c: plan.outer(k, c, window), 1)(c)).astype(entries.dtype)


def _at_op(plan: Plan, k: int, window_product: Matrix) -> Array:
    """(S, S, …): a product of blocks at the elements of y in a trace."""
    full = plan.algebra(k).full(window_product, plan.layout(k).shape)
    return jax.vmap(jax.vmap(plan.gathers[k]))(full)


def _stacked_rows(plan: Plan, k: int, rows: Vector, window: WindowData, dtype: jnp.dtype) -> Array:
    if plan.layout(k).stacked:
        return rows
    some = next(c for c in rows if c is not None)
    return jnp.stack([jnp.zeros_like(some, dtype) if c is None else c for c in rows], 1)


def summed(plan: Plan, k: int, entries: Array, signal: Vector, window: WindowData) -> Array:
    """Σ_s g_s · ε_s of relation k, entry by entry, of the trace's shape."""
    at = jax.vmap(lambda s, e: plan.at_trace(k, s, e, window.fixed))(jnp.asarray(signal), entries)
    return (at.astype(entries.dtype) * entries).sum(0)
