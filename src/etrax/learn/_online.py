"""One sample at a time: a Python loop with bounded latency."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_arrays, check_flag, shown_by_treescope
from .._compat import shape_struct, staged_copy, transfers_meant
from .._errors import ArgumentError
from ..compiler.ir import LossFunction, PyTree, describe
from ..runtime import restarted
from ._checked_once import Signature, signature_of
from ._checks import Optimizer, check_opt_state, check_optimizer, check_window, copied, strong
from ._finite import flag_sample, raise_if_bad_sample
from ._functions import sample_function, steps_function
from ._program import LearnerState
from ._sequence import Losses

if TYPE_CHECKING:
    from ._learner import Learner


class OnlineResult(NamedTuple):
    """The model's output before it learned from the sample, and the window's loss if a window ended."""

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


def _is_same(one: PyTree, other: PyTree) -> bool:
    """Whether two trees hold the same arrays; of numpy's, arrays that are equal now."""

    def same(a: PyTree, b: PyTree) -> bool:
        return a is b or (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b))

    return all(map(same, jax.tree.leaves(one), jax.tree.leaves(other)))


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

    Each call runs one compiled step; every K-th call also learns from the last K samples and waits for the result, so
    it takes longest. `params`, `opt_state` and `state` can be read and assigned at any time. Assigning a state begins a
    new window: samples of an unfinished window are dropped (call `flush` first to learn from them).

    **When a call fails.** A sample that is refused leaves the stream as it was before that sample. An update that
    fails leaves it as it was before the window: hidden state, trace, parameters and optimizer, without the window's
    samples, any of which may be the cause. For a model compiled with `check_finite=True`, a sample that makes an input,
    a state or the loss NaN or infinite is refused, and an update that does so to a trace or a parameter fails. An
    interrupt (Ctrl-C) leaves the stream as it was before the sample, which can be fed again, or as it is after the
    sample if the interrupt came while the result was being returned: `step` says which.

    With `donate=True` the trace is overwritten, so that only one is in memory. If an update fails or is interrupted,
    the stream has then lost its state: it says so, and continues once `state` is assigned.

    **Threads.** Several threads may call a stream: their calls run one after the other.
    """

    def __init__(
        self, learner: Learner, optimizer: Optimizer, loss_fn: LossFunction, window: int, params: PyTree,
        state: LearnerState | None, opt_state: PyTree, donate: bool,
    ):  # fmt: skip
        by_lane = None if state is None else learner.resets.lanes_for(state, None)
        learner = learner if by_lane is None else by_lane
        self.learner, self.window = learner, check_window(window)
        check_optimizer(optimizer)
        self._optimizer, self._donate = optimizer, check_flag("donate", donate)
        params = self._checked_params(learner.params if params is None else params)
        # The stream's own state: it may be used up, and what is given may be used up elsewhere.
        start: LearnerState = strong(learner.init(params)) if state is None else self._own_state(params, state)
        opt_state = strong(optimizer.init(params)) if opt_state is None else self._checked_opt_state(params, opt_state)
        self._held = _Held(params, opt_state, start, start.hidden)
        self._losses = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode)
        # A window of one sample is one program, unless the sample may be refused for what it gives.
        self._at_once = self.window == 1 and not learner.options.check_finite
        self._compile()
        self._step = jax.jit(self._plain_step)
        self._like: PyTree = ...  # no target has been seen
        self._seen_target, self._needs_target = False, None  # nor a sample without one
        self._all_lanes: jax.Array | None = None  # the flag of `reset=True`, on the device
        self._seen_resets: set[tuple[tuple[int, ...], np.dtype]] = set()
        self._signature: Signature | None = None
        self._lock = threading.RLock()

    def _compile(self) -> None:
        learner, loss_fn = self.learner, self._losses.loss_fn
        if self._at_once:
            losses = Losses(learner.facts.step, loss_fn, "mean", learner.program.decode, keep_outputs=True)
            self._take = learner.once(sample_function, self._optimizer, losses, self._donate)
        self._train = learner.train(self._optimizer, loss_fn, window=self.window, donate=self._donate)
        self._advance = learner.once(steps_function)

    def _go_by_lane(self) -> None:
        """From now on each lane may start again on its own: the trace has numbers for each."""
        if self.learner.facts.lanes is None:
            self.learner = self.learner.resets.by_lane
            self._held = self._held._replace(state=self.learner.resets.in_lanes(self._held.state))
            self._compile()

    def __repr__(self) -> str:
        waits = f"{len(self._held.waiting)} of {self.window} samples wait for the end of their window"
        return f"Online({self.learner.report.summary()}; {waits})"

    def __treescope_repr__(self, path: str | None, subtree_renderer: Callable[..., object]) -> object:
        """What treescope shows: all that the stream holds, as trees to open."""
        return shown_by_treescope(self, ("window", "params", "opt_state", "state", "learner"), path, subtree_renderer)

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
            opt_state = self._checked_opt_state(self._held.params, opt_state)
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
        return strong(params)

    def _checked_opt_state(self, params: PyTree, opt_state: PyTree) -> PyTree:
        check_arrays("opt_state", opt_state)
        check_opt_state(self._optimizer, params, opt_state)
        return strong(opt_state)

    def _own_state(self, params: PyTree, state: LearnerState) -> LearnerState:
        """A copy of a state that fits."""
        if self.learner.resets.lanes_for(state, None) is not None:
            self._go_by_lane()
        state = self.learner.resets.in_lanes(state)
        self.learner.program.check_both(params, state)
        self.learner.program.states(state.hidden)
        return jax.tree.map(staged_copy, strong(state))

    def feed(
        self, inputs: PyTree, target: PyTree = None, reset: PyTree = False, *, initial: PyTree = None
    ) -> OnlineResult:
        """Take one sample; return the output, and the loss if a window ended.

        - `inputs`: the inputs of one step: a tuple of them, or one array.
        - `target`: what the loss compares the output with; without it, nothing is learned from the sample.
        - `reset`: True, or a boolean for each lane, restarts the stream before the sample: hidden state and trace are
          those of `learner.init()`, and no gradient passes.
        - `initial`: another hidden state to restart from.

        A sample without a target still advances hidden state and trace: its output is a prediction. In a window of
        several samples the loss is the mean over those that have a target; a window without any leaves parameters and
        optimizer as they are, and its loss is None. (A loss of the output alone, one that takes None as its target,
        learns from such a sample too.)
        """
        if type(reset) is np.bool_:
            reset = bool(reset)
        sample = Sample(self.learner.program.as_tuple(inputs), target, None if reset is False else reset)
        with self._lock:
            seen = self._at_once and self._seen_target and target is not None and initial is None
            if seen and (reset is False or self._has_seen(reset)):
                # The program checks a sample of another kind while it is traced.
                sample = sample._replace(reset=self._flags(reset))
                return self._learn_at_once(self._held, sample, self.learner.resets.start_of(sample.reset, None))
            self._check(self._held, sample.inputs, target)
            if sample.reset is not None or initial is not None:
                sample, initial = self._with_reset(sample, initial)
            held = self._held
            if self._at_once:
                take = self._learn_at_once if self._has_target(sample) else self._predict_at_once
                return take(held, sample, initial)
            args = (held.params, held.hidden, sample, initial)
            hidden, output, flags = jax.block_until_ready(self._step(*args))
            if flags is not None:
                raise_if_bad_sample(self.learner.facts, flags, self.step)
            if sample.reset is not None:
                held = held._replace(initial=jax.tree.map(copied, initial))
            held = held._replace(waiting=(*held.waiting, jax.tree.map(copied, sample)))
            if len(held.waiting) == self.window:
                return OnlineResult(output, self._learn(held))
            self._held = held._replace(hidden=hidden)
            return OnlineResult(output, None)

    @transfers_meant()  # a flag is mostly a number of Python
    def _with_reset(self, sample: Sample, initial: PyTree) -> tuple[Sample, PyTree]:
        """A sample whose flags are an array, and the hidden state that they return to; checked."""
        initial = self.learner.resets.start_of(sample.reset, initial)
        by_lane = self.learner.resets.lanes_for(self._held.state, sample.reset, rank=1)
        flags, _ = (self.learner if by_lane is None else by_lane).program.resets(sample.reset, initial, None)
        if any(s.reset is not None for s in self._held.waiting) and not _is_same(initial, self._held.initial):
            raise ArgumentError("the resets of one window return to one `initial` state: `flush()` before another one.")
        if by_lane is not None:
            self._go_by_lane()
        if sample.reset is True:
            self._all_lanes = flags
        elif isinstance(sample.reset, np.ndarray | jax.Array):
            self._seen_resets.add((sample.reset.shape, sample.reset.dtype))
        return sample._replace(reset=flags), initial

    def _has_seen(self, reset: PyTree) -> bool:
        """Whether flags are of a kind that was checked."""
        if reset is True:
            return self._all_lanes is not None
        return isinstance(reset, np.ndarray | jax.Array) and (reset.shape, reset.dtype) in self._seen_resets

    def _flags(self, reset: PyTree) -> PyTree:
        """Flags of a kind that was checked, as arrays; None where it can be seen that none is set."""
        if reset is True:
            return self._all_lanes
        return None if reset is False or (isinstance(reset, np.ndarray) and not reset.any()) else reset

    def _learn_at_once(self, held: _Held, sample: Sample, initial: PyTree) -> OnlineResult:
        inputs, target, reset = sample
        try:
            params, opt_state, state, loss, output = self._take(
                held.params, held.opt_state, held.state, inputs, target, reset, initial
            )
            loss.block_until_ready()  # what fails while it runs, a callback for one, is seen here
        except jax.errors.JaxRuntimeError:
            raise
        except Exception as error:
            failure = error
        else:
            self._held = _Held(params, opt_state, state, state.hidden)
            self._seen_target = True
            return OnlineResult(output, loss)
        self._check(held, inputs, target)  # says in words what does not fit
        raise failure

    def _predict_at_once(self, held: _Held, sample: Sample, initial: PyTree) -> OnlineResult:
        restart = {} if sample.reset is None else {"reset": sample.reset, "initial": initial}
        state, output = self.learner.step(held.params, held.state, *sample.inputs, **restart)
        state.step.block_until_ready()
        self._held = held._replace(state=state, hidden=state.hidden)
        return OnlineResult(output, None)

    def _has_target(self, sample: Sample) -> bool:
        """Whether a sample is learned from."""
        if sample.target is not None:
            return True
        if self._needs_target is None:
            self._needs_target = not self._losses.takes_no_target()
        return not self._needs_target

    def flush(self) -> jax.Array | None:
        """Learn from the samples of an unfinished window; returns its loss, or None if none of them has a target.

        It compiles once, whatever the number of samples: the rest of the window is padded and does not count. (Under
        `synthetic`, `uoro` and `kf_rtrl`, whose windows cannot be padded, it compiles once for each number.)
        """
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
        loss = self._losses.loss_fn(output, target) if self._has_target(sample) else jnp.zeros(())
        return hidden, output, flag_sample(program.inputs_of_step(inputs), program.states(hidden), loss)

    def _live(self, held: _Held) -> _Held:
        """What the stream knows, if its state was not used up by an update that gave no new one."""
        if self._donate and any(a.is_deleted() for a in jax.tree.leaves(held.state)):
            raise ArgumentError(
                "an update of this stream failed or was interrupted after its state had been overwritten "
                "(`donate=True`): to continue, assign a new one, `stream.state = learner.init(stream.params)`."
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
        if not self._has_target(Sample(inputs, target, None)):
            like = self._like  # nothing is learned from it: it may wait beside any other
        if any(map(self._has_target, held.waiting)) and like != self._like:
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

    def _learn(self, held: _Held) -> jax.Array | None:
        """The update of a window that ended, and its loss; the stream is then at the beginning of the next one."""
        try:
            held, loss = self._updated(held)
        except Exception as error:
            self._held = held.before_window()
            if any(isinstance(a, jax.Array) and a.is_deleted() for a in jax.tree.leaves(held.waiting)):
                raise ArgumentError(
                    "an array that was fed was deleted or donated (`donate_argnums`) before its window ended: the "
                    "stream is as it was before the window. Feed a copy, `jnp.copy(x)`."
                ) from error
            raise
        self._held = held
        return loss

    def _updated(self, held: _Held) -> tuple[_Held, jax.Array | None]:
        learned_from = [self._has_target(s) for s in held.waiting]
        count, size = len(held.waiting), self.window
        transport = self.learner.program.transport
        if any(learned_from) and (transport.future is not None or not transport.moves_in_pieces):
            # The rule estimates what follows the last sample, where nothing may stand, or draws once for a window.
            size = count
        filled = self._filled(held.waiting, learned_from, size)
        xs, ys, reset = _stacked(_with_all_flags(filled))
        restarts = {} if reset is None else {"reset": reset, "initial": held.initial}
        state = None
        if count < size or not any(learned_from):
            # What fills up the window would move the state, too.
            steps = (held.params, held.state, xs, reset, held.initial, jax.device_put(np.int32(count)))
            (state,) = self._advance(*steps)
        if not any(learned_from):
            jax.block_until_ready(state)
            return held._replace(state=state).before_window(), None
        # Nothing else says how many steps there were if there are neither inputs nor targets.
        alone, mask = not jax.tree.leaves((xs, ys)), None
        if alone or count < size or not all(learned_from):
            weights = np.array([*learned_from, *[False] * (size - count)], np.float32)
            mask = jax.device_put(weights)
        params, opt_state, after, losses = self._train(
            held.params, held.opt_state, held.state, xs, ys, mask, **restarts
        )
        state = after if state is None else state
        jax.block_until_ready((losses, state.step))  # what fails while it runs, a callback for one, is seen here
        return _Held(params, opt_state, state, state.hidden), losses.reshape(())

    def _filled(self, samples: tuple[Sample, ...], learned_from: list[bool], size: int) -> tuple[Sample, ...]:
        """Samples that can be stacked, `size` of them: what is not learned from has some target, and does not count."""
        targets = [s.target for s, has in zip(samples, learned_from, strict=True) if has]
        some = targets[0] if targets else None
        filled = [s if has else s._replace(target=some) for s, has in zip(samples, learned_from, strict=True)]
        return (*filled, *[filled[-1]._replace(reset=None)] * (size - len(samples)))
