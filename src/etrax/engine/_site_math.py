"""The pieces of an op family (`OpRule`) at a site: inner loops folded into the window, scanned weights mapped over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..analysis import WeightSite


def _fold(site: WeightSite, a: Any) -> Any:
    """(k, loops…, …) → (k·loops, …)."""
    n = 1 + len(site.loops)
    return a.reshape(-1, *a.shape[n:])


def trace_shape(site: WeightSite) -> tuple[int, ...]:
    shape = site.rule.trace_shape(site.call)
    return (*(n for _, n in site.loops), *shape) if site.scanned else tuple(shape)


def _over(site: WeightSite, f: Any, in_axes: Sequence[Any]) -> Any:
    return jax.vmap(f, in_axes=tuple(in_axes)) if site.scanned else f


def outer(site: WeightSite, fixed: Any, u: Sequence[Any], c: Any) -> Any:
    """Σ_k ∂y_k/∂w · c_k, of trace shape."""
    if site.scanned:
        return jax.vmap(lambda u, c: site.rule.outer(site.call, fixed, u, c), in_axes=(1, 1))(tuple(u), c)
    return site.rule.outer(site.call, fixed, [_fold(site, a) for a in u], _fold(site, c))


def grad(site: WeightSite, fixed: Any, u: Sequence[Any], g: Any) -> Any:
    """Σ_k (∂y_k/∂w)ᵀ g_k, of w's shape."""
    if site.scanned:
        return jax.vmap(lambda u, g: site.rule.grad(site.call, fixed, u, g), in_axes=(1, 1))(tuple(u), g)
    return site.rule.grad(site.call, fixed, [_fold(site, a) for a in u], _fold(site, g))


def spread(site: WeightSite, fixed: Any, p: Any) -> Any:
    """Values per element of y, broadcastable to trace shape."""
    return _over(site, lambda p: site.rule.spread(site.call, fixed, p), (0,))(p)


def apply(site: WeightSite, fixed: Any, trace: Any, g: Any) -> Any:
    """Σ over elements of y of trace · g, of w's shape."""
    return _over(site, lambda t, g: site.rule.apply(site.call, fixed, t, g), (0, 0))(trace, g)


def output_shape(site: WeightSite) -> tuple[int, ...]:
    """Shape of y in a trace: iterations of an inner loop count as one, unless the loop slices the weight."""
    return site.y_shape if site.scanned else site.call.out.shape


def sum_loops(site: WeightSite, c: Any) -> Any:
    """(k, loops…, …) → (k, …), unless the loop slices the weight."""
    return c if site.scanned or not site.loops else c.sum(tuple(range(1, 1 + len(site.loops))))


def features(site: WeightSite, fixed: Any, u: Sequence[Any]) -> Any:
    """The op's data as numbers that can be averaged over time, (k, …); the mean over an inner loop."""
    if site.scanned:
        return jax.vmap(lambda u: site.rule.features(site.call, fixed, u), in_axes=1, out_axes=1)(tuple(u))
    n = len(site.loops)
    flat = site.rule.features(site.call, fixed, tuple(_fold(site, a) for a in u))
    lead = u[0].shape[: 1 + n]
    return flat.reshape(*lead, *flat.shape[1:]).mean(tuple(range(1, 1 + n)))


def feature_zeros(site: WeightSite, dtype: Any) -> Any:
    """A trace of features that has seen nothing."""
    loops = tuple(n for _, n in site.loops)
    varying = [site.call.operands[i] for i in site.rule.varying(site.call)]
    data = [jax.ShapeDtypeStruct((1, *loops, *a.shape), a.dtype) for a in varying]
    fixed = [site.call.operands[i] for i in site.rule.fixed_operands]
    found = jax.eval_shape(lambda f, u: features(site, f, u), fixed, data)
    return jnp.zeros(found.shape[1:], dtype)


def feature_grad(site: WeightSite, fixed: Any, x: Any, g: Any) -> Any:
    """∂y/∂wᵀ g for data given as features, of w's shape."""
    return _over(site, lambda x, g: site.rule.feature_grad(site.call, fixed, x[None], g[None]), (0, 0))(x, g)
