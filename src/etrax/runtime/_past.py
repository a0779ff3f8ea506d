"""The last steps before a window, run again at today's parameters: windows that overlap.

    h_{t−n} ──► … ──► h_t ──► the window        (∂L/∂h_t) · ∂h_t/∂θ over these n steps, by reverse mode

States and inputs of the last n steps are stored as they were, and no Jacobian is. Where lanes start again between two
of the stored steps, the state after the restart is the stored one, and nothing passes to the steps before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import zeros_of
from ..compiler.analysis import Facts
from ..compiler.ir import Role
from ..compiler.opened import Weights
from . import _site_math as site_math
from ._resets import restarted
from ._transport import EachStep, PullBack, Transport, WindowData
from ._window import WindowRun, live_sites, run_again


class Past(NamedTuple):
    """States before each of the last n steps, and its inputs, the newest last; `filled` of them have been.

    `starts` are flags (n, lanes): whether states start again before the step; one for all lanes where none of them
    starts again on its own.
    """

    states: list[Array]
    inputs: list[Array]
    starts: Array
    filled: Array


def past_transport(facts: Facts, sites: frozenset[int] | None, steps: int) -> Transport[Past]:
    """A transport whose trace is the last `steps` steps."""
    own = [j for j in live_sites(facts) if sites is None or j in sites]
    count, first = len(facts.states), len(facts.step.select(Role.PARAM))
    avals = [leaf.aval for leaf in (*facts.states, *facts.step.select(Role.INPUT))]
    lanes = 1 if facts.lanes is None else facts.lanes

    def init() -> Past:
        stored = [zeros_of(jax.ShapeDtypeStruct((steps, *a.shape), a.dtype)) for a in avals]
        return Past(stored[:count], stored[count:], jnp.ones((steps, lanes), bool), jnp.zeros((), jnp.int32))

    def credit(past: Past, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        pull, data = _again(facts, past, window)
        _, bars = pull({i: jnp.where(past.filled > 0, bar, jnp.zeros((), bar.dtype)) for i, bar in g.items()})
        return {j: site_math.grad(facts.sites[j], window.fixed[j], data[j], bars[j]) for j in own}

    def move(past: Past, window: WindowData) -> Past:
        flags = jnp.zeros(window.steps, bool) if window.resets is None else window.resets
        flags = jnp.broadcast_to(flags.reshape(window.steps, -1), (window.steps, lanes))
        recent = window.records[:count], window.records[count:], flags
        stored = past.states, past.inputs, past.starts
        states, inputs, starts = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[-steps:], stored, recent)
        return Past(states, inputs, starts, jnp.minimum(past.filled + window.steps, steps))

    return Transport(init, credit, move, EachStep(lambda leaves, weights, ys: leaves[first:]))


def _again(facts: Facts, past: Past, window: WindowData) -> tuple[PullBack, dict[int, tuple[Array, ...]]]:
    """The way back through the stored steps, and the data of their ops.

    Before a sequence there are none: the first step of the window stands in for them, and passes nothing on.
    """
    steps, count = past.starts.shape[0], len(past.states)
    number = np.arange(steps) - (steps - past.filled)  # of the steps that have been; those before it are negative

    def with_now(stored: Array, now: Array) -> Array:
        return jnp.where(number.reshape(-1, *[1] * now[0].ndim) >= 0, stored, now[0])

    states, inputs = jax.tree.map(
        with_now, (past.states, past.inputs), (window.records[:count], window.records[count:])
    )
    starts = past.starts | (number <= 0)[:, None]
    starts = starts[:, 0] if facts.lanes is None else starts
    weights = Weights(list(window.weights), list(window.fixed))
    run = WindowRun(window.params, weights, [a[0] for a in states], (), inputs, (), _no_loss, resets=(starts, states))
    return run_again(facts, run, steps, lambda resets, held: restarted(resets[0], resets[1], held), with_data=True)


def _no_loss(outs: list[Array], step_data: object) -> tuple[Array, tuple[()]]:
    return jnp.zeros(()), ()
