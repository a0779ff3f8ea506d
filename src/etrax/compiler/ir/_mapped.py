"""A function over the first axis of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax


def mapped(f: Callable[..., Any], *args: Any) -> Any:
    """`f` for all entries at once, or one by one where it holds an operation that cannot be batched.

    A callback without `vmap_method` is such, and `linear_call`: JAX can differentiate and run them, and no more.
    """
    try:
        return jax.vmap(f)(*args)
    except NotImplementedError:
        return lax.map(lambda one: f(*one), args)
