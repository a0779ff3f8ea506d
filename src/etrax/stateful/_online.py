"""What a stateful learner does whatever library its module is of: one call, a window of calls, its trace, sequences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from .._arguments import check_arrays, check_function, short
from .._compat import is_concrete
from .._errors import ArgumentError, ArgumentTypeError, NotSupportedError
from ..compiler.ir import Path, PyTree, Role, Step, describe, format_path, lies_under
from ..graph import MultiStepData, SingleStepData
from ..learn import Learner
from ..report import Report
from ..rules import Rule, as_rule
from ._sequences import Loop, Sequences
from ._window import Window, masked_outputs

# A module of the library, or a choice of its parameters as the library makes it.
Module: TypeAlias = Any
Weights: TypeAlias = Any


# So many calls over sequences outside of `jit` are a training loop that compiles at every turn.
MANY_OUTSIDE = 10


def checked_rule(rule: Rule | str) -> Rule:
    """A rule that can do without the loss, which is computed outside."""
    checked = as_rule(rule)
    for one in (checked, *checked.members):
        if one.needs_loss:
            raise NotSupportedError(
                f"{one} reads or learns from the loss of each step, which is computed outside of `etrax.Stateful`: "
                "use `etrax.compile` and `learner.value_and_grad`."
            )
    return checked


class Counter:
    """How often a learner has been called, and how often over sequences outside of `jit`.

    Of one learner, however often its library copies it.
    """

    calls = 0
    outside = 0

    def tell_outside(self, name: str, sequences: tuple[PyTree, ...]) -> None:
        """A loop outside of `jit` is traced and compiled at every call: said once, when it has been so often."""
        if is_concrete(sequences):
            self.outside += 1
            if self.outside == MANY_OUTSIDE:
                warnings.warn(
                    f"`{name}` ran {MANY_OUTSIDE} times outside of `jit`, and was compiled each time, since `step_fn` "
                    "may read anything. Call it in a function under `brainstate.transform.jit` or `nnx.jit`, which is "
                    "compiled once.",
                    stacklevel=3,
                )


class Online:
    """A learner with states inside. Each library says how values are read from the module, and written to it."""

    module: Module
    learner: Learner
    _window: Window
    _counter: Counter

    def _read(self) -> tuple[list[jax.Array], list[jax.Array]]:
        """Leaves of the parameters, and of hidden and other states, as they are now."""
        raise NotImplementedError

    def _write(self, states: Sequence[jax.Array]) -> None:
        raise NotImplementedError

    def _trace(self) -> PyTree:
        raise NotImplementedError

    def _keep(self, trace: PyTree) -> None:
        raise NotImplementedError

    def _path_of(self, weight: object) -> Path | None:
        """The path of a parameter that is given as the library's own object."""
        raise NotImplementedError

    def _loop(self, weights: Weights) -> Loop:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Stateful({type(self.module).__name__}, {self.learner.rule})"

    @property
    def report(self) -> Report:
        """What each parameter's gradient is worth under this rule, and why."""
        return self.learner.report

    def __call__(self, *inputs: PyTree, **named: PyTree) -> PyTree:
        """Advance by one step, or by the steps that `MultiStepData` holds; the module's output, stacked for these."""
        self._counter.calls += 1
        out, trace = self.advance(self._trace(), inputs, named)
        self._keep(trace)
        return out

    def advance(self, trace: PyTree, inputs: tuple[PyTree, ...], named: dict[str, PyTree]) -> tuple[PyTree, PyTree]:
        """The output and the trace after a call, for a trace that the caller keeps; the module's states are written."""
        args, kwargs, many = _unmarked(inputs, named)
        bound, step = self.learner.bound, self.learner.facts.step
        leaves = _leaves_of(step, bound.encode(args, kwargs, 1 if many else 0), many)
        outs, states, trace = self._window(
            *_unchanged(step, *self._read()), trace, leaves if many else [a[None] for a in leaves]
        )
        self._write(states)
        outs = masked_outputs(outs)
        outs = outs if many else [o[0] for o in outs]
        return bound.decode_output(jax.tree.unflatten(step.trees[Role.OUTPUT], outs)), trace

    def get_etrace_of(self, weight: object) -> list[jax.Array]:
        """The arrays of the trace that belong to a parameter: its path (a tuple, or a name such as "rnn.w"), or the
        module's own object."""
        return self.parts_of(self._trace(), weight)

    def parts_of(self, trace: PyTree, weight: object) -> list[jax.Array]:
        """The same, of a trace that the caller keeps."""
        path = self._path_of(weight)
        path = weight if path is None else path
        if not isinstance(path, tuple | str):
            raise ArgumentTypeError(
                f"`get_etrace_of` was given a {type(weight).__name__}: pass the path of a parameter, such as "
                "('rnn', 'w'), or the module's own `ParamState` or `nnx.Param`."
            )
        step, facts = self.learner.facts.step, self.learner.facts
        numbers = [i for i, leaf in enumerate(step.select(Role.PARAM)) if lies_under(leaf.path, path)]
        if not numbers:
            known = ", ".join(format_path(leaf.path) for leaf in step.select(Role.PARAM))
            raise ArgumentError(f"there is no parameter at {short(weight)}; there are {known}.")
        parts = self.learner.program.transport.parts(trace)
        sites = dict.fromkeys(j for i in numbers for j in facts.sites_of(i))
        return [a for j in sites for a in parts.get(j, [])]

    def etrace_grad(
        self, *sequences: PyTree, step_fn: Callable[..., PyTree], mask: PyTree = None, chunk_size: int | None = None,
        weights: PyTree = None, reduction: str = "mean", loss_output: str = "per_step", has_aux: bool = False,
        return_value: bool = False,
    ) -> PyTree:  # fmt: skip
        """Online gradients over sequences (time first), summed step by step in a memory that does not grow.

        `step_fn(*slices)` calls `online` once and returns the loss of the step, or `(loss, aux)` with `has_aux`; it may
        read parameters and states as well. For an NNX module it is `step_fn(online, *slices)`: as everywhere in NNX,
        what is differentiated is an argument. With `chunk_size=k` it is given k steps at a time, passes them on as
        `etrax.MultiStepData` and returns k losses. The mask (T,) weighs losses; the mean is over its sum, and what is
        NaN in a sequence where the mask is zero is read as zero. Returns gradients with the keys of `weights` (by
        default all of the module's parameters; of NNX a filter), then what was asked for: the losses (`loss_output`:
        "per_step", "masked", or their "scalar"), and aux. In a loop, call it under `brainstate.transform.jit` or
        `nnx.jit`: outside of them it is compiled at every call.
        """
        check_function("step_fn", step_fn, "(*slices)")
        run = Sequences(self._loop(weights), lambda: self._counter.calls, sequences, chunk_size, mask)
        found = run.gradients(step_fn, reduction, loss_output, has_aux, return_value)
        self._counter.tell_outside("etrace_grad", sequences)
        return found

    def etrace_evolve(
        self, *sequences: PyTree, step_fn: Callable[..., PyTree] | None = None, chunk_size: int | None = None,
        return_outputs: bool = False,
    ) -> PyTree:  # fmt: skip
        """Advance states and trace over sequences without a gradient; the outputs, stacked, if asked for."""
        run = Sequences(self._loop(None), lambda: self._counter.calls, sequences, chunk_size, None)
        mark = MultiStepData if run.chunk > 1 else SingleStepData

        def plain(*given: PyTree) -> PyTree:
            online, slices = (given[0], given[1:]) if given and isinstance(given[0], Online) else (self, given)
            return online(*(mark(s) for s in slices))

        found = run.evolve(plain if step_fn is None else step_fn, return_outputs)
        self._counter.tell_outside("etrace_evolve", sequences)
        return found


