"""`etrax.Stateful` over brainstate modules: `online(x)` advances the module's own states, and the trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._arguments import check_function
from .._compile import compile as compile_learner
from .._errors import ArgumentError, ArgumentTypeError
from ..frontends import is_brainstate_module
from ..graph import MultiStepData, SingleStepData
from ..ir import Path, PyTree, Role, format_path
from ..rules import Rule
from ._sequences import Sequences
from ._window import online_window


class Stateful:
    """A brainstate module that learns online, used as the module itself is.

    `online(x)` runs one step: it advances the module's states and the trace, which is a state of its own, and returns
    the module's output. `brainstate.transform.grad` of a function that calls it gives the online gradient;
    `brainstate.transform.jit`, `for_loop` and `scan` work around it. Inputs marked `etrax.MultiStepData` are a window
    of steps, differentiated together.

    >>> import brainstate, etrax, jax.numpy as jnp
    >>> cell = brainstate.nn.GRUCell(3, 4)
    >>> online = etrax.Stateful(cell, "d_rtrl", jnp.ones((2, 3)), batch_size=2)
    >>> weights = cell.states(brainstate.ParamState)
    >>> loss = lambda x: (online(x) ** 2).mean()
    >>> grads = brainstate.transform.grad(loss, weights)(jnp.ones((2, 3)))
    >>> grads.keys() == weights.keys()
    True
    """

    def __init__(
        self, module: Any, rule: Rule | str, *example_inputs: PyTree, batch_size: int | None = None, **options: Any
    ):
        if not is_brainstate_module(module):
            raise ArgumentTypeError(
                f"`module` is a {type(module).__name__}; `etrax.Stateful` takes a `brainstate.nn.Module`. For other "
                "models use `etrax.compile`, whose functions take and return the state."
            )
        import brainstate

        self.module: Any = module
        self._rule, self._options = rule, options
        self._example, self._brainstate = example_inputs, brainstate
        self._compile(batch_size)
        self.trace = brainstate.ShortTermState(self.learner.init().trace)
        self._calls = 0

    def _compile(self, batch_size: int | None) -> None:
        self.learner = compile_learner(self.module, self._rule, *self._example, batch_size=batch_size, **self._options)
        self._window = online_window(self.learner)

    def __repr__(self) -> str:
        return f"Stateful({type(self.module).__name__}, {self.learner.rule})"

    @property
    def report(self) -> Any:
        """What each parameter's gradient is worth under this rule, and why."""
        return self.learner.report

    def __call__(self, *inputs: PyTree, **named: PyTree) -> PyTree:
        """Advance by one step, or by the steps that `MultiStepData` holds; the module's output, stacked for these."""
        self._calls += 1
        args, kwargs, many = _unmarked(inputs, named)
        learner = self.learner
        leaves = [jnp.asarray(a) for a in jax.tree.leaves(learner.bound.encode(args, kwargs, 1 if many else 0))]
        params, hidden, other = learner.bound.read()
        held = [*jax.tree.leaves(hidden), *jax.tree.leaves(other)]
        steps = leaves if many else [a[None] for a in leaves]
        outs, states, trace = self._window(jax.tree.leaves(params), held, self.trace.value, steps)
        self._write(states)
        self.trace.value = trace
        outs = outs if many else [o[0] for o in outs]
        return learner.bound.decode_output(jax.tree.unflatten(learner.facts.step.trees[Role.OUTPUT], outs))

    def _write(self, states: list[jax.Array]) -> None:
        """New values into the module's own states, in their units."""
        bound, first = self.learner.bound, self.learner.facts.step.first_state
        own: dict[Path, Any] = dict(self.module.states())
        for entry in bound.states:
            if entry.role is not Role.PARAM:
                value = bound.decode_state(entry.path, [states[i - first] for i in entry.leaves])
                own.get(entry.path, entry.handle).value = value

    def reset_state(self, batch_size: int | None = None) -> None:
        """States as the module makes them, and an empty trace; with another batch size the learner is compiled anew."""
        brainstate = self._brainstate
        brainstate.nn.init_all_states(self.module, *(() if batch_size is None else (batch_size,)))
        leaf = next((leaf for leaf in self.learner.facts.step.select(Role.HIDDEN)), None)
        now = () if leaf is None else jax.tree.leaves(self.learner.bound.read()[1])[0].shape
        if leaf is not None and now != leaf.aval.shape:
            if batch_size is None:
                raise ArgumentError(
                    f"hidden state {format_path(leaf.path)} has shape {list(leaf.aval.shape)} in the compiled module "
                    f"and {list(now)} without a batch: pass `batch_size=`."
                )
            old = leaf.aval.shape[0]
            swap = lambda a: jnp.zeros((batch_size, *a.shape[1:]), a.dtype) if a.shape[:1] == (old,) else a  # noqa: E731
            self._example = jax.tree.map(lambda a: swap(jnp.asarray(a)), self._example)
            self._compile(None)
        self.trace.value = self.learner.program.transport.init()

    def get_etrace_of(self, weight: Any) -> list[jax.Array]:
        """The arrays of the trace that belong to a parameter, given as its path or as the `ParamState` itself."""
        path = self._path_of(weight)
        step, facts = self.learner.facts.step, self.learner.facts
        numbers = [i for i, leaf in enumerate(step.select(Role.PARAM)) if leaf.path[: len(path)] == path]
        if not numbers:
            known = ", ".join(format_path(leaf.path) for leaf in step.select(Role.PARAM))
            raise ArgumentError(f"there is no parameter at {format_path(path)}; there are {known}.")
        parts = self.learner.program.transport.parts(self.trace.value)
        sites = dict.fromkeys(j for i in numbers for j in facts.sites_of(i))
        return [a for j in sites for a in parts.get(j, [])]

    def _path_of(self, weight: Any) -> Path:
        for path, state in self.module.states().items():
            if state is weight:
                return path
        if isinstance(weight, str):
            return (weight,)
        if not isinstance(weight, tuple):
            raise ArgumentTypeError(
                f"`get_etrace_of` was given a {type(weight).__name__}: pass the path of a parameter, such as "
                "('rnn', 'w'), or its `ParamState`."
            )
        return weight

    def etrace_grad(
        self, *sequences: PyTree, step_fn: Callable[..., PyTree], mask: PyTree = None, chunk_size: int | None = None,
        weights: PyTree = None, reduction: str = "mean", loss_output: str = "per_step", has_aux: bool = False,
        return_value: bool = False,
    ) -> PyTree:  # fmt: skip
        """Online gradients over sequences (time first), summed step by step in a memory that does not grow.

        `step_fn(*slices)` calls `online` once and returns the loss of the step, or `(loss, aux)` with `has_aux`. With
        `chunk_size=k` it is given k steps at a time, passes them on as `etrax.MultiStepData` and returns k losses. The
        mask (T,) weighs losses; the mean is over its sum. Returns gradients with the keys of `weights` (by default all
        of the module's parameters), then what was asked for: the losses (`loss_output`: "per_step", "masked", or their
        "scalar"), and aux.
        """
        check_function("step_fn", step_fn, "(*slices)")
        run = Sequences(self._brainstate, lambda: self._calls, sequences, chunk_size, mask)
        held = self.module.states(self._brainstate.ParamState) if weights is None else weights
        return run.gradients(step_fn, held, reduction, loss_output, has_aux, return_value)

    def etrace_evolve(
        self, *sequences: PyTree, step_fn: Callable[..., PyTree] | None = None, chunk_size: int | None = None,
        return_outputs: bool = False,
    ) -> PyTree:  # fmt: skip
        """Advance states and trace over sequences without a gradient; the outputs, stacked, if asked for."""
        run = Sequences(self._brainstate, lambda: self._calls, sequences, chunk_size, None)
        mark = MultiStepData if run.chunk > 1 else SingleStepData

        def plain(*slices: PyTree) -> PyTree:
            return self(*(mark(s) for s in slices))

        return run.evolve(plain if step_fn is None else step_fn, return_outputs)


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
