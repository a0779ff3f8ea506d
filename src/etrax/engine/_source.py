"""Where a learning signal comes from, and its way from a group's activity to the states.

The signal acts on what the step itself reads of a new state; the step's own derivative takes it to the states, so
that a spike's pseudo-derivative counts, and an LSTM's cell hears of an error through its h alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..analysis import Facts, Visible


class Moment(NamedTuple):
    """One step as a source sees it: output leaves, the derivative of the loss in them, what runs along, the loss.

    `activity` is what the step shows of each group, per position.
    """

    outputs: list[Any]
    errors: list[Any]
    along: Any
    loss: Any
    activity: list[Any]


@dataclass(frozen=True)
class Source:
    """Where a signal comes from.

    `signal(own, moment)` gives, per group, the signal on its activity per position, and a memo of the step; None for a
    group stands for the error of the outputs that show it. `own` is what the source keeps in the trace, moved by
    `move(own, memos)`.
    """

    signal: Callable[[Any, Moment], tuple[list[Any], Any]]
    init: Callable[[], Any] = tuple
    move: Callable[[Any, Any], Any] = lambda own, memos: own


def state_signals(
    visible: Visible, source: Source, own: Any, leaves: Sequence[Any], along: Any, loss_of: Any
) -> tuple[dict[int, Any], Any]:
    """Cotangents of the new states, per leaf, and the source's memo."""
    facts = visible.facts
    outs = facts.step.run(leaves)
    n = len(facts.states)
    moving = {i: outs[i] for g in facts.groups for i in g.leaves}
    shown, pull = jax.vjp(lambda new: visible.read(leaves, new), moving)
    loss, errors = _errors(facts, outs[n:], along, loss_of)
    on_activity, memo = source.signal(own, Moment(outs[n:], errors, along, loss, _activity(visible, shown)))
    found: dict[int, Any] = {}
    for group, signal, place, bare in zip(facts.groups, on_activity, visible.place, visible.bare, strict=True):
        bars = [jnp.zeros_like(a) for a in shown]
        for k, at in place.items():
            if signal is None and visible.readers[k].site is None:
                value = errors[visible.readers[k].index]
            else:
                assert signal is not None
                value = signal[np.maximum(at, 0)]
            bars[k] = jnp.where(at >= 0, value, 0).astype(shown[k].dtype)
        pulled = pull(bars)[0]
        for i in group.leaves:
            at = group.place_of(i)
            extra = (
                jnp.where(bare[at], signal[at], 0).astype(moving[i].dtype) if signal is not None and bare.any() else 0
            )
            found[i] = pulled[i] + extra
    return found, memo


def _errors(facts: Facts, outputs: list[Any], along: Any, loss_of: Any) -> tuple[Any, list[Any]]:
    """The loss of a step and its derivative in every output leaf (None for one without derivatives)."""
    diff = [k for k, o in enumerate(outputs) if jnp.issubdtype(o.dtype, jnp.inexact)]

    def loss(moving: list[Any]) -> Any:
        full = list(outputs)
        for k, o in zip(diff, moving, strict=True):
            full[k] = o
        return loss_of(full, along)[0]

    value, pull = jax.vjp(loss, [outputs[k] for k in diff])
    found = dict(zip(diff, pull(jnp.ones_like(value))[0], strict=True))
    return value, [found.get(k) for k in range(len(outputs))]


def _activity(visible: Visible, shown: Sequence[Any]) -> list[Any]:
    """What the step shows of each group, per position; zero where it is bare."""
    found = []
    for group, place in zip(visible.facts.groups, visible.place, strict=True):
        total = jnp.zeros(group.num_positions)
        for k, at in place.items():
            total = total.at[at[at >= 0]].set(jnp.real(shown[k])[at >= 0].astype(total.dtype))
        found.append(total)
    return found
