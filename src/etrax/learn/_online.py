"""One sample at a time: a Python loop with bounded latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from .._arguments import check_arrays
from .._compat import shape_struct, staged_copy
from .._errors import ArgumentError
from ..ir import LossFunction, PyTree, describe
from ._checks import Optimizer, check_optimizer, check_window
from ._program import LearnerState
from ._sequence import Losses

if TYPE_CHECKING:
    from ._learner import Learner


class OnlineResult(NamedTuple):
    """What one sample gave: the model's output before learning from it, and the window's loss if a window ended."""

    output: PyTree
    loss: jax.Array | None


class Online:
    """A stream: feed samples, read outputs; parameters are updated after every window.

    Each call runs one compiled step; every K-th also learns from the last K samples, which is the longest a call takes.
    `state` is moved in its place: copy it (`jax.tree.map(jnp.copy, stream.state)`) to keep it.
    """

    def __init__(
        self, learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, window: int, params: PyTree,
        state: LearnerState | None,
    ):  # fmt: skip
        self.learner, self.window = learner, check_window(window)
        check_optimizer(optimizer)
        self.params = learner.params if params is None else params
        learner.program.params(self.params)  # checks them
        self.params = jax.tree.map(jnp.asarray, self.params)
        self.opt_state = optimizer.init(self.params)
        if state is not None:
            learner.program.check_both(self.params, state)
        # The stream's own, which it uses up.
        self.state = learner.init(self.params) if state is None else jax.tree.map(staged_copy, state)
        self._train = learner.train(optimizer, loss_fn, window=window, donate=True)
        self._losses = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode)
        self._step = jax.jit(learner.plain_step)
        self._now = self.state.hidden
        self._waiting: list[tuple[PyTree, PyTree]] = []
        self._like: PyTree = ...  # no target has been seen

    def __repr__(self) -> str:
        waits = f"{len(self._waiting)} of {self.window} samples wait for the end of their window"
        return f"Online({self.learner.report.summary()}; {waits})"

    def feed(self, inputs: PyTree, target: PyTree = None) -> OnlineResult:
        """Take one sample (a tuple of step inputs, or one array); return the output, and the loss if a window ended."""
        inputs = self.learner.program.as_tuple(inputs)
        self._check(inputs, target)
        self._now, output = self._step(self.params, self._now, inputs)
        self._waiting.append((inputs, target))
        loss = self._learn() if len(self._waiting) == self.window else None
        return OnlineResult(output, loss)

    def flush(self) -> jax.Array | None:
        """Learn from the samples of an unfinished window; its loss, or None if there are none."""
        return self._learn() if self._waiting else None

    def _check(self, inputs: tuple[PyTree, ...], target: PyTree) -> None:
        """A sample that does not fit is refused before it is kept: the stream goes on without it."""
        self.learner.program.inputs_of_step(inputs)
        check_arrays("target", target)
        found = jax.tree.map(shape_struct, target)
        if self._waiting and found != self._like:
            raise ArgumentError(
                f"`target` holds {describe(target, 'target')}, but the window began with "
                f"{describe(self._like, 'target')}: the targets of a window have one structure, shape and type."
            )
        if found != self._like:
            self._losses.check(jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), found), None)
            self._like = found

    def _learn(self) -> jax.Array:
        xs, ys = jax.tree.map(lambda *a: jnp.stack(a), *self._waiting)
        alone = not jax.tree.leaves((xs, ys))  # nothing else says how many steps there were
        mask = jnp.ones(len(self._waiting)) if alone else None
        self._waiting = []
        self.params, self.opt_state, self.state, losses = self._train(
            self.params, self.opt_state, self.state, xs, ys, mask
        )
        self._now = self.state.hidden
        return losses[0]
