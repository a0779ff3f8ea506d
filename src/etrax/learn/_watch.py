"""A watch over a transport: the first step at which a number stopped being finite, by state, input and weight op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..compiler.analysis import Facts, is_steep
from ..compiler.ir import Role
from ..runtime import Transport, WindowData, count_on, embed_trace


class Watched(NamedTuple):
    """A trace, the steps taken, and first bad steps (-1: none) of parameters and inputs, of states, of traces by site.

    The step of a trace is that at which the data or the derivatives of the step were bad, and else its window's last.
    """

    trace: Any
    step: Array
    given: Array
    states: Array
    sites: Array


def watched(facts: Facts, transport: Transport[Any]) -> Transport[Watched]:
    """Add to a transport's trace where its numbers stopped being finite."""
    n_params = facts.step.first_state
    n_given, n_states = n_params + len(facts.step.select(Role.INPUT)), len(facts.states)

    def init() -> Watched:
        bad_inputs, states, sites = (jnp.full(n, -1, jnp.int32) for n in (n_given, n_states, len(facts.sites)))
        return Watched(transport.init(), jnp.zeros((), jnp.int32), bad_inputs, states, sites)

    inner = embed_trace(
        transport,
        init,
        lambda watch: watch.trace,
        lambda watch, trace: watch._replace(trace=trace),
        lambda window: window._replace(records=window.records[0]),
    )

    def record(leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Any:
        inner_record = inner.each_step.record(leaves, weights, ys)
        return inner_record, jnp.stack([~is_finite(a) for a in leaves]), ~is_finite(inner_record)

    def move(old: Watched, window: WindowData) -> Watched:
        _, bad, broken = window.records
        moved = inner.move(old, window)
        bad_inputs = jnp.concatenate([bad[:, :n_params], bad[:, n_params + n_states :]], 1)
        exits = jnp.stack([~is_finite(a) for a in window.exit_states]) if n_states else jnp.zeros(0, bool)
        states = jnp.concatenate([bad[1:, n_params : n_params + n_states], exits[None]])
        sites = old.sites
        for j, parts in inner.parts(moved).items():
            data = jnp.stack([_bad_steps(u) for u in window.data(j)] or [jnp.zeros_like(broken)]).any(0)
            cause = broken | data
            if is_steep(facts):  # a slope that is infinite need not matter: a number that is bad is the likelier cause
                numbers = data | bad.any(1)
                cause = jnp.where(numbers.any(), numbers, cause)
            at = jnp.where(cause.any(), jnp.argmax(cause), window.steps - 1)
            new = (sites[j] < 0) & ~is_finite(parts)
            sites = sites.at[j].set(jnp.where(new, count_on(old.step, at.astype(jnp.int32)), sites[j]))
        return Watched(
            moved.trace,
            count_on(old.step, window.steps),
            _first(old.given, old.step, bad_inputs),
            _first(old.states, old.step, states),
            sites,
        )

    return replace(inner, move=move, each_step=replace(inner.each_step, record=record))


def is_finite(tree: Any) -> Array:
    """Whether every number of a tree is finite; whole numbers and keys are."""
    finite = [jnp.isfinite(a).all() for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.stack(finite).all() if finite else jnp.ones((), bool)


def _bad_steps(a: Array) -> Array:
    """Per entry of the leading axis, whether some number in it is not finite."""
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.zeros(a.shape[0], bool)
    return ~jnp.isfinite(a).reshape(a.shape[0], -1).all(1)


def _first(old: Array, step: Array, bad: Array) -> Array:
    """First bad steps, given flags (steps, things) of a window that begins at a step."""
    at = count_on(step, jnp.argmax(bad, 0).astype(jnp.int32))
    return jnp.where((old < 0) & bad.any(0), at, old)
