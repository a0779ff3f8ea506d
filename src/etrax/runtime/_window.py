"""One window: exact reverse mode over K steps, one product per weight op for its gradient (docs/mathematics.md, 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from .._compat import promotes
from .._machine import machine
from ..compiler.analysis import Facts, OpNode, StateNode
from ..compiler.fission import split_scan
from ..compiler.ir import Detach, detaching_vjp
from ..compiler.opened import OpenStep, Weights
from ..compiler.ops import ALIGNED
from . import _site_math as site_math
from ._before_reset import without_past_steps, without_past_trace
from ._probes import differentiable
from ._resets import restarted
from ._transport import FusedCredit, PullBack, SeenThrough, StepOutputs, Trace, Transport, WindowData

# Data of an op and cotangents of its output, with an axis of steps: the gradient of its weight is their product.
Rows: TypeAlias = tuple[tuple[Array, ...], Array]


class WindowResult(NamedTuple):
    """Loss summed over the window, gradient per site's weight, states and trace at the exit, and per-step extras.

    `entry_bar` are the cotangents of the states at the entry, by number; `rows` are what the gradient of the sites in
    `WindowRun.by_rows` is to be made of, beside what `grads` have of them.
    """

    loss: Array
    grads: dict[int, Array]
    states: list[Array]
    trace: Any
    extras: Any
    entry_bar: Mapping[int, Array]
    rows: Mapping[int, Rows] = MappingProxyType({})


# (output leaves of one step, what the caller scans along) -> (weighted loss of the step, extras)
StepLoss: TypeAlias = Callable[[list[Array], Any], tuple[Array, Any]]


def live_sites(facts: Facts) -> list[int]:
    return [j for j in range(len(facts.sites)) if OpNode(j) in facts.live]


def unread_states(facts: Facts) -> frozenset[int]:
    """States that no loss reads, now or later: a zero pulled through an infinite slope of one would be a NaN."""
    return frozenset(i for i in range(len(facts.states)) if StateNode(i) not in facts.live)


class WindowRun(NamedTuple):
    """What a window is run on: `inputs` and `step_data` are leaves with a leading axis over its steps.

    | field | is |
    |---|---|
    | `step_data` | what the loss of a step is given beside its outputs: targets, weights of a mask |
    | `loss_of` | the loss of a step, and extras to be stacked |
    | `loss_weight` | what the loss of a step counts for in the loss whose gradient is asked for (1/T of a mean) |
    | `exit_cotangents` | what a loss asks of the states at the exit, by number, beside that of the steps' outputs |
    | `grads_before` | the gradients of earlier windows, to which those of this one are added |
    | `by_rows` | sites whose products are left to the caller, who adds those of several windows up (`grads_before`) |
    | `resets` | flags (K,) or (K, B): before which steps all lanes, or which of them, start again at `initial` |

    Reverse mode begins with `loss_weight`, since a derivative rule (a clipped gradient) need not be linear.
    """

    params: Sequence[Array]
    weights: Weights
    states: Sequence[Array]
    trace: Any
    inputs: Sequence[Array]
    step_data: Any
    loss_of: StepLoss
    loss_weight: Array | float = 1.0
    exit_cotangents: Mapping[int, Array] | None = None
    grads_before: Mapping[int, Array] | None = None
    resets: Any = None
    initial: Sequence[Array | None] = ()
    by_rows: frozenset[int] = frozenset()


@promotes
def run_window(facts: Facts, transport: Transport[Trace], run: WindowRun) -> WindowResult:
    """Credit and transport over the steps of one window."""
    trace, weights = run.trace, run.weights
    if run.resets is not None and run.resets.ndim == 1:
        trace = without_past_trace(transport, trace, run.resets[0])
    ran = _run(facts, transport, run._replace(trace=trace))
    none = {i: jnp.zeros_like(v) for i, v in ran.exits.items()}
    asked = {i: bar for i, bar in (run.exit_cotangents or {}).items() if i in none}
    bars = _pull_loss(transport, trace, ran, none | asked, run.loss_weight)

    def pull(cotangents: Mapping[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
        bars = {i: bar.astype(none[i].dtype) for i, bar in cotangents.items()}
        return ran.pull_back((jnp.zeros_like(ran.loss), {**none, **bars}))[:2]

    at_exit = _at_exit(transport, ran.steps).sites
    window = WindowData(
        ran.steps,
        ran.records,
        lambda j: ran.data[j],
        weights.fixed,
        pull,
        lambda: _pull_states(facts, run, ran.steps),
        ran.signals,
        run.states,
        ran.end,
        bars.with_future,
        ran.carry,
        params=list(run.params),
        weights=weights.weight,
        resets=run.resets,
        sites_at_exit=at_exit,
        exit_bar=bars.new,
    )
    rows = _window_rows(transport, trace, bars, window)
    grads = _window_grads(facts, transport, rows, run, window)
    rows = {j: rows[j] for j in run.by_rows - _without_rows(transport, window)}
    replaces = transport.signal.replaces if transport.signal is not None else frozenset()

    def add(credit: Mapping[int, Array]) -> None:
        signalled = replaces & credit.keys()  # a signal of the rule's own is that of the loss of a step
        for j, g in {**credit, **_scaled({j: credit[j] for j in signalled}, run.loss_weight)}.items():
            grads[j] = grads[j] + g.astype(grads[j].dtype)

    credit = transport.credit(trace, bars.entry, window)
    add(credit)
    if run.resets is not None:
        if run.resets.ndim == 1:
            trace = without_past_trace(transport, trace, run.resets.any())
        window = without_past_steps(facts, window)
    window = window._replace(zero_after_credit=_zero_after([grads[j] for j in credit]))
    trace = transport.move(trace, window)
    # What started again before a step has left the trace that has moved.
    window = window._replace(resets=None)
    add(transport.fused.at_exit(trace, window))
    for j, (data, bar) in transport.fused.rows_at_exit(trace, window).items():
        if j in run.by_rows:
            rows[j] = _joined(rows.get(j), data, _scaled({j: bar}, run.loss_weight)[j] if j in replaces else bar)
        else:
            add({j: site_math.grad(facts.sites[j], weights.fixed[j], (data,), bar)})
    return WindowResult(ran.loss, grads, ran.end, trace, ran.extras, bars.entry, rows)


class _Ran(NamedTuple):
    """The steps of a window, run forwards: what they gave, and the way back.

    `exits` are the states at the exit that have derivatives, `end` all of them. `pull_back` takes cotangents of the
    loss and of the exits to those of the entry states and, step by step, of every live site's output and of the new
    states that a gradient is taken in at the exit.
    """

    steps: int
    loss: Array
    exits: dict[int, Array]
    pull_back: Callable[[Any], tuple[dict[int, Array], dict[int, Array], dict[int, Array]]]
    end: list[Array]
    carry: Any
    data: dict[int, tuple[Array, ...]]
    records: Any
    signals: Any
    extras: Any


def _run(facts: Facts, transport: Transport[Trace], run: WindowRun) -> _Ran:
    params, weights, states, trace, inputs, step_data, loss_of, loss_weight, *_ = run
    live, n_states = live_sites(facts), len(facts.states)
    leaves = jax.tree.leaves((inputs, step_data, run.resets))
    steps = leaves[0].shape[0] if leaves else 1  # nothing comes from outside: one step
    opened = OpenStep(facts.step, facts.sites, frozenset())
    each, of_step = transport.each_step, transport.signal.of_step if transport.signal is not None else None
    unread = unread_states(facts)
    if not unread.isdisjoint(run.exit_cotangents or ()):
        unread = frozenset()  # somebody reads some of them after all

    def body(detach: Detach, carry: tuple[list[Array], Any], xs: Any) -> tuple[tuple[list[Array], Any], Any]:
        (held, moved), (x, extra, (delta, nudge), reset) = carry, xs
        if reset is not None:
            held, moved = restarted(reset, run.initial, held), each.restart(moved, reset)
        # New states are nudged, by nothing, and not cut: what the loss owes to others passes through them as well.
        outs, seen = opened(
            [*params, *held, *x], delta, weights.weight, None, weights.ops, held=nudge, detach=lambda a: a
        )
        loss, extras = loss_of(outs[n_states:], extra)
        ys = {j: seen[j].perturbed for j in live}  # by nothing: one value is then kept between parts, not two
        leaves, ran = [*params, *detach(held), *x], detach(StepOutputs(ys, outs[n_states:]))
        record = each.record(leaves, weights.weight, ran.ys)
        moved = each.advance(moved, leaves, weights.weight, ran.ys)
        data = detach({j: seen[j].data for j in live})
        signal = of_step(trace, leaves, weights.weight, ran, extra, loss_of, loss_weight) if of_step is not None else ()
        new = [detach(state) if i in unread else state for i, state in enumerate(outs[:n_states])]
        return (new, moved), (loss, data, (record, signal), detach(extras))

    def steps_through(
        detach: Detach, moving: dict[int, Array], deltas: dict[int, Array], nudges: dict[int, Array]
    ) -> tuple[Any, Any]:
        start = [moving.get(i, states[i]) for i in range(n_states)]
        begun = (start, each.begin(trace))
        xs = (list(inputs), step_data, (deltas, nudges), run.resets)
        (end, carry), (losses, data, seen, extras) = split_scan(partial(body, detach), begun, xs, steps)
        return (losses.sum(), {i: end[i] for i in moving}), (end, carry, data, seen, extras)

    moving = {i: states[i] for i in differentiable(facts)}
    deltas = {j: jnp.zeros((steps, *facts.sites[j].y_shape), facts.sites[j].call.out.dtype) for j in live}
    nudged = _at_exit(transport, steps).states
    nudges = {i: jnp.zeros((steps, *states[i].shape), states[i].dtype) for i in sorted(nudged)}
    (loss, exits), pull_back, (end, carry, data, seen, extras) = detaching_vjp(
        steps_through, moving, deltas, nudges, has_aux=True
    )
    records, signals = seen
    return _Ran(steps, loss, exits, pull_back, end, carry, data, records, signals, extras)


def _at_exit(transport: Transport[Trace], steps: int) -> SeenThrough:
    """What is taken at the exit: only the new states of the last step are seen there."""
    plain = steps == 1 and transport.signal is None and transport.future is None
    return transport.fused.through_states() if plain else SeenThrough()


def _pull_states(facts: Facts, run: WindowRun, steps: int) -> PullBack:
    """The way back from the states at the exit, of steps that run again without their outputs.

    What only outputs and losses read is then not differentiated, which would give zeros at the price of numbers.
    """
    return run_again(facts, run, steps, lambda flags, held: restarted(flags, run.initial, held))[0]


def run_again(
    facts: Facts, run: WindowRun, steps: int, restart: Callable[[Any, list[Array]], list[Array]],
    with_data: bool = False,
) -> tuple[PullBack, dict[int, tuple[Array, ...]]]:  # fmt: skip
    """Steps without outputs and loss: the way back from the states at their end; if asked for, the data of their ops.

    `restart(resets, states)` gives the states before a step, where there are resets.
    """
    opened, live, n_states = OpenStep(facts.step, facts.sites, frozenset()), live_sites(facts), len(facts.states)
    unread = unread_states(facts)

    def body(detach: Detach, held: list[Array], xs: Any) -> tuple[list[Array], Any]:
        x, delta, reset = xs
        held = held if reset is None else restart(reset, held)
        outs, seen = opened([*run.params, *held, *x], delta, run.weights.weight, None, run.weights.ops)
        data = detach({j: seen[j].data for j in live}) if with_data else {}
        return [detach(state) if i in unread else state for i, state in enumerate(outs[:n_states])], data

    def steps_through(detach: Detach, moving: dict[int, Array], deltas: dict[int, Array]) -> tuple[Any, Any]:
        start = [moving.get(i, run.states[i]) for i in range(n_states)]
        end, data = split_scan(partial(body, detach), start, (list(run.inputs), deltas, run.resets), steps)
        return {i: end[i] for i in moving}, data

    moving = {i: run.states[i] for i in differentiable(facts)}
    deltas = {j: jnp.zeros((steps, *facts.sites[j].y_shape), facts.sites[j].call.out.dtype) for j in live}
    exits, pull_back, data = detaching_vjp(steps_through, moving, deltas, has_aux=True)
    none = {i: jnp.zeros_like(v) for i, v in exits.items()}
    return lambda bars: pull_back({**none, **{i: bar.astype(none[i].dtype) for i, bar in bars.items()}}), data


class _Bars(NamedTuple):
    """Cotangents: of the entry states, of every live site's output; of the entry states with the future in them.

    `new` are those of the new states that a gradient is taken in at the exit.
    """

    entry: dict[int, Array]
    ops: dict[int, Array]
    with_future: dict[int, Array] | None = None
    new: dict[int, Array] = {}  # noqa: RUF012


def _pull_loss(
    transport: Transport[Trace], trace: Trace, ran: _Ran, exits: dict[int, Array], loss_weight: Array | float
) -> _Bars:
    """The gradient of the window's loss; with a future, one pull-back more unless it counts for every site."""
    future = transport.future
    if future is None:
        entry, ops, new = ran.pull_back((jnp.full_like(ran.loss, loss_weight), exits))
        return _Bars(entry, ops, new={i: bar[-1] for i, bar in new.items()})
    later = _scaled(future.estimate(trace, ran.end), loss_weight)
    if future.sites.issuperset(ran.data):
        both = exits | {i: exits[i] + bar for i, bar in later.items()}
        entry, ops, _ = ran.pull_back((jnp.full_like(ran.loss, loss_weight), both))
        return _Bars(entry, ops, _scaled(entry, 1 / loss_weight))
    entry, ops, _ = ran.pull_back((jnp.full_like(ran.loss, loss_weight), exits))
    none = {i: jnp.zeros_like(bar) for i, bar in exits.items()}
    further, more, _ = ran.pull_back((jnp.zeros_like(ran.loss), none | later))
    ops = {j: d + more[j] if j in future.sites else d for j, d in ops.items()}
    return _Bars(entry, ops, _scaled({i: b + further[i] for i, b in entry.items()}, 1 / loss_weight))


