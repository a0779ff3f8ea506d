"""`etrax.Stateful` over brainstate modules: `online(x)` advances the module's own states, and the trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from .._compat import staged_copy, transfers_meant
from .._compile import compile as compile_learner
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import Path, PyTree, Role, format_path
from ..frontends import BRAINSTATE, NNX, check_batch_size, front_end_of, renew_states
from ..rules import Rule
from ._online import Counter, Online, checked_rule, with_batch_size
from ._sequences import Before, Loop, LossesAndAux, Objective, Part, Slices
from ._window import Leaves, online_window


class State(Protocol):
    """A `brainstate.State`."""

    value: PyTree


class Stateful(Online):
    """A brainstate or Flax NNX module that learns online, used like the module itself.

    - `module`: the module. It keeps its states.
    - `rule`: a rule, such as `etrax.d_rtrl()`, or its name.
    - `example_inputs`: the inputs of one step. Only their structure, shapes and types count.
    - `batch_size`: creates the states of a brainstate module for a batch of this size.
    - `options`: `hidden=` for a cell of Flax that takes its hidden state as an argument; those of `etrax.compile`.

    `online(x)` runs one step: it advances the module's states and the trace, which is another state, and returns the
    module's output. `brainstate.transform.grad` of a function that calls it gives the online gradient;
    `brainstate.transform.jit`, `for_loop` and `scan` work around it. Inputs marked `etrax.MultiStepData` are a window
    of steps that are differentiated together.

    >>> import brainstate, etrax, jax.numpy as jnp
    >>> cell = brainstate.nn.GRUCell(3, 4)
    >>> online = etrax.Stateful(cell, "d_rtrl", jnp.ones((2, 3)), batch_size=2)
    >>> weights = cell.states(brainstate.ParamState)
    >>> loss = lambda x: (online(x) ** 2).mean()
    >>> grads = brainstate.transform.grad(loss, weights)(jnp.ones((2, 3)))
    >>> grads.keys() == weights.keys()
    True

    Over an `nnx.Module` it is an NNX module itself (`etrax.stateful._nnx.NNXOnline`), with the original as
    `online.module`: pass it to `nnx.grad`, `nnx.jit` and `nnx.Optimizer` like any other. For a cell that takes its
    hidden state as an argument, pass the initial one, `hidden=cell.initialize_carry(...)`; the learner keeps it.
    """

    def __new__(cls, module: PyTree, *args: PyTree, **options: PyTree) -> PyTree:
        if front_end_of(module) is not NNX:
            return super().__new__(cls)
        from ._nnx import NNXOnline

        return NNXOnline(module, *args, **options)

    def __init__(
        self,
        module: PyTree,
        rule: Rule | str,
        *example_inputs: object,
        batch_size: int | None = None,
        **options: PyTree,
    ):
        if front_end_of(module) is not BRAINSTATE:
            raise ArgumentTypeError(
                f"`module` is a {type(module).__name__}; `etrax.Stateful` takes a `brainstate.nn.Module` or an "
                "`nnx.Module`. For other models use `etrax.compile`, whose functions take and return the state."
            )
        import brainstate

        self.module: PyTree = module
        self._rule, self._options = checked_rule(rule), options
        self._example, self._brainstate = example_inputs, brainstate
        self._batch_size = batch_size
        self._compile(batch_size)
        self.trace = brainstate.ShortTermState(self.learner.init().trace)
        self._counter = Counter()

    def _compile(self, batch_size: int | None) -> None:
        self.learner = compile_learner(self.module, self._rule, *self._example, batch_size=batch_size, **self._options)
        self._window = online_window(self.learner)
        states = self._short_term_states()
        self._start = {path: jax.tree.map(staged_copy, state.value) for path, state in states.items()}

    def _short_term_states(self) -> dict[Path, State]:
        """The states that a sequence begins with; statistics and random keys outlive it."""
        in_module: dict[Path, State] = dict(self.module.states())
        entries = [entry for entry in self.learner.bound.states if entry.role is not Role.PARAM]
        states: dict[Path, State] = {entry.path: entry.handle for entry in entries}
        states |= {path: in_module[path] for path in states if path in in_module}
        return {path: s for path, s in states.items() if isinstance(s, self._brainstate.ShortTermState)}

    def _restarts(self) -> Collection[Path]:
        return self._short_term_states().keys()

    def _read(self) -> tuple[Leaves, Leaves]:
        params, *states = self.learner.bound.read()
        return jax.tree.leaves(params), jax.tree.leaves(states)

    def _write(self, states: Sequence[jax.Array]) -> None:
        """New values into the module's own states, in their units."""
        bound, first = self.learner.bound, self.learner.facts.step.first_state
        current = self.module.states()  # they may have been created anew since the module was compiled
        for entry in bound.states:
            if entry.role is not Role.PARAM:
                value = bound.decode_state(entry.path, [states[i - first] for i in entry.leaves])
                current.get(entry.path, entry.handle).value = value

    def _read_trace(self) -> object:
        return self.trace.value

    def _write_trace(self, trace: object) -> None:
        self.trace.value = trace

    def _path_of(self, weight: object) -> Path | None:
        return next((path for path, state in self.module.states().items() if state is weight), None)

    def _loop(self, weights: object) -> Loop:
        return brainstate_loop(self._brainstate, self.module.states(self._brainstate.ParamState), weights)

    @transfers_meant()
    def reset_state(self, batch_size: int | None = None) -> None:
        """Begin a new sequence: states return to their initial values, and the trace is empty.

        - `batch_size`: another batch size than the present one; the learner is then compiled again.

        Initial values are those that `init_state` makes. Hidden and short-term states that were created in `__init__`
        return to their values at the time of compiling; long-term states and random keys stay as they are. New values
        are written into the module's own state objects, so that functions under `brainstate.transform.jit` see them; a
        reset inside such a function works as well.
        """
        check_batch_size(batch_size)
        leaf = next(iter(self.learner.facts.step.select(Role.HIDDEN)), None)
        shape = tuple(leaf.aval.shape if leaf is not None else ())
        before = {path: state.value for path, state in self.module.states().items()}
        now = self._remade(self._batch_size if batch_size is None else batch_size)
        if batch_size is None and now != shape and now == shape[1:]:
            now = self._remade(next(iter(shape)))  # the module was given its states before it was compiled
        if leaf is not None and now != shape and batch_size is None:
            for path, state in self.module.states().items():
                state.value = before.get(path, state.value)
            raise ArgumentError(
                f"hidden state {format_path(leaf.path)} has shape {list(shape)} in the compiled module and {list(now)} "
                "as the module makes it: pass `batch_size=`."
            )
        if batch_size is not None:
            self._batch_size = batch_size
        if now != shape:
            assert batch_size is not None  # another shape without one has been refused
            self._example = with_batch_size(self._example, shape, batch_size)
            self._compile(None)
        self.trace.value = self.learner.program.new_trace()

    def _remade(self, batch_size: int | None) -> tuple[int, ...]:
        """Make the values of the module's states anew; the shape of the first hidden one."""
        renewed = renew_states(self.module, *(() if batch_size is None else (batch_size,)))
        for path, state in self._short_term_states().items():
            if path not in renewed:
                state.value = jax.tree.map(staged_copy, self._start[path])
        hidden = jax.tree.leaves(self.learner.bound.read()[1])
        return jnp.shape(hidden[0]) if hidden else ()


