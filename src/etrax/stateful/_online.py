"""What a stateful learner does whatever library its module is of: one call, a window of calls, its trace, sequences."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .._arguments import check_arrays, short
from .._compat import is_concrete
from .._errors import ArgumentError, ArgumentTypeError, NotSupportedError
from ..compiler.ir import Path, PyTree, Role, Step, describe, format_path, lies_under
from ..graph import unmarked
from ..learn import Learner, LearnerState
from ..report import Report
from ..rules import Rule, as_rule
from ._sequences import Loop, SequenceDriver, Sequences
from ._window import Leaves, Window, current_resets, masked_outputs, online_window

# So many calls over sequences outside of `jit` are a training loop that compiles at every turn.
MANY_OUTSIDE = 10


def checked_rule(rule: Rule | str) -> Rule:
    """A rule that can do without the loss, which is computed outside."""
    rule = as_rule(rule)
    for member in (rule, *rule.members):
        if member.needs_loss:
            raise NotSupportedError(
                f"{member} reads or learns from the loss of each step, which is computed outside of `etrax.Stateful`: "
                "use `etrax.compile` and `learner.value_and_grad`."
            )
    return rule


@dataclass(eq=False)  # NNX compares what a module holds: a counter is equal to itself alone
class Counter:
    """How often a learner has been called, and how often over sequences outside of `jit`.

    It is one object, however often a library copies the learner.
    """

    calls: int = 0
    outside: int = 0


class Online(SequenceDriver):
    """A learner with states inside. Each library says how values are read from the module, and written to it."""

    module: PyTree  # of whichever library
    learner: Learner
    _window: Window
    _counter: Counter

    def _read(self) -> tuple[Leaves, Leaves]:
        """Leaves of the parameters, and of hidden and other states, as they are now."""
        raise NotImplementedError

    def _write(self, states: Sequence[jax.Array]) -> None:
        """Put new values into the hidden and other states."""
        raise NotImplementedError

    def _restarts(self) -> Collection[Path]:
        """The paths of the states that start again with a sequence; others (statistics, random keys) outlive it."""
        raise NotImplementedError

    def _initial(self) -> list[jax.Array | None]:
        """Hidden and other states as they were when the module was compiled; None for those that outlive a sequence."""
        program, paths = self.learner.program, self._restarts()
        pairs = zip(self.learner.facts.states, program.states(self.learner.hidden), strict=True)
        return [a if any(lies_under(leaf.path, path) for path in paths) else None for leaf, a in pairs]

    def _read_trace(self) -> object:
        raise NotImplementedError

    def _write_trace(self, trace: object) -> None:
        raise NotImplementedError

    def _path_of(self, weight: object) -> Path | None:
        """The path of a parameter that is given as the library's own object."""
        raise NotImplementedError

    def _loop(self, weights: object) -> Loop:
        """How the library runs steps, with gradients of the parameters that `weights` selects (None: of all)."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Stateful({type(self.module).__name__}, {self.learner.rule})"

    @property
    def report(self) -> Report:
        """How each parameter's gradient under this rule relates to BPTT's, and why."""
        return self.learner.report

    def __call__(self, *inputs: object, **named: object) -> PyTree:
        """Advance by one step, or by the steps in `MultiStepData`; returns the module's output, stacked for these."""
        self._counter.calls += 1
        out, trace = self.advance(self._read_trace(), inputs, named)
        self._write_trace(trace)
        return out

    def advance(self, trace: object, inputs: tuple[object, ...], named: dict[str, object]) -> tuple[PyTree, object]:
        """The output and the trace after a call, for a trace that the caller keeps; the module's states are written."""
        (args, kwargs), many = unmarked((inputs, named))
        bound, step = self.learner.bound, self.learner.facts.step
        leaves = _leaves_of(step, bound.encode(args, kwargs, 1 if many else 0), many)
        params, states = self._read()
        _check_shapes(step, [*params, *states])
        flags = current_resets()
        resets = None if flags is None else (flags if many else flags[None], self._initial())
        xs = leaves if many else [a[None] for a in leaves]
        outs, states, trace = self._window(params, states, trace, xs, resets)
        self._write(states)
        outs = masked_outputs(outs)
        outs = outs if many else [o[0] for o in outs]
        return bound.decode_output(jax.tree.unflatten(step.trees[Role.OUTPUT], outs)), trace

    def get_etrace_of(self, weight: object) -> list[jax.Array]:
        """The arrays of the trace that belong to a parameter.

        - `weight`: its path (a tuple, or a name such as "rnn.w"), or the module's own parameter object.

        >>> import brainstate, etrax, jax.numpy as jnp
        >>> online = etrax.Stateful(brainstate.nn.GRUCell(3, 4), "d_rtrl", jnp.ones((2, 3)), batch_size=2)
        >>> [a.shape for a in online.get_etrace_of("Wh.weight")]
        [(2, 4), (2, 7, 4)]
        """
        return self.parts_of(self._read_trace(), weight)

    def parts_of(self, trace: object, weight: object) -> list[jax.Array]:
        """The arrays that belong to a parameter in a trace that the caller keeps."""
        path = self._path_of(weight)
        path = weight if path is None else path
        if not isinstance(path, tuple | str):
            raise ArgumentTypeError(
                f"`get_etrace_of` was given a {type(weight).__name__}: pass the path of a parameter, such as "
                "('rnn', 'w'), or the module's own `ParamState` or `nnx.Param`."
            )
        facts = self.learner.facts
        params = facts.step.select(Role.PARAM)
        numbers = [i for i, leaf in enumerate(params) if lies_under(leaf.path, path)]
        if not numbers:
            names = ", ".join(format_path(leaf.path) for leaf in params)
            raise ArgumentError(f"there is no parameter at {short(weight)}; there are {names}.")
        parts = self.learner.program.transport.parts(trace)
        sites = dict.fromkeys(j for i in numbers for j in facts.sites_of(i))
        return [a for j in sites for a in parts.get(j, [])]

    def _sequences(
        self, sequences: tuple[object, ...], chunk_size: int | None, mask: object = None, weights: object = None,
        reset: object = None,
    ) -> Sequences:  # fmt: skip
        by_lane = self.learner.resets.lanes_for(None, reset)
        if by_lane is not None:
            state = LearnerState(None, self._read_trace(), jnp.zeros((), jnp.int32))
            self.learner, self._window = by_lane, online_window(by_lane)
            self._write_trace(by_lane.resets.in_lanes(state).trace)
        lanes = self.learner.facts.lanes
        return Sequences(self._loop(weights), lambda: self._counter.calls, sequences, chunk_size, mask, reset, lanes)

    def _after_sequences(self, name: str, sequences: tuple[object, ...]) -> None:
        """Warn, once, of a loop outside of `jit`: it is traced and compiled at every call."""
        if not is_concrete(sequences):
            return
        self._counter.outside += 1
        if self._counter.outside == MANY_OUTSIDE:
            warnings.warn(
                f"`{name}` ran {MANY_OUTSIDE} times outside of `jit`, and was compiled each time, since `step_fn` "
                "may read anything. Call it in a function under `brainstate.transform.jit` or `nnx.jit`, which is "
                "compiled once.",
                stacklevel=3,  # the caller of `etrace_grad` or `etrace_evolve`
            )