def _window_rows(transport: Transport[Trace], trace: Trace, bars: _Bars, window: WindowData) -> dict[int, Rows]:
    """Per site, the steps of the window and, where credit can be taken so, one step more."""
    more = transport.fused.in_product(trace, bars.entry, window)
    rows = {j: (window.data(j), bar) for j, bar in bars.ops.items()}
    return rows | {j: _joined(rows[j], *more[j]) for j in more.keys() & rows.keys()}


def _joined(rows: Rows | None, data: Array, bar: Array) -> Rows:
    if rows is None:
        return (data,), bar
    return (jnp.concatenate([rows[0][0], data]),), jnp.concatenate([rows[1], bar])


def _without_rows(transport: Transport[Trace], window: WindowData) -> frozenset[int]:
    """Sites whose gradient is nothing, or the credit alone."""
    without = transport.without_gradient | window.sites_at_exit
    return without if transport.signal is None else without | transport.signal.replaces


def _window_grads(
    facts: Facts, transport: Transport[Trace], rows: Mapping[int, Rows], run: WindowRun, window: WindowData
) -> dict[int, Array]:
    """Per site, one product over its rows and the gradients before, or these alone where rows are left as they are."""
    without, before, grads = _without_rows(transport, window), run.grads_before, {}
    for j, (data, bar) in rows.items():
        if before is not None and j in run.by_rows | without:
            grads[j] = before[j]
            continue
        g = site_math.grad(facts.sites[j], window.fixed[j], data, bar)
        g = jnp.zeros_like(g) if j in without else g
        grads[j] = g if before is None else before[j] + g.astype(before[j].dtype)
    return grads


