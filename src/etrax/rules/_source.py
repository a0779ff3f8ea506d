"""Where a learning signal comes from, and its way from a group's activity to states and weight ops.

The signal acts on what the step itself reads of a group, its activity z; the step's own derivative takes it on, to
the states before the step and to the outputs of weight ops within it. A spike's pseudo-derivative counts, also of a
spike that is read before a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..compiler.analysis import Facts, Visible, observe
from ..compiler.ir import Detach, detaching_vjp
from ..compiler.opened import OpenStep


class OutputLoss(Protocol):
    """The loss of one step: of its output leaves and what runs along.

    `read` gives what another function of output and target does; `whole` makes the loss of a share of it, where devices
    share the samples.
    """

    def __call__(self, outs: list[Array], step_data: Any) -> tuple[Array, Any]: ...

    def read(self, f: Callable[[Any, Any], Any], outs: list[Array], step_data: Any) -> Any: ...

    def whole(self, loss: Array) -> Array: ...


class Moment(NamedTuple):
    """One step as a source sees it: `read(f)` is f(output, target) as the loss function is given them; the data of the
    step beside its inputs (targets, weights of a mask), and the loss.

    `errors` are the derivatives of the loss in those leaves of the output that have one; `activity` is what the step
    shows of each group, per position.
    """

    read: Callable[[Callable[[Any, Any], Any]], Any]
    errors: dict[int, Array]
    step_data: Any
    loss: Array
    activity: list[Array]


@dataclass(frozen=True)
class Source:
    """Where a signal comes from.

    `signal(own, moment)` gives, per group, the signal on its activity per position, and a memo of the step; nothing for
    the groups in `direct`, which take the error of the outputs that show them. `own` is what the source has in the
    trace, moved by `move(own, memos)`. With `beside`, outputs that show other groups, too, act on them by their own
    error, which no filter delays, beside the signal.
    """

    signal: Callable[[Any, Moment], tuple[dict[int, Array], Any]]
    direct: frozenset[int] = frozenset()
    init: Callable[[], Any] = tuple
    move: Callable[[Any, Any], Any] = lambda own, memos: own
    beside: bool = False


class ObservedStep(NamedTuple):
    """What readers see, the new states, and the pull-back from both to old states and outputs of weight ops."""

    seen: list[Array]
    states: dict[int, Array]
    pull: Callable[..., tuple[dict[int, Array], dict[int, Array]]]


def observe_step(
    visible: Visible, cut: frozenset[int], leaves: Sequence[Array], weights: Sequence[Array], sites: Sequence[int],
    ys: Mapping[int, Array],
) -> ObservedStep:  # fmt: skip
    """The step, whose ops have given `ys`, ready to pull signals on activity back."""
    facts, old = visible.facts, visible.facts.step.states_of(leaves)

    def run(detach: Detach, h: dict[int, Array], deltas: dict[int, Array]) -> tuple[list[Array], dict[int, Array]]:
        activity, new = observe(facts, visible.readers, cut, leaves, deltas, weights, h, ys, detach)
        return activity, {i: new[i] for i in h}

    deltas = OpenStep(facts.step, facts.sites, cut).no_deltas(sites)
    (activity, states), pull = detaching_vjp(run, {i: old[i] for i in facts.group_of_leaf}, deltas)
    return ObservedStep(activity, states, pull)


def on_activity(
    visible: Visible, observed: ObservedStep, group: int, signal: Array | None, errors: Mapping[int, Array],
    beside: bool = False,
) -> tuple[list[Array], dict[int, Array]]:  # fmt: skip
    """Cotangents for `ObservedStep.pull`: a signal per position on a group's activity; None: its outputs' errors.

    With `beside` the errors of all outputs that show the group are added to the signal.
    """
    facts = visible.facts
    bars = [jnp.zeros_like(a) for a in observed.seen]
    for k, at in visible.place[group].items():
        # Elements that show no position have place −1; they read position 0 and are set to zero.
        value = (
            errors[visible.readers[k].index] if signal is None else _on_parts(_at(signal, np.maximum(at, 0)), bars[k])
        )
        bars[k] = jnp.where(at >= 0, value, 0).astype(observed.seen[k].dtype)
    for k, reader in enumerate(visible.readers if beside and signal is not None else ()):
        if reader.site is None and (at := visible.outputs[group].get(reader.index)) is not None:
            bars[k] += jnp.where(at >= 0, errors[reader.index], 0).astype(bars[k].dtype)
    states = {i: jnp.zeros_like(observed.states[i]) for i in facts.group_of_leaf}
    bare = visible.bare[group]
    for i in facts.groups[group].leaves:
        at = facts.groups[group].place_of(i)
        if signal is not None and bare.any():
            states[i] = jnp.where(bare[at], _on_parts(_at(signal, at), states[i]), 0).astype(states[i].dtype)
    return bars, states


def _at(signal: Array, place: np.ndarray) -> Array:
    """A signal per position, at elements that have these positions.

    Where they are in order it is a reshape: JAX's partitioner gathers the whole of an array that is indexed.
    """
    in_order = place.size == signal.size and np.array_equal(place.reshape(-1), np.arange(place.size))
    return signal.reshape(place.shape) if in_order else signal[place]


def _on_parts(signal: Array, like: Array) -> Array:
    """A signal on an array; a complex one takes it on both of its parts, as cotangents (Re c, −Im c) say it.

    On the real parts alone, what drives imaginary ones (their input matrix) would get no signal.
    """
    return signal * (1 - 1j) if jnp.iscomplexobj(like) else signal


def moment_of(
    visible: Visible, observed: ObservedStep, outputs: list[Array], step_data: Any, loss_of: OutputLoss
) -> Moment:
    """The step as a source sees it."""
    value, errors = errors_of(outputs, step_data, loss_of)
    activity = _activity(visible.facts, visible, observed.seen)
    return Moment(lambda f: loss_of.read(f, outputs, step_data), errors, step_data, loss_of.whole(value), activity)


def errors_of(
    outputs: Sequence[Array], step_data: Any, loss_of: OutputLoss, loss_weight: Array | float = 1.0
) -> tuple[Array, dict[int, Array]]:
    """The loss of a step, and the derivative of `loss_weight` times it in each output leaf that has one."""
    # Whole numbers and keys have no cotangent, so they are held constant.
    diff = [k for k, o in enumerate(outputs) if jnp.issubdtype(o.dtype, jnp.inexact)]

    def loss(moving: Mapping[int, Array]) -> Array:
        return loss_of([moving.get(k, o) for k, o in enumerate(outputs)], step_data)[0]

    value, pull = jax.vjp(loss, {k: outputs[k] for k in diff})
    return value, pull(jnp.full_like(value, loss_weight))[0]


def _activity(facts: Facts, visible: Visible, values: Sequence[Array]) -> list[Array]:
    """What the step shows of each group, per position; zero where it is bare."""
    activity = []
    for group, place in zip(facts.groups, visible.place, strict=True):
        total = jnp.zeros(group.num_positions)
        for k, at in place.items():
            flat, value = at.reshape(-1), jnp.real(values[k]).reshape(-1).astype(total.dtype)
            # Each position is shown by one reader (`find_visible`), so its value is set, not added up.
            total = total.at[flat[flat >= 0]].set(value[flat >= 0])
        activity.append(total)
    return activity
