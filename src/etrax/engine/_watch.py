"""A watch over a transport: the first step at which a number stopped being finite, by state, input and weight op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..analysis import Facts
from ..ir import Role
from ._transport import Transport, WindowData


class Watched(NamedTuple):
    """A trace, the steps taken, and first bad steps (-1: none) of parameters and inputs, of states, of traces by site.

    The step of a trace is that at which the data or the derivatives of the step were bad, and else its window's last.
    """

    trace: Any
    step: Any
    given: Any
    states: Any
    sites: Any


def watched(facts: Facts, transport: Transport) -> Transport:
    """The same transport; its trace says where it broke."""
    n_params = len(facts.step.select(Role.PARAM))
    n_given, n_states = n_params + len(facts.step.select(Role.INPUT)), len(facts.states)

    def init() -> Watched:
        def none(n: int) -> Any:
            return jnp.full(n, -1, jnp.int32)

        return Watched(
            transport.init(), jnp.zeros((), jnp.int32), none(n_given), none(n_states), none(len(facts.sites))
        )

    def record(leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> Any:
        inner = transport.record(leaves, weights, ys) if transport.record is not None else ()
        return inner, jnp.stack([_bad(a) for a in leaves]), _bad(inner)

    def inside(window: WindowData) -> WindowData:
        return window._replace(records=window.records[0])

    def credit(trace: Watched, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        return transport.credit(trace.trace, g, inside(window))

    def move(old: Watched, window: WindowData) -> Watched:
        _, bad, broken = jax.lax.stop_gradient(window.records)
        trace = transport.move(old.trace, inside(window))
        given = jnp.concatenate([bad[:, :n_params], bad[:, n_params + n_states :]], 1)
        exits = jnp.stack([_bad(a) for a in window.ends[1]]) if n_states else jnp.zeros(0, bool)
        states = jnp.concatenate([bad[1:, n_params : n_params + n_states], exits[None]])
        sites = old.sites
        for j, parts in transport.parts(trace).items():
            cause = jnp.stack([broken, *(_bad_steps(u) for u in window.data(j))]).any(0)
            at = jnp.where(cause.any(), jnp.argmax(cause), window.steps - 1)
            new = (sites[j] < 0) & _bad(parts)
            sites = sites.at[j].set(jnp.where(new, old.step + at.astype(jnp.int32), sites[j]))
        return Watched(
            trace,
            old.step + window.steps,
            _first(old.given, old.step, given),
            _first(old.states, old.step, states),
            sites,
        )

    signal, ahead, joined, at_exit = transport.signal, transport.ahead, transport.joined, transport.credit_at_exit
    return Transport(
        init,
        record,
        credit,
        move,
        transport.nbytes,
        None if signal is None else lambda trace, *step: signal(trace.trace, *step),
        transport.replaces,
        None if ahead is None else lambda trace, states: ahead(trace.trace, states),
        transport.hears,
        lambda trace: transport.begin(trace.trace),
        transport.advance,
        lambda trace: transport.learned(trace.trace),
        lambda fresh, learned: fresh._replace(trace=transport.renew(fresh.trace, learned)),
        lambda trace: transport.parts(trace.trace),
        None if joined is None else lambda trace, g, window: joined(trace.trace, g, inside(window)),
        None if at_exit is None else lambda trace, window: at_exit(trace.trace, inside(window)),
    )


def _bad(tree: Any) -> Any:
    """Whether a tree holds a number that is not finite."""
    found = [~jnp.isfinite(a).all() for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.stack(found).any() if found else jnp.zeros((), bool)


def _bad_steps(a: Any) -> Any:
    """The same for each entry of the leading axis."""
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.zeros(a.shape[0], bool)
    return ~jnp.isfinite(a).reshape(a.shape[0], -1).all(1)


def _first(old: Any, step: Any, bad: Any) -> Any:
    """First bad steps, given flags (steps, things) of a window that begins at a step."""
    at = step + jnp.argmax(bad, 0).astype(jnp.int32)
    return jnp.where((old < 0) & bad.any(0), at, old)