def row_size(facts: Facts, site: int) -> float:
    """Numbers of a site in one step of its rows; infinite where its gradient is no product of two."""
    s = facts.sites[site]
    if s.rule is ALIGNED:
        return math.inf
    return math.prod(s.y_shape) + sum(math.prod(u.shape) for u in site_math.data_structs(s))


def add_rows(facts: Facts, weights: Weights, grads: Mapping[int, Array], rows: Mapping[int, Rows]) -> dict[int, Array]:
    """Gradients, and one product per site over the rows of several windows, (windows, steps, …)."""
    out = dict(grads)
    for j, stacked in rows.items():
        data, bar = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), stacked)
        g = site_math.grad(facts.sites[j], weights.fixed[j], data, bar)
        out[j] = out[j] + g.astype(out[j].dtype)
    return out


def _scaled(values: Mapping[int, Array], factor: Array | float) -> dict[int, Array]:
    """Values times a number, in their own types."""
    return {i: v * jnp.asarray(factor, v.dtype) for i, v in values.items()}


def _zero_after(done: Sequence[Array]) -> Array:
    """Zero, by a way that the compiler does not see through: no sum is greater than infinity, nor is NaN.

    What is made of it is computed after `done`. A trace that has been read can then be moved in its place; in no order,
    the compiler would copy the whole of it first. `done` has to be all that is made of the trace: a sum on the way
    would be computed twice, the second time in no order. The trace of a small weight is copied sooner than that.
    """
    large = (a for a in done if a.size >= machine().copied_size)
    return sum(((_sum(jnp.real(a)) > jnp.inf).astype(jnp.float32) for a in large), jnp.zeros((), jnp.float32))


def _sum(a: Array) -> Array:
    """As products with ones, which a CPU makes several times faster than the sum of a large array."""
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) if a.ndim else a.reshape(1, 1)
    return jnp.ones(rows.shape[0], rows.dtype) @ (rows @ jnp.ones(rows.shape[1], rows.dtype))


def evolve(
    facts: Facts, transport: Transport[Trace], params: Sequence[Array], weights: Weights, states: Sequence[Array],
    trace: Trace, inputs: Sequence[Array], resets: Array | None = None, initial: Sequence[Array | None] = (),
) -> tuple[list[Array], Trace, Any]:  # fmt: skip
    """Move states and trace over a window without a loss; the outputs are stacked."""

    def no_loss(outs: list[Array], _: Any) -> tuple[Array, Any]:
        return jnp.zeros(()), outs

    transport = replace(transport, credit=lambda *_: {}, signal=None, future=None, fused=FusedCredit())
    run = WindowRun(params, weights, states, trace, inputs, (), no_loss, resets=resets, initial=initial)
    result = run_window(facts, transport, run)
    return result.states, result.trace, result.extras