def _unchanged(step: Step, params: list[jax.Array], states: list[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
    """Values of the module as they are now, which must have the shapes that it was compiled with."""
    leaves = [*step.select(Role.PARAM), *step.select(Role.HIDDEN), *step.select(Role.OTHER)]
    for leaf, now in zip(leaves, [*params, *states], strict=True):
        if jnp.shape(now) != leaf.aval.shape:
            raise ArgumentError(
                f"{leaf.role.value} {format_path(leaf.path)} of the module has shape {list(jnp.shape(now))} now, and "
                f"had {list(leaf.aval.shape)} when it was compiled. For states of another batch size call "
                "`reset_state(batch_size=...)`; a module that was changed needs a new `etrax.Stateful`."
            )
    return params, states


def _leaves_of(step: Step, inputs: PyTree, many: bool) -> list[jax.Array]:
    """The leaves of a call's inputs, which must look like those that the module was compiled with."""
    wanted = step.select(Role.INPUT)
    if jax.tree.structure(inputs) != step.trees[Role.INPUT]:
        one = jax.tree.unflatten(step.trees[Role.INPUT], [leaf.aval for leaf in wanted])
        raise ArgumentError(
            f"the learner was given {describe(inputs, 'inputs')}, but its module was compiled with "
            f"{describe(one, 'inputs')}: pass arguments of that structure."
        )
    check_arrays("inputs", inputs)
    leaves = [jnp.asarray(a) for a in jax.tree.leaves(inputs)]
    for leaf, a in zip(wanted, leaves, strict=True):
        if a.shape[1 if many else 0 :] != leaf.aval.shape:
            steps = " behind an axis of steps" if many else "; mark a window of steps as `etrax.MultiStepData`"
            raise ArgumentError(
                f"the learner was given {format_path(leaf.path, 'inputs')} of shape {list(a.shape)}, but its module "
                f"was compiled with shape {list(leaf.aval.shape)}: pass one step of that shape{steps}."
            )
    return leaves


def _unmarked(
    args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> tuple[tuple[PyTree, ...], dict[str, PyTree], bool]:
    """Arguments without marks, and whether they are those of many steps."""
    marks = (SingleStepData, MultiStepData)
    found = jax.tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, marks))
    many = [isinstance(x, MultiStepData) for x in found]
    if any(many) and not all(many):
        raise ArgumentError("some inputs are `etrax.MultiStepData` and some are not: mark all of them, or none.")
    plain = jax.tree.map(
        lambda x: x.data if isinstance(x, marks) else x, (args, kwargs), is_leaf=lambda x: isinstance(x, marks)
    )
    return *plain, bool(many) and all(many)
