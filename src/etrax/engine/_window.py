"""One window: exact reverse mode over K steps, one product per weight op for its gradient (docs/mathematics.md, 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._compat import promotes
from ..analysis import Facts, OpenStep, OpNode
from ..ir import Role
from . import _site_math as site_math
from ._ops import look_ahead
from ._probes import differentiable
from ._transport import Trace, Transport, WindowData
from ._weights import Weights


class WindowResult(NamedTuple):
    """Loss summed over the window, gradient per site's weight, states and trace at the exit, and per-step extras."""

    loss: Any
    grads: dict[int, Any]
    states: list[Any]
    trace: Trace
    extras: Any


# (output leaves of one step, what the caller scans along) -> (weighted loss of the step, extras)
StepLoss = Callable[[list[Any], Any], tuple[Any, Any]]


def live_sites(facts: Facts) -> list[int]:
    return [j for j in range(len(facts.sites)) if OpNode(j) in facts.live]


@promotes
def run_window(
    facts: Facts, transport: Transport, params: Sequence[Any], weights: Weights, states: Sequence[Any], trace: Trace,
    inputs: Sequence[Any], along: Any, loss_of: StepLoss, share: Any = 1.0,
) -> WindowResult:  # fmt: skip
    """Credit and transport over the steps that `inputs` (leaves with a leading axis k) hold.

    `share` is what the loss of a step counts for in the loss whose gradient is asked for (1/T of a mean). Reverse mode
    begins with it, since a derivative rule of the model (a clipped gradient) need not be linear.
    """
    step, live, diff = facts.step, live_sites(facts), differentiable(facts)
    leaves = jax.tree.leaves((inputs, along))
    steps = leaves[0].shape[0] if leaves else 1  # nothing comes from outside: one step
    opened = OpenStep(step, facts.sites, frozenset())
    n_states = len(facts.states)
    fixed_weights = lax.stop_gradient(weights.weight)
    known = look_ahead(facts, params, weights, inputs)

    def body(carry: tuple[list[Any], Any], xs: Any) -> tuple[tuple[list[Any], Any], Any]:
        (held, moved), (x, extra, delta, ready) = carry, xs
        ops = {**weights.ops, **known.ops(*ready)}
        leaves = [*params, *held, *x]
        outs, seen = opened(leaves, [delta.get(j) for j in range(len(facts.sites))], fixed_weights, None, ops)
        loss, extras = loss_of(outs[n_states:], extra)
        ys = {j: seen[j][0] for j in live}
        record = transport.record(leaves, fixed_weights, ys) if transport.record is not None else ()
        if transport.advance is not None:
            moved = lax.stop_gradient(transport.advance(moved, leaves, fixed_weights, ys))
        data = lax.stop_gradient({j: seen[j][1] for j in live if j not in known.data})
        signal = ()
        if transport.signal is not None:
            signal = transport.signal(trace, leaves, fixed_weights, extra, loss_of, share)
        return (outs[:n_states], moved), (loss, data, (record, signal), lax.stop_gradient(extras))

    def run(moving: dict[int, Any], deltas: dict[int, Any]) -> tuple[Any, Any]:
        start = [moving.get(i, states[i]) for i in range(n_states)]
        begun = (start, transport.begin(trace))
        (end, carry), (losses, data, seen, extras) = lax.scan(
            body, begun, (list(inputs), along, deltas, ready), length=steps
        )
        return (losses.sum(), {i: end[i] for i in diff}), (end, carry, data, seen, extras)

    ready = (known.outputs, known.shares)
    moving = {i: states[i] for i in diff}
    deltas = {j: jnp.zeros((steps, *facts.sites[j].y_shape), facts.sites[j].call.out.dtype) for j in live}
    (loss, exits), pull_back, (end, carry, data, seen, extras) = jax.vjp(run, moving, deltas, has_aux=True)
    data |= {j: u for j, u in known.data.items() if j in live}
    none = {i: jnp.zeros_like(v) for i, v in exits.items()}
    later = none if transport.ahead is None else none | _scaled(transport.ahead(trace, end), share)
    everyone = transport.hears.issuperset(live)
    entry_bar, delta_bar = pull_back((jnp.full_like(loss, share), later if everyone else none))
    whole_bar = None if transport.ahead is None else _scaled(entry_bar, 1 / share)
    if transport.ahead is not None and not everyone:
        further, more = pull_back((jnp.zeros_like(loss), later))
        delta_bar = {j: d + more[j] if j in transport.hears else d for j, d in delta_bar.items()}
        whole_bar = _scaled({i: b + further[i] for i, b in entry_bar.items()}, 1 / share)

    def pull(cotangents: Mapping[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        return pull_back((jnp.zeros_like(loss), {**none, **cotangents}))

    window = WindowData(
        steps, seen[0], lambda j: data[j], weights.fixed, pull, seen[1], (states, end), whole_bar, carry
    )
    grads = _window_grads(facts, transport, trace, entry_bar, delta_bar, window)

    def add(credit: Mapping[int, Any]) -> None:
        signalled = transport.replaces & credit.keys()  # a signal of the rule's own is that of the loss of a step
        for j, g in {**credit, **_scaled({j: credit[j] for j in signalled}, share)}.items():
            grads[j] = grads[j] + g.astype(grads[j].dtype)

    credit = transport.credit(trace, entry_bar, window)
    add(credit)
    window = window._replace(after=_zero_after([grads[j] for j in credit]))
    trace = transport.move(trace, window)
    add(transport.credit_at_exit(trace, window) if transport.credit_at_exit is not None else {})
    return WindowResult(loss, grads, end, trace, extras)


def _window_grads(
    facts: Facts, transport: Transport, trace: Trace, entry_bar: Mapping[int, Any], delta_bar: Mapping[int, Any],
    window: WindowData,
) -> dict[int, Any]:  # fmt: skip
    """Per site, one product over the steps of the window and, where a trace can be read so, one step more."""
    more = transport.joined(trace, entry_bar, window) if transport.joined is not None else {}
    grads = {}
    for j, bar in delta_bar.items():
        data = window.data(j)
        if j in more:
            data, bar = (jnp.concatenate([data[0], more[j][0]]),), jnp.concatenate([bar, more[j][1]])
        grads[j] = site_math.grad(facts.sites[j], window.fixed[j], data, bar)
    return {j: jnp.zeros_like(g) if j in transport.replaces else g for j, g in grads.items()}


def _scaled(values: Mapping[int, Any], factor: Any) -> dict[int, Any]:
    """Values times a number, in their own types."""
    return {i: v * jnp.asarray(factor, v.dtype) for i, v in values.items()}


def _zero_after(done: Sequence[Any]) -> Any:
    """Zero, by a way that the compiler does not see through: nothing is greater than infinity, nor is NaN.

    What is made of it is computed after `done`. A trace that has been read can then be moved in its place; in no order,
    the compiler would copy the whole of it first.
    """
    return sum(((jnp.max(jnp.real(a)) > jnp.inf).astype(jnp.float32) for a in done), jnp.zeros((), jnp.float32))


def evolve(
    facts: Facts, transport: Transport, params: Sequence[Any], weights: Weights, states: Sequence[Any], trace: Trace,
    inputs: Sequence[Any],
) -> tuple[list[Any], Trace, Any]:  # fmt: skip
    """Move states and trace over a window without a loss; the outputs are stacked."""

    def no_loss(outs: list[Any], _: Any) -> tuple[Any, Any]:
        return jnp.zeros(()), outs

    transport = replace(transport, signal=None, credit=lambda *_: {}, joined=None, ahead=None, credit_at_exit=None)
    result = run_window(facts, transport, params, weights, states, trace, inputs, (), no_loss)
    return result.states, result.trace, result.extras


def param_grads(
    facts: Facts, params: Sequence[Any], site_grads: Mapping[int, Any], weights_of: Callable[[Sequence[Any]], Weights]
) -> list[Any]:
    """Each parameter's share of its weights' gradients, by the VJP of θ → w."""
    leaves = facts.step.select(Role.PARAM)
    moving = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.aval.dtype, jnp.inexact)]

    def values(some: list[Any]) -> dict[int, Any]:
        given = list(params)
        for i, v in zip(moving, some, strict=True):
            given[i] = v
        found = weights_of(given).weight
        return {j: found[j] for j in site_grads}

    primal, pull = jax.vjp(values, [params[i] for i in moving])
    (back,) = pull({j: site_grads[j].astype(primal[j].dtype) for j in primal})
    out: list[Any] = [jnp.zeros(leaf.aval.shape, leaf.aval.dtype) for leaf in leaves]
    for i, g in zip(moving, back, strict=True):
        out[i] = g
    return out
