"""From coordinates to a rule of Etrax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ... import rules
from ..._errors import NotSupportedError
from ...compiler.analysis import Facts
from ...compiler.ir import PyTree
from ...rules import Moment, Rule, Source, Verdict, combined_transport, guided_transport, other_signal_verdict
from ...runtime import Future, Transport
from ._config import ETraceConfig


def rule_of(config: ETraceConfig, feedback_key: jax.Array | None = None, projection_key: int | jax.Array = 42) -> Rule:
    """The rule that a configuration names; one that Etrax has no rule for is refused."""
    # Another signal, or a filter of the trace, is served along the diagonal Jacobian only.
    plain = config.learning_signal == "symmetric" and config.trace_filter == "none"
    along_jacobian = config.trace_factorization == "per_param" and config.temporal_recursion == "jacobian"
    kappa = config.kappa or 0.0
    if along_jacobian and config.recurrence_scope == "diagonal":
        if config.learning_signal == "modulatory":
            return modulated(kappa)
        if config.learning_signal == "random_feedback":
            return rules.e_prop(kappa=kappa, feedback="random", key=0 if feedback_key is None else feedback_key)
        if config.learning_signal == "symmetric":
            return rules.e_prop(kappa=kappa) if kappa else rules.d_rtrl()
    elif along_jacobian and plain:
        return rules.ostl() if config.sparse_n is None else rules.snap(config.sparse_n)
    elif config.trace_factorization == "random_projection" and plain:
        return rules.uoro(projection_key)
    elif config.is_factorized and plain and config.decay_x == config.decay_f and not config.include_recurrent_mixing:
        return rules.pp_prop(config.decay_x)
    elif config.temporal_recursion == "none" and plain:
        return rules.tbptt()
    elif config.temporal_recursion == "scalar_leak" and plain:
        return rules.rflo(config.decay)  # pyright: ignore[reportArgumentType]
    raise NotSupportedError(
        f"no rule of Etrax corresponds to {config.describe()}: see `etrax.compat.braintrace` in the docs for "
        "those that are served (a bootstrapped signal is that of `DNI`)."
    )


def bootstrapped(apply: Callable[[PyTree, list[jax.Array]], dict[int, jax.Array]]) -> Rule:
    """D-RTRL, and at the exit of a window `apply(values, states)`, ∂L/∂h by state leaf, for weights without a trace.

    The trace is [that of D-RTRL, values that `apply` takes]; None says that later losses owe nothing.
    """
    base = rules.d_rtrl()

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None) -> Transport:
        every = frozenset(range(len(facts.sites))) if sites is None else sites
        # A weight with a trace hears of later losses through it: the estimate would count them twice.
        traced = frozenset(j for j in every if any(r.site == j and r.representable for r in facts.relations))

        def at_exit(values: PyTree, states: Sequence[jax.Array]) -> dict[int, jax.Array]:
            return {} if values is None else apply(values, list(states))

        estimate = Transport(
            lambda: None, lambda values, g, window: {}, lambda values, window: values,
            future=Future(at_exit, every - traced),
        )  # fmt: skip
        return combined_transport([base.transport(facts, traced, trace_dtype), estimate])

    return Rule("bootstrapped", transport, base.verdict, {"apply": apply}, estimates_future=True)


def modulated(kappa: float = 0.0) -> Rule:
    """Three-factor learning whose modulator is put into the trace before each step: an array per group."""

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None) -> Transport:
        def init() -> dict[int, jax.Array]:
            return {g.index: jnp.zeros(g.num_positions) for g in facts.groups}

        def signal(modulator: dict[int, jax.Array], moment: Moment) -> tuple[dict[int, jax.Array], tuple[()]]:
            return modulator, ()

        return guided_transport(facts, Source(signal, init=init), kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return other_signal_verdict(facts, param, "the learning signal is the modulator, not the gradient of the loss")

    return Rule("modulated", transport, verdict, {"kappa": kappa})
