"""BPTT of the model's own step by `jax.grad` over `lax.scan`; nothing of Etrax is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .spec import Built


def inexact(a: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(a).dtype, jnp.inexact)


def held(tree: Any) -> Any:
    """The tree with no derivative passing through it."""
    return jax.tree.map(lambda a: lax.stop_gradient(a) if inexact(a) else a, tree)


def bptt(built: Built, window: int | None = None, reduction: str = "mean") -> Callable[..., Any]:
    """`f(params, hidden, xs, mask) -> (loss, gradients of inexact leaves, hidden)`; `window` cuts the derivative."""

    def total(moving: list[Any], params: Any, hidden: Any, xs: Any, mask: Any) -> Any:
        found = iter(moving)
        params = jax.tree.map(lambda a: next(found) if inexact(a) else a, params)
        length = built.model.steps if not xs else xs[0].shape[0]
        scale = 1 if reduction == "sum" else length if mask is None else mask.sum()

        def body(h: Any, along: Any) -> tuple[Any, Any]:
            x, weight = along
            h, out = built.step(params, h, *x)
            return h, _weighted(built.loss, out, weight) / scale

        value = 0.0
        for start in range(0, length, window or length):
            end = min(length, start + (window or length))
            part = jax.tree.map(lambda a, i=start, j=end: a[i:j], (xs, mask))
            hidden, losses = lax.scan(body, held(hidden), part, end - start)
            value = value + losses.sum()
        return value, hidden

    def run(params: Any, hidden: Any, xs: Any, mask: Any = None) -> Any:
        moving = [a for a in jax.tree.leaves(params) if inexact(a)]
        (value, end), grads = jax.value_and_grad(total, has_aux=True)(moving, params, hidden, xs, mask)
        return value, grads, end

    return run


def _weighted(loss: Callable[[Any], Any], out: Any, weight: Any) -> Any:
    """The loss of one step; a weight per sample weighs the loss of each sample alone."""
    if weight is None:
        return loss(out)
    if weight.ndim == 0:
        return loss(out) * weight
    return (jax.vmap(lambda o: loss(jax.tree.map(lambda a: a[None], o)))(out) * weight).sum()