def _check_shapes(step: Step, values: Sequence[jax.Array]) -> None:
    """Parameters and states of the module must have the shapes that it was compiled with."""
    for leaf, value in zip([*step.select(Role.PARAM), *step.states], values, strict=True):
        if jnp.shape(value) != leaf.aval.shape:
            raise ArgumentError(
                f"{leaf.role.value} {format_path(leaf.path)} of the module has shape {list(jnp.shape(value))} now, and "
                f"had {list(leaf.aval.shape)} when it was compiled. For states of another batch size call "
                "`reset_state(batch_size=...)`; a module that was changed needs a new `etrax.Stateful`."
            )


def _leaves_of(step: Step, inputs: tuple[object, ...], many: bool) -> Leaves:
    """The leaves of a call's inputs, which must look like those that the module was compiled with."""
    structure, compiled = step.trees[Role.INPUT], step.select(Role.INPUT)
    if jax.tree.structure(inputs) != structure:
        one = jax.tree.unflatten(structure, [leaf.aval for leaf in compiled])
        raise ArgumentError(
            f"the learner was given {describe(inputs, 'inputs')}, but its module was compiled with "
            f"{describe(one, 'inputs')}: pass arguments of that structure."
        )
    check_arrays("inputs", inputs)
    leaves = [jnp.asarray(a) for a in jax.tree.leaves(inputs)]
    for leaf, a in zip(compiled, leaves, strict=True):
        if a.shape[1 if many else 0 :] != leaf.aval.shape:
            steps = " behind an axis of steps" if many else "; mark a window of steps as `etrax.MultiStepData`"
            raise ArgumentError(
                f"the learner was given {format_path(leaf.path, 'inputs')} of shape {list(a.shape)}, but its module "
                f"was compiled with shape {list(leaf.aval.shape)}: pass one step of that shape{steps}."
            )
    return leaves


def with_batch_size(example: tuple[object, ...], old: tuple[int, ...], new: int) -> tuple[object, ...]:
    """Example inputs of another batch size: zeros in place of arrays whose first axis is as `old[:1]`."""

    def resized(a: jax.Array) -> jax.Array:
        return jnp.zeros((new, *a.shape[1:]), a.dtype) if a.shape[:1] == old[:1] else a

    return jax.tree.map(lambda a: resized(jnp.asarray(a)), example)
