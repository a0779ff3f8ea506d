"""What rules share that take one leak λ for every recurrence: a sum that leaks, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._arguments import check_decay
from ..compiler.analysis import Facts, traced_elements
from ..runtime import Transport
from ._kinds import CHEAP_FAN_OUT
from ._rule import Rule
from ._verdicts import Verdict, other_recurrence_verdict, relations_of, with_least_window


def with_leak(a: Array, decay: float, dtype: np.dtype) -> Array:
    """λ^(K−k) a_k for the steps k of a window: what is left of each at its exit."""
    powers = decay ** np.arange(a.shape[0] - 1, -1, -1, dtype=np.float64)
    a = a.astype(dtype)
    return a * jnp.asarray(powers, jnp.real(a).dtype).reshape(-1, *[1] * (a.ndim - 1))


def leak_rule(name: str, transport: Callable[..., Transport[Any]], decay: float, how: str) -> Rule:
    """A rule with the option `decay`, 0 up to 1; `how` says what it stands for, with a place for the number."""
    decay = check_decay(name, "decay", decay, closed=True)

    def verdict(facts: Facts, param: int) -> Verdict:
        plain = other_recurrence_verdict(facts, param, how.format(decay), CHEAP_FAN_OUT)
        driven = traced_elements(facts, relations_of(facts, param, CHEAP_FAN_OUT), moved=False)
        return with_least_window(facts, param, plain, driven)

    return Rule(name, partial(transport, decay=decay), verdict, {"decay": decay})
