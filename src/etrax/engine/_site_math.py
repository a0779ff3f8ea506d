"""The pieces of an op family (`OpRule`) at a site: inner loops folded into the window, scanned weights mapped over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

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
