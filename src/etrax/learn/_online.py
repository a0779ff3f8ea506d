"""One sample at a time: a Python loop with bounded latency."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_arrays, check_flag
from .._compat import shape_struct, staged_copy, transfers_meant
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree, describe
from ..runtime import restarted
from ._checks import Optimizer, Signature, check_opt_state, check_optimizer, check_window, signature_of
from ._finite import flag_sample, raise_if_bad_sample
from ._functions import sample_function
from ._program import LearnerState
from ._sequence import Losses

if TYPE_CHECKING:
    from ._learner import Learner


class OnlineResult(NamedTuple):
    """What one sample gave: the model's output before learning from it, and the window's loss if a window ended."""

    output: PyTree
    loss: jax.Array | None


class Sample(NamedTuple):
    """What was fed at one step: inputs, target, and a flag, or one for each lane, that starts again before it."""

    inputs: tuple[PyTree, ...]
    target: PyTree
    reset: PyTree


class _Held(NamedTuple):
    """All that a stream knows, replaced by one assignment: whatever interrupts a call, it is whole.

    `state` is that at the beginning of the window, `hidden` that after the samples that wait for its end; `initial` is
    the hidden state that a reset among them returns to.
    """

    params: PyTree
    opt_state: PyTree
    state: LearnerState
    hidden: PyTree
    waiting: tuple[Sample, ...] = ()
    initial: PyTree = None

    def before_window(self) -> _Held:
        return self._replace(hidden=self.state.hidden, waiting=(), initial=None)


def _copied(a: PyTree) -> PyTree:
    """An array that stays as it is until the window ends; a caller may fill one buffer of numpy again and again."""
    return a.copy() if isinstance(a, np.ndarray) else a


def _is_same(one: PyTree, other: PyTree) -> bool:
    """Whether two trees hold the same arrays."""
    return all(a is b for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@transfers_meant()
def _with_all_flags(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Samples that can be stacked: if one has flags all have, for as many lanes."""
    flags = [s.reset for s in samples if s.reset is not None]
    if not flags:
        return samples
    shape = max((a.shape for a in flags), key=len)

    def filled(a: PyTree) -> PyTree:
        return jnp.zeros(shape, bool) if a is None else jnp.broadcast_to(a, shape)

    return tuple(s._replace(reset=filled(s.reset)) for s in samples)


@jax.jit
def _stacked(samples: tuple[PyTree, ...]) -> PyTree:
    """Samples as one sequence; one program, whatever their number of arrays."""
    return jax.tree.map(lambda *a: jnp.stack(a), *samples)


