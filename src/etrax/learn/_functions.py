"""The functions that a learner compiles: one step, a gradient over a sequence, updates along a sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from .._arguments import check_arrays
from .._errors import ArgumentTypeError
from ..compiler.ir import PyTree, Role
from ..runtime import evolve
from ._checked_once import CheckedOnce, checked_by_tracing
from ._checks import Optimizer, as_arrays, check_opt_state
from ._devices import Run
from ._program import LearnerState, Program
from ._sequence import Losses, steps_of, train_call, train_sequence
from ._surrogates import without_derivatives

if TYPE_CHECKING:
    from ._learner import Learner

Step = Callable[..., tuple[LearnerState, PyTree]]
Gradient = Callable[..., tuple[tuple[jax.Array, PyTree], LearnerState]]
Train = Callable[..., tuple[PyTree, PyTree, LearnerState, jax.Array]]
# The functions that users hold are two calls away from the checks in which warnings are raised.
_CALLER = 5


def step_of(program: Program) -> Run:
    """One step without a gradient: the state after it, and the leaves of its output."""

    def run(
        params: PyTree, state: LearnerState, inputs: tuple[PyTree, ...], reset: jax.Array | None, initial: PyTree
    ) -> dict[str, PyTree]:
        values = (params, state, inputs, initial)
        params, state, inputs, initial = without_derivatives(program.facts.step, values)
        p, states = program.params(params), program.states(state.hidden)
        xs = [x[None] for x in program.inputs_of_step(inputs)]
        flags, start = program.resets(reset, initial, None)
        flags = None if flags is None else flags[None]
        w = program.with_kernels(p)
        end, trace, outs = evolve(program.facts, program.transport, p, w, states, state.trace, xs, flags, start)
        return {"state": program.state_after(state, end, trace, 1), "outputs": [o[0] for o in outs]}

    return run


def step_function(learner: Learner) -> Step:
    """`f(params, state, inputs, reset=None, initial=None) -> (state, output)`: one step, no gradient."""
    program = learner.program

    def check(
        params: PyTree, state: LearnerState, inputs: tuple[PyTree, ...], reset: PyTree, initial: PyTree
    ) -> tuple[PyTree, ...]:
        program.check_both(params, state)
        program.params(params)
        program.inputs_of_step(inputs)
        program.states(state.hidden)
        step = program.facts.step
        hidden = as_arrays(state.hidden, program.states_in_tree(state.hidden))
        state = LearnerState(hidden, state.trace, state.step)
        flags, _ = program.resets(reset, initial, None)
        params, inputs = as_arrays(params, step.select(Role.PARAM)), as_arrays(inputs, step.select(Role.INPUT))
        return params, state, inputs, flags, initial

    compiled, checked = learner.devices.compiled(step_of(program), check=False), CheckedOnce(check)

    def step(
        params: PyTree, state: LearnerState, inputs: tuple[PyTree, ...], reset: PyTree = None, initial: PyTree = None
    ) -> tuple[LearnerState, PyTree]:
        by_lane = learner.resets.lanes_for(state, reset, rank=1)
        if by_lane is not None:
            return by_lane.step(params, by_lane.resets.in_lanes(state), *inputs, reset=reset, initial=initial)
        initial = learner.resets.start_of(reset, initial)
        state, outs = compiled(*checked(params, state, inputs, reset, initial))
        learner.raise_if_not_finite(state)
        return state, program.output_of(outs)

    step.compiled = compiled  # type: ignore[attr-defined]
    return step


def gradient_function(learner: Learner, losses: Losses, k: int, donate: bool, remat: int | None = None) -> Gradient:
    """`f(params, state, inputs, targets, mask=None, reset=None) -> ((loss, grads), state)` over windows of k steps."""
    program = learner.program
    learner.new_losses.tell("value_and_grad", losses.loss_fn, (losses.reduction, k, donate, remat))

    def run(
        params: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree, mask: jax.Array | None,
        reset: jax.Array | None, initial: PyTree,
    ) -> PyTree:  # fmt: skip
        program.check_both(params, state)
        learner.warn(inputs, k)
        values = (params, state, inputs, initial)
        params, state, inputs, initial = without_derivatives(program.facts.step, values)
        arguments = program.arguments(params, state.hidden, inputs, targets, mask, losses, reset, initial)
        loss, grads, end, trace = program.gradient(arguments, state.trace, targets, losses, k, remat)
        steps = steps_of(arguments.inputs, (targets, arguments.weight, arguments.reset))
        return {"loss": loss, "grads": grads, "state": program.state_after(state, end, trace, steps)}

    def check(
        params: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree, mask: PyTree, reset: PyTree,
        initial: PyTree,
    ) -> None:  # fmt: skip
        program.check_given(params, state, inputs, targets, mask, reset, initial)
        learner.warn(inputs, k, _CALLER)

    compiled = checked_by_tracing(check, learner.devices.compiled(run, "state" if donate else ""))

    def value_and_grad(
        params: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree = None, mask: jax.Array | None = None,
        reset: jax.Array | None = None, *, initial: PyTree = None,
    ) -> tuple[tuple[jax.Array, PyTree], LearnerState]:  # fmt: skip
        by_lane = learner.resets.lanes_for(state, reset)
        if by_lane is not None:
            f = by_lane.value_and_grad(losses.loss_fn, k, losses.reduction, donate=donate, remat=remat)
            return f(params, by_lane.resets.in_lanes(state), inputs, targets, mask, reset, initial=initial)
        initial = learner.resets.start_of(reset, initial)
        loss, grads, state = compiled(params, state, inputs, targets, mask, reset, initial)
        learner.raise_if_not_finite(state, loss, grads)
        return (loss, grads), state

    value_and_grad.window = k  # type: ignore[attr-defined]
    return value_and_grad


def update_of(program: Program, optimizer: Optimizer, losses: Losses, k: int, remat: int | None = None) -> Run:
    """Updates along a sequence, one after each window of k steps; outputs too if `losses` keeps them."""

    def update(
        params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree,
        mask: jax.Array | None, reset: jax.Array | None = None, initial: PyTree = None,
    ) -> dict[str, PyTree]:  # fmt: skip
        program.check_both(params, state)
        values = (params, opt_state, state, inputs, initial)
        params, opt_state, state, inputs, initial = without_derivatives(program.facts.step, values)
        arguments = program.arguments(params, state.hidden, inputs, targets, mask, losses, reset, initial)
        check_opt_state(optimizer, params, opt_state)
        start = params, opt_state, state.trace
        along = train_sequence if program.by_call is None else train_call
        ends, loss, outputs = along(program, optimizer, arguments, start, targets, losses, k, remat)
        params, opt_state, end, trace = ends
        steps = steps_of(arguments.inputs, (targets, arguments.weight, arguments.reset))
        state = program.state_after(state, end, trace, steps)
        return {"params": params, "opt_state": opt_state, "state": state, "loss": loss, "outputs": outputs}

    return update


def train_function(
    learner: Learner, optimizer: Optimizer, losses: Losses, k: int, donate: bool, remat: int | None = None
) -> Train:
    """`f(params, opt_state, state, inputs, targets, mask=None, reset=None) -> (params, opt_state, state, losses)`."""
    program = learner.program
    learner.new_losses.tell("train", losses.loss_fn, (losses.reduction, k, donate, remat, optimizer))

    def check(
        params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree, mask: PyTree,
        reset: PyTree, initial: PyTree,
    ) -> None:  # fmt: skip
        if isinstance(opt_state, LearnerState) and not isinstance(state, LearnerState):
            raise ArgumentTypeError(
                "`opt_state` and `state` are swapped: the optimizer's state is the second argument."
            )
        program.check_given(params, state, inputs, targets, mask, reset, initial)
        check_arrays("opt_state", opt_state)
        learner.warn(inputs, k, _CALLER)

    update = update_of(program, optimizer, losses, k, remat)

    @wraps(update)
    def run(params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, *rest: PyTree) -> PyTree:
        learner.warn(inputs, k)
        return update(params, opt_state, state, inputs, *rest)

    compiled = checked_by_tracing(check, learner.devices.compiled(run, "state" if donate else ""))

    def train(
        params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, targets: PyTree = None,
        mask: jax.Array | None = None, reset: jax.Array | None = None, *, initial: PyTree = None,
    ) -> tuple[PyTree, PyTree, LearnerState, jax.Array]:  # fmt: skip
        by_lane = learner.resets.lanes_for(state, reset)
        if by_lane is not None:
            f = by_lane.train(optimizer, losses.loss_fn, k, losses.reduction, donate=donate, remat=remat)
            return f(params, opt_state, by_lane.resets.in_lanes(state), inputs, targets, mask, reset, initial=initial)
        initial = learner.resets.start_of(reset, initial)
        args = (params, opt_state, state, inputs, targets, mask, reset, initial)
        params, opt_state, state, loss, _ = compiled(*args)
        learner.raise_if_not_finite(state, loss, params=params)
        return params, opt_state, state, loss

    train.window = k  # type: ignore[attr-defined]
    return train


def sample_function(
    learner: Learner, optimizer: Optimizer, losses: Losses, donate: bool
) -> Callable[..., list[PyTree]]:
    """`f(params, opt_state, state, inputs, target, reset, initial)`: what `train` does with a window of one sample.

    It gives parameters, optimizer and state, the loss, and the output, which `losses` must keep.
    """
    program = learner.program
    update = update_of(program, optimizer, losses, 1)

    def run(
        params: PyTree, opt_state: PyTree, state: LearnerState, inputs: PyTree, target: PyTree, reset: PyTree,
        initial: PyTree,
    ) -> PyTree:  # fmt: skip
        xs, ys, flags = jax.tree.map(lambda a: jnp.asarray(a)[None], (inputs, target, reset))
        # Where there are neither inputs nor targets, a mask says how many steps there are.
        mask = None if jax.tree.leaves((xs, ys)) else jnp.ones(1)
        new = update(params, opt_state, state, xs, ys, mask, flags, initial)
        output = program.output_of([o[0] for o in new["outputs"]])
        return {**new, "loss": new["loss"].reshape(()), "outputs": output}

    return learner.devices.compiled(run, "state" if donate else "")


def steps_function(learner: Learner) -> Callable[..., list[PyTree]]:
    """`f(params, state, inputs, reset, initial, count) -> [state]`: the state after the first `count` steps.

    One program serves every count up to the length of the inputs.
    """
    step = step_of(learner.program)

    def run(
        params: PyTree, state: LearnerState, inputs: tuple[PyTree, ...], reset: jax.Array | None, initial: PyTree,
        count: jax.Array,
    ) -> dict[str, PyTree]:  # fmt: skip
        def one(k: jax.Array, state: LearnerState) -> LearnerState:
            x, flags = jax.tree.map(lambda a: a[k], (inputs, reset))
            return step(params, state, x, flags, initial)["state"]

        return {"state": jax.lax.fori_loop(0, count, one, state)}

    return learner.devices.compiled(run, check=False)
