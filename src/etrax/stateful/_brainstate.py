"""`etrax.Stateful` over brainstate modules: `online(x)` advances the module's own states, and the trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._compile import compile as compile_learner
from .._errors import ArgumentError, ArgumentTypeError
from ..frontends import is_brainstate_module, is_nnx_module
from ..ir import Path, PyTree, Role, format_path
from ..rules import Rule
from ._online import Counter, Module, Online, Weights, checked_rule
from ._sequences import Before, Loop, Objective
from ._window import online_window


class Stateful(Online):
    """A module of brainstate or of Flax NNX that learns online, used as the module itself is.

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

    Over an `nnx.Module` it is one itself (`etrax.stateful._nnx.NNXOnline`), with the module as `online.module`: pass it
    to `nnx.grad`, `nnx.jit` and `nnx.Optimizer` as any other. Cells whose carry is an argument are given the initial
    one, `hidden=cell.initialize_carry(...)`, and it is kept.
    """

    def __new__(cls, module: Module, *args: PyTree, **options: PyTree) -> Module:
        if not is_nnx_module(module):
            return super().__new__(cls)
        from ._nnx import NNXOnline

        return NNXOnline(module, *args, **options)

    def __init__(
        self,
        module: Module,
        rule: Rule | str,
        *example_inputs: PyTree,
        batch_size: int | None = None,
        **options: PyTree,
    ):
        if not is_brainstate_module(module):
            raise ArgumentTypeError(
                f"`module` is a {type(module).__name__}; `etrax.Stateful` takes a `brainstate.nn.Module` or an "
                "`nnx.Module`. For other models use `etrax.compile`, whose functions take and return the state."
            )
        import brainstate

        self.module: Module = module
        self._rule, self._options = checked_rule(rule), options
        self._example, self._brainstate = example_inputs, brainstate
        self._compile(batch_size)
        self.trace = brainstate.ShortTermState(self.learner.init().trace)
        self._counter = Counter()

    def _compile(self, batch_size: int | None) -> None:
        self.learner = compile_learner(self.module, self._rule, *self._example, batch_size=batch_size, **self._options)
        self._window = online_window(self.learner)

    def _read(self) -> tuple[list[jax.Array], list[jax.Array]]:
        params, hidden, other = self.learner.bound.read()
        return jax.tree.leaves(params), [*jax.tree.leaves(hidden), *jax.tree.leaves(other)]

    def _write(self, states: Sequence[jax.Array]) -> None:
        """New values into the module's own states, in their units."""
        bound, first = self.learner.bound, self.learner.facts.step.first_state
        own: dict[Path, Module] = dict(self.module.states())
        for entry in bound.states:
            if entry.role is not Role.PARAM:
                value = bound.decode_state(entry.path, [states[i - first] for i in entry.leaves])
                own.get(entry.path, entry.handle).value = value

    def _trace(self) -> PyTree:
        return self.trace.value

    def _keep(self, trace: PyTree) -> None:
        self.trace.value = trace

    def _path_of(self, weight: object) -> Path | None:
        return next((path for path, state in self.module.states().items() if state is weight), None)

    def _loop(self, weights: Weights) -> Loop:
        held = self.module.states(self._brainstate.ParamState) if weights is None else weights
        return BrainstateLoop(self._brainstate.transform, held)

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


class BrainstateLoop(NamedTuple):
    """By brainstate's own transformations; states are where they are."""

    transform: Module
    weights: Weights

    def gradients(self, objective: Objective, parts: PyTree) -> tuple[PyTree, PyTree]:
        def one(carry: PyTree, part: PyTree) -> tuple[PyTree, PyTree]:
            grads, seen = self.transform.grad(lambda: objective((), part), self.weights, has_aux=True)()
            return jax.tree.map(jnp.add, carry, grads), seen

        zeros = jax.tree.map(jnp.zeros_like, {k: s.value for k, s in self.weights.items()})
        return self.transform.scan(one, zeros, parts)

    def run(self, fn: Callable[[Before, PyTree], PyTree], parts: PyTree) -> PyTree:
        return self.transform.for_loop(lambda part: fn((), part), parts)