class Online:
    """A stream: feed samples, read outputs; parameters are updated after every window.

    Each call runs one compiled step; every K-th also learns from the last K samples, which is the longest a call takes,
    and waits for its end. `params`, `opt_state` and `state` can be read and assigned at any time. A state that is
    assigned begins a window: samples that wait for the end of the old one are dropped (`flush` learns from them first).

    **When a call fails.** A sample that is refused leaves the stream as it was before that sample. An update that
    fails leaves it as it was before the window: hidden state, trace, parameters and optimizer, without the window's
    samples, any of which may be the cause. Of a model compiled with `check_finite=True`, a sample that makes an input,
    a state or the loss NaN or infinite is refused, and an update that does so to a trace or a parameter fails. An
    interrupt (Ctrl-C) leaves the stream as it was before the sample, which can be fed again, or as it is after it if
    the interrupt came while the result was handed over: `step` says which.

    With `donate=True` the trace is moved in its place, and there is one less in memory; a stream whose update fails or
    is interrupted has then lost its state, says so, and goes on once `state` is assigned.

    **Threads.** Calls of several threads wait for each other and are served one after the other, each whole.
    """

    def __init__(
        self, learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, window: int, params: PyTree,
        state: LearnerState | None, donate: bool,
    ):  # fmt: skip
        by_lane = None if state is None else learner.lanes_for(state, None)
        learner = learner if by_lane is None else by_lane
        self.learner, self.window = learner, check_window(window)
        check_optimizer(optimizer)
        self._optimizer, self._donate = optimizer, check_flag("donate", donate)
        params = self._checked_params(learner.params if params is None else params)
        # The stream's own state: it may be used up, and what is given may be used up elsewhere.
        state = learner.init(params) if state is None else self._own_state(params, state)
        self._held = _Held(params, optimizer.init(params), state, state.hidden)
        self._losses = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode)
        # A window of one sample is one program, unless the sample may be refused for what it gives.
        self._at_once = self.window == 1 and not learner.options.check_finite
        self._compile()
        self._step = jax.jit(self._plain_step)
        self._like: PyTree = ...  # no target has been seen
        self._signature: Signature | None = None
        self._lock = threading.RLock()

    def _compile(self) -> None:
        learner, loss_fn = self.learner, self._losses.loss_fn
        if self._at_once:
            losses = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode, keep_outputs=True)
            self._take = learner.once(sample_function, self._optimizer, losses, self._donate)
        self._train = learner.train(self._optimizer, loss_fn, window=self.window, donate=self._donate)

    def _go_by_lane(self) -> None:
        """From now on each lane may start again on its own: the trace has numbers for each."""
        if self.learner.facts.lanes is None:
            self.learner = self.learner.by_lane
            self._held = self._held._replace(state=self.learner.in_lanes(self._held.state))
            self._compile()

    def __repr__(self) -> str:
        waits = f"{len(self._held.waiting)} of {self.window} samples wait for the end of their window"
        return f"Online({self.learner.report.summary()}; {waits})"

    @property
    def params(self) -> PyTree:
        return self._held.params

    @params.setter
    def params(self, params: PyTree) -> None:
        with self._lock:
            self._held = self._held._replace(params=self._checked_params(params))

    @property
    def opt_state(self) -> PyTree:
        return self._held.opt_state

    @opt_state.setter
    def opt_state(self, opt_state: PyTree) -> None:
        with self._lock:
            check_opt_state(self._optimizer, self._held.params, opt_state)
            self._held = self._held._replace(opt_state=opt_state)

    @property
    def state(self) -> LearnerState:
        """Hidden state and trace at the beginning of the window."""
        return self._live(self._held).state

    @state.setter
    def state(self, state: LearnerState) -> None:
        with self._lock:
            self._held = self._held._replace(state=self._own_state(self._held.params, state)).before_window()

    @property
    def step(self) -> int:
        """The number of samples taken, those that wait for the end of their window included."""
        held = self._live(self._held)
        return int(jax.device_get(held.state.step)) + len(held.waiting)

    def _checked_params(self, params: PyTree) -> PyTree:
        self.learner.program.params(params)
        return jax.tree.map(jnp.asarray, params)

    def _own_state(self, params: PyTree, state: LearnerState) -> LearnerState:
        """A copy of a state that fits."""
        if self.learner.lanes_for(state, None) is not None:
            self._go_by_lane()
        state = self.learner.in_lanes(state)
        self.learner.program.check_both(params, state)
        self.learner.program.states(state.hidden)
        return jax.tree.map(staged_copy, state)

    def feed(
        self, inputs: PyTree, target: PyTree = None, reset: PyTree = False, *, initial: PyTree = None
    ) -> OnlineResult:
        """Take one sample (a tuple of step inputs, or one array); return the output, and the loss if a window ended.

        `reset`, True or a boolean for each lane, starts again before the sample: hidden state and trace are those of
        `learner.init()`, or `initial` is the hidden state. No gradient passes it.
        """
        sample = Sample(self.learner.program.as_tuple(inputs), target, None if reset is False else reset)
        with self._lock:
            self._check(self._held, sample.inputs, target)
            if sample.reset is not None or initial is not None:
                sample, initial = self._with_reset(sample, initial)
            held = self._held
            if self._at_once:
                return self._learn_at_once(held, sample, initial)
            args = (held.params, held.hidden, sample, initial)
            hidden, output, flags = jax.block_until_ready(self._step(*args))
            if flags is not None:
                raise_if_bad_sample(self.learner.facts, flags, self.step)
            if sample.reset is not None:
                held = held._replace(initial=initial)
            held = held._replace(waiting=(*held.waiting, jax.tree.map(_copied, sample)))
            if len(held.waiting) == self.window:
                return OnlineResult(output, self._learn(held))
            self._held = held._replace(hidden=hidden)
            return OnlineResult(output, None)

    @transfers_meant()  # a flag is mostly a number of Python
    def _with_reset(self, sample: Sample, initial: PyTree) -> tuple[Sample, PyTree]:
        """A sample whose flags are an array, and the hidden state that they return to; checked."""
        initial = self.learner.start_of(sample.reset, initial)
        by_lane = self.learner.lanes_for(self._held.state, sample.reset, rank=1)
        flags, _ = (self.learner if by_lane is None else by_lane).program.resets(sample.reset, initial, None)
        if any(s.reset is not None for s in self._held.waiting) and not _is_same(initial, self._held.initial):
            raise ArgumentError("the resets of one window return to one `initial` state: `flush()` before another one.")
        if by_lane is not None:
            self._go_by_lane()
        return sample._replace(reset=flags), initial

    def _learn_at_once(self, held: _Held, sample: Sample, initial: PyTree) -> OnlineResult:
        args = (held.params, held.opt_state, held.state, *sample, initial)
        params, opt_state, state, loss, output = self._take(*args)
        loss.block_until_ready()  # what fails while it runs, a callback for one, is seen here
        self._held = _Held(params, opt_state, state, state.hidden)
        return OnlineResult(output, loss)

    def flush(self) -> jax.Array | None:
        """Learn from the samples of an unfinished window; its loss, or None if there are none."""
        with self._lock:
            return self._learn(self._live(self._held)) if self._held.waiting else None

    def _plain_step(
        self, params: PyTree, hidden: PyTree, sample: Sample, initial: PyTree
    ) -> tuple[PyTree, PyTree, jax.Array | None]:
        """The new hidden state, the output, and what is not finite of this sample if the learner is to find out."""
        program, (inputs, target, reset) = self.learner.program, sample
        if reset is not None:
            flags, start = program.resets(reset, initial, None)
            assert flags is not None
            hidden = program.hidden_of(restarted(flags, start, program.states(hidden)))
        hidden, output = self.learner.plain_step(params, hidden, inputs)
        if not self.learner.options.check_finite:
            return hidden, output, None
        loss = self._losses.loss_fn(output, target)
        return hidden, output, flag_sample(program.inputs_of_step(inputs), program.states(hidden), loss)

    def _live(self, held: _Held) -> _Held:
        """What the stream knows, if its state was not used up by an update that gave no new one."""
        if self._donate and any(a.is_deleted() for a in jax.tree.leaves(held.state)):
            raise ArgumentError(
                "an update of this stream failed or was interrupted after its state had been used up (`donate=True`): "
                "assign one to go on, `stream.state = learner.init(stream.params)`."
            )
        return held

    def _check(self, held: _Held, inputs: tuple[PyTree, ...], target: PyTree) -> None:
        """A sample that does not fit is refused before it is kept: the stream goes on without it."""
        self._live(held)
        signature = signature_of((inputs, target))
        if signature is not None and signature == self._signature:
            return  # like the sample before, which was checked
        self.learner.program.inputs_of_step(inputs)
        check_arrays("target", target)
        like = jax.tree.map(shape_struct, target)
        if held.waiting and like != self._like:
            raise ArgumentError(
                f"`target` holds {describe(target, 'target')}, but the window began with "
                f"{describe(self._like, 'target')}: the targets of a window have one structure, shape and type."
            )
        if like != self._like:
            self._losses.check(jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), like), None)
            self._like = like
        if self._at_once:
            self.learner.warn(jax.tree.map(lambda a: jnp.asarray(a)[None], inputs), 1, stacklevel=4)
        self._signature = signature

    def _learn(self, held: _Held) -> jax.Array:
        try:
            xs, ys, reset = _stacked(_with_all_flags(held.waiting))
            alone = not jax.tree.leaves((xs, ys))  # nothing else says how many steps there were
            mask = jnp.ones(len(held.waiting)) if alone else None
            restarts = {} if reset is None else {"reset": reset, "initial": held.initial}
            args = (held.params, held.opt_state, held.state, xs, ys, mask)
            params, opt_state, state, losses = self._train(*args, **restarts)
            jax.block_until_ready(losses)  # what fails while it runs, a callback for one, is seen here
        except Exception as error:
            self._held = held.before_window()
            if any(isinstance(a, jax.Array) and a.is_deleted() for a in jax.tree.leaves(held.waiting)):
                raise ArgumentError(
                    "an array that was fed was deleted or given away (`donate_argnums`) before its window ended: the "
                    "stream is as it was before the window. Feed a copy, `jnp.copy(x)`."
                ) from error
            raise
        loss = losses.reshape(())
        self._held = _Held(params, opt_state, state, state.hidden)
        return loss