def brainstate_loop(brainstate: ModuleType, params: Mapping[Path, State], weights: object) -> Loop:
    """A loop over steps, for all of a module's parameters (`weights` is None) or for some.

    `weights` are given as to `brainstate.transform.grad`: one `ParamState`, or a dictionary or list of them.
    """
    if weights is None:
        return BrainstateLoop(brainstate, dict(params.items()))
    weights = dict(weights.items()) if isinstance(weights, Mapping) else weights
    states = jax.tree.leaves(weights, is_leaf=lambda s: isinstance(s, brainstate.State))
    other = next((s for s in states if not isinstance(s, brainstate.ParamState)), None)
    if other is not None or not states:
        what = "nothing" if other is None else f"a {type(other).__name__}"
        raise ArgumentTypeError(
            f"`weights` holds {what}; expected parameters, such as `module.states(brainstate.ParamState)`, or some of "
            "its entries."
        )
    return BrainstateLoop(brainstate, weights)


class BrainstateLoop(NamedTuple):
    """By brainstate's own transformations; states are where they are."""

    brainstate: ModuleType
    weights: object

    def gradients(self, objective: Objective, parts: Part) -> tuple[object, LossesAndAux]:
        transform, state = self.brainstate.transform, self.brainstate.State

        def one(total: object, part: Part) -> tuple[object, LossesAndAux]:
            grads, losses_and_aux = transform.grad(lambda: objective((), part), self.weights, has_aux=True)()
            return jax.tree.map(jnp.add, total, grads), losses_and_aux

        values = jax.tree.map(lambda s: s.value, self.weights, is_leaf=lambda s: isinstance(s, state))
        with transfers_meant():
            zeros = jax.tree.map(jnp.zeros_like, values)
        return transform.scan(one, zeros, parts)

    def run(self, fn: Callable[[Before, Slices], object], parts: Slices) -> PyTree:
        return self.brainstate.transform.for_loop(lambda part: fn((), part), parts)
