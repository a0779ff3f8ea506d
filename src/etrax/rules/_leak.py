"""What rules share that take one leak λ for every recurrence: a sum that leaks, and the verdict on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_decay
from ..compiler.analysis import Elements, Facts, FanOut, traced_elements
from ..runtime import Plan, Transport
from ._kinds import CHEAP_FAN_OUT
from ._rule import Rule
from ._series import in_series
from ._state_credit import check_credit, state_credit, state_rule
from ._verdicts import Verdict, other_recurrence_verdict, relations_of, with_least_window


def with_leak(a: Array, decay: float, dtype: np.dtype) -> Array:
    """λ^(K−k) a_k for the steps k of a window: what is left of each at its exit."""
    powers = decay ** np.arange(a.shape[0] - 1, -1, -1, dtype=np.float64)
    a = a.astype(dtype)
    return a * jnp.asarray(powers, jnp.real(a).dtype).reshape(-1, *[1] * (a.ndim - 1))


def leak_rule(
    name: str, planned: Callable[..., tuple[Plan, Transport[Any]]], decay: float, how: str, credit: str,
    fan_out: FanOut = CHEAP_FAN_OUT,
) -> Rule:  # fmt: skip
    """A rule with the option `decay`, 0 up to 1; `how` says what it stands for, with a place for the number."""
    decay, on_state = check_decay(name, "decay", decay, closed=True), check_credit(name, credit)

    def plain(facts: Facts, param: int) -> Verdict:
        return other_recurrence_verdict(facts, param, how.format(decay), fan_out)

    def driven(facts: Facts, param: int) -> Elements:
        return traced_elements(facts, relations_of(facts, param, fan_out), moved=False)

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
        plan, whole_step = planned(facts, sites, trace_dtype, decay=decay)
        return state_credit(plan, whole_step) if on_state else whole_step

    def verdict(facts: Facts, param: int) -> Verdict:
        return with_least_window(facts, param, plain(facts, param), driven(facts, param))

    if on_state:
        return state_rule(name, {"decay": decay}, transport, plain, driven, facts_for=in_series)
    return Rule(name, transport, verdict, {"decay": decay}, facts_for=in_series)
