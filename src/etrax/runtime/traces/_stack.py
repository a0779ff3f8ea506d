"""A trace with one array (S, …) for all slots: for many states, or where an op's family moves it sample by sample.

Of many states it has axes of one where blocks and F are equal along them: E ← E A + u ⊗ k serves all rows of a memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .. import _site_math as site_math
from .._layout import closure
from .._plan import Plan
from .._site_math import wide_dtype, widened
from .._transport import WindowData
from ..blocks import Matrix, Vector, full_times, is_shift, power


def fits(plan: Plan, k: int, by_sample: bool) -> bool:
    """Whether one array holds all slots: always of many states; of few, where the op's family moves it by sample."""
    if plan.layout(k).stacked:
        return True
    return by_sample and not plan.is_narrow(k) and _moved_by_sample(plan, k) and _is_dense(plan, k)


def _is_dense(plan: Plan, k: int) -> bool:
    """Whether most slots of a trace act on each other, so that a product of matrices has few zeros to multiply."""
    slots = plan.carried[k]
    links = closure(plan.layout(k).links)[np.ix_(slots, slots)]
    return 2 * int(links.sum()) > links.size


def _moved_by_sample(plan: Plan, k: int) -> bool:
    """Whether the op's family holds the traces of several states as one array."""
    site = plan.site(k)
    return site_math.kernels(site).stacks(site.call, plan.layout(k).size)


def _slots(plan: Plan, k: int) -> np.ndarray | slice:
    """The slots that a trace has: those that its op reaches, of many; all of few, which families move together."""
    slots = plan.carried[k]
    return np.array(slots) if plan.layout(k).stacked and len(slots) < plan.layout(k).size else slice(None)


def zeros(plan: Plan, k: int) -> Array:
    """Zero trace of relation k, with axes of one where it is equal along them."""
    along = plan.even_along(k)
    shape = site_math.trace_shape(plan.site(k)) if along is None else plan.narrow_shape(k, along)
    return jnp.zeros((np.arange(plan.layout(k).size)[_slots(plan, k)].size, *shape), plan.dtypes[k])


def credit(plan: Plan, k: int, entries: Array, signal: Vector, window: WindowData, fused: bool) -> Array | None:
    """Σ_s g_s · ε_s of relation k, of the weight's shape, but for what `fused_rows` give if credit is `fused`."""
    if fused and _is_data(plan, k, entries):
        return None
    site, at = plan.site(k), jnp.asarray(signal)[_slots(plan, k)].astype(wide_dtype(entries.dtype))
    apply_stack = site_math.kernels(site).apply_stack
    if _moved_by_sample(plan, k) and plan.even_along(k) is None and apply_stack is not None:
        at = jax.vmap(lambda e, s: plan.met(k, e, s, window.fixed))(entries, at)
        return plan.of_weight(k, apply_stack(site.call, entries, at))
    return plan.of_weight(k, jax.vmap(lambda e, s: plan.apply(k, e, s, window.fixed))(entries, at).sum(0))


def _is_data(plan: Plan, k: int, entries: Array) -> bool:
    return plan.even_along(k) is not None and plan.is_data(k, entries[0])


def fused_rows(plan: Plan, k: int, entries: Array, signal: Vector, window: WindowData) -> list[tuple[Array, Array]]:
    """Credit as data and cotangents of steps more, for a trace that is of the data's form."""
    site = plan.site(k)
    if not _is_data(plan, k, entries) or site.rule.as_data is None:
        return []
    bars = jnp.asarray(signal)[_slots(plan, k)].astype(site.call.out.dtype)
    return [(site.rule.as_data(site.call, e), bar) for e, bar in zip(entries, bars, strict=True)]


def moved(plan: Plan, k: int, entries: Array, window_product: Matrix, suffix_rows: Vector, window: WindowData) -> Array:
    """P ε_0 + Σ_k u_k ⊗ c_k, with P only where it is not always zero."""
    layout, site, dtype, slots = plan.layout(k), plan.site(k), wide_dtype(plan.dtypes[k]), _slots(plan, k)
    links = power(layout.links, window.steps)[slots][:, slots]
    at = _at_op(plan, k, window_product)[slots][:, slots]
    c = _stacked_rows(plan, k, suffix_rows, window, dtype)[:, slots]  # (K, S, …)
    # A shift reads each slot at another place, which costs less than a product by sample; so does one matrix product.
    other_way = k in plan.even_gathers or (layout.stacked and is_shift(links))
    move_stack = site_math.kernels(site).move_stack
    if _moved_by_sample(plan, k) and move_stack is not None and not other_way:
        data = [widened(u, c.dtype) for u in window.data(plan.relations[k].site)]
        at = jax.vmap(jax.vmap(lambda p, e: plan.met(k, e, p, window.fixed)), (0, None))(at, entries)
        return move_stack(site.call, at, entries, data, jnp.moveaxis(c, 1, 0))
    spread = jax.vmap(jax.vmap(lambda p, e: plan.at_trace(k, p, e, window.fixed)), (0, None))(at, entries)
    moved_trace = full_times(spread, entries, links)
    return (moved_trace + jax.vmap(lambda c: plan.outer(k, c, window), 1)(c)).astype(entries.dtype)


def _at_op(plan: Plan, k: int, window_product: Matrix) -> Array:
    """(S, S, …): a product of blocks at the elements of y in a trace, with axes of one where its op can take them."""
    if k not in plan.even_gathers:
        full = plan.algebra(k).full(window_product, plan.layout(k).shape)
        return jax.vmap(jax.vmap(plan.gathers[k]))(full)
    at, site = plan.at_op(k, window_product), plan.site(k)
    return at if site.rule.narrow else jnp.broadcast_to(at, (*at.shape[:2], *site_math.output_shape(site)))


def _stacked_rows(plan: Plan, k: int, rows: Vector, window: WindowData, dtype: jnp.dtype) -> Array:
    if plan.layout(k).stacked:
        return rows
    some = next(c for c in rows if c is not None)
    return jnp.stack([jnp.zeros_like(some, dtype) if c is None else c for c in rows], 1)


def summed(plan: Plan, k: int, entries: Array, signal: Vector, window: WindowData) -> Array:
    """Σ_s g_s · ε_s of relation k, entry by entry, of the trace's shape."""
    signal = jnp.asarray(signal)[_slots(plan, k)]
    at = jax.vmap(lambda s, e: plan.at_trace(k, s, e, window.fixed))(signal, entries)
    return (at.astype(entries.dtype) * entries).sum(0)
