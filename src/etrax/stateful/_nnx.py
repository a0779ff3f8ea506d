"""`etrax.Stateful` over NNX modules: a module that holds the module, its carry and the trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .._compat import staged_copy, transfers_meant
from .._compile import compile as compile_learner
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import Path, PyTree, Role, format_path, leaves_with_paths
from ..rules import Rule
from ._online import Counter, Online, checked_rule
from ._sequences import Before, Loop, LossesAndAux, Objective, Part, Slices
from ._window import Leaves, online_window


class Carry(nnx.Variable):
    """The carry of a cell that takes it as an argument."""


class Trace(nnx.Variable):
    """The eligibility trace."""


class Start:
    """Hidden states as they were when the module was compiled, by path; equal to itself alone, as NNX asks.

    They are copies, and copies are handed out: the module's own arrays may be given away (`donate_argnums`).
    """

    def __init__(self, hidden: dict[Path, jax.Array]):
        self._hidden = jax.tree.map(staged_copy, hidden)

    def copied(self) -> dict[Path, jax.Array]:
        return jax.tree.map(staged_copy, self._hidden)


class NNXOnline(Online, nnx.Module):
    """An NNX module that learns online.

    >>> import etrax, jax.numpy as jnp
    >>> from flax import nnx
    >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
    >>> online = etrax.Stateful(cell, "d_rtrl", jnp.ones((2, 3)), hidden=jnp.zeros((2, 4)))
    >>> grads = nnx.grad(lambda online, x: (online(x) ** 2).mean())(online, jnp.ones((2, 3)))
    >>> sorted(grads["module"])
    ['dense_h', 'dense_i']
    """

    def __init__(
        self, module: nnx.Module, rule: Rule | str, *example_inputs: object, batch_size: int | None = None,
        hidden: object = None, **options: PyTree,
    ):  # fmt: skip
        self._check_batch(batch_size)
        self.module = module
        self.learner = compile_learner(module, checked_rule(rule), *example_inputs, hidden=hidden, **options)
        self._window = online_window(self.learner)
        self._counter = Counter()
        self.trace = Trace(self.learner.init().trace)
        self.carry = None if hidden is None else Carry(jax.tree.map(staged_copy, hidden))
        hidden_paths = {leaf.path for leaf in self.learner.facts.step.select(Role.HIDDEN)}
        self._start = Start({path: a for path, a in self._values().items() if path in hidden_paths})

    def _check_batch(self, batch_size: int | None) -> None:
        if batch_size is not None:
            raise ArgumentError(
                f"`batch_size` is {batch_size}, but an NNX module makes its states in `__init__`, and takes others "
                "as `hidden=`: make the module, or `hidden`, with a batch axis, and leave `batch_size` out."
            )

    @property
    def _roots(self) -> tuple[Path, Path]:
        """Where the module's own variables stand among the states of the step, and where its carry does beside them."""
        paths = [leaf.path for leaf in self.learner.facts.step.states]
        both = self.carry is not None and any(path[:1] == ("variables",) for path in paths)
        return (("variables",), ("carry",)) if both else ((), ())

    def _values(self) -> dict[Path, jax.Array]:
        """What the step calls states, by path."""
        root, carry_root = self._roots
        values = {(*root, *path): a for path, a in leaves_with_paths(_variables(self.module))}
        if self.carry is not None:
            values |= {(*carry_root, *path): a for path, a in leaves_with_paths(self.carry.get_value())}
        return values

    def _put(self, values: dict[Path, jax.Array]) -> None:
        """Write values of the step's states into the module's variables and the carry."""
        root, carry_root = self._roots
        # Variables that the step does not call states, and so have no value here, stay as they are.
        nnx.update(self.module, _with_leaves(_variables(self.module), root, values))
        if self.carry is not None:
            self.carry.set_value(_with_leaves(self.carry.get_value(), carry_root, values))

    def _restarts(self) -> Collection[Path]:
        return {leaf.path for leaf in self.learner.facts.step.select(Role.HIDDEN)}

    def _read(self) -> tuple[Leaves, Leaves]:
        values = self._values()
        params = jax.tree.leaves(nnx.state(self.module, nnx.Param))
        return params, [values[leaf.path] for leaf in self.learner.facts.step.states]

    def _write(self, states: Sequence[jax.Array]) -> None:
        self._put(dict(zip((leaf.path for leaf in self.learner.facts.step.states), states, strict=True)))

    def _read_trace(self) -> object:
        return self.trace.get_value()

    def _write_trace(self, trace: object) -> None:
        self.trace.set_value(trace)

    def _path_of(self, weight: object) -> Path | None:
        return next((tuple(path) for path, node in nnx.iter_graph(self.module) if node is weight), None)

    def _loop(self, weights: object) -> Loop:
        return _NNXLoop(self, nnx.Param if weights is None else self._checked_filter(weights))

    def _checked_filter(self, weights: PyTree) -> Callable[[Path, object], bool]:
        """A filter that selects parameters of the module alone."""
        remedy = "pass a filter of NNX that selects parameters, such as `nnx.Param` or `nnx.PathContains('readout')`"
        try:
            selected = dict(nnx.to_flat_state(nnx.state(self.module, weights)))
        except Exception as error:  # whatever NNX makes of it
            raise ArgumentTypeError(f"`weights` is a {type(weights).__name__}: {remedy}.") from error
        other = next((path for path, v in selected.items() if not isinstance(v, nnx.Param)), None)
        if other is not None or not selected:
            what = "nothing" if other is None else f"{format_path(other)}, which is no parameter"
            raise ArgumentError(f"`weights` selects {what}: {remedy}.")
        selects = nnx.filterlib.to_predicate(weights)  # by paths of the module, which stands at `module` here
        return lambda path, value: tuple(path)[:1] == ("module",) and selects(tuple(path)[1:], value)

    def reset_state(self, batch_size: int | None = None) -> None:
        """Hidden states as they were when the module was compiled, and an empty trace; statistics and keys stay."""
        self._check_batch(batch_size)
        self._put(self._values() | self._start.copied())
        self.trace.set_value(self.learner.program.new_trace())


def _variables(module: nnx.Module) -> nnx.State:
    """All variables but the parameters."""
    return nnx.state(module, nnx.Not(nnx.Param))


def _with_leaves(tree: PyTree, root: Path, values: dict[Path, jax.Array]) -> PyTree:
    """A tree with the values of its leaves, by path behind a root; a leaf without a value keeps its own."""
    leaves = [values.get((*root, *path), a) for path, a in leaves_with_paths(tree)]
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


class _NNXLoop(NamedTuple):
    """A loop of pure steps, each on the learner made anew of its variables; what they end in is written back."""

    online: NNXOnline
    weights: nnx.filterlib.Filter

    def gradients(self, objective: Objective, parts: Part) -> tuple[object, LossesAndAux]:
        graph, params, rest = nnx.split(self.online, self.weights, ...)

        def loss(params: nnx.State, rest: nnx.State, part: Part) -> tuple[jax.Array, tuple[LossesAndAux, nnx.State]]:
            # The tree is made anew, so that the variables are those of this derivative.
            online = nnx.merge(graph, params, jax.tree.map(lambda a: a, rest))
            number, losses_and_aux = objective((online,), part)
            _, _, after = nnx.split(online, self.weights, ...)
            return number, (losses_and_aux, after)

        def one(carry: tuple[nnx.State, nnx.State], part: Part) -> tuple[tuple[nnx.State, nnx.State], LossesAndAux]:
            total, rest = carry
            grads, (losses_and_aux, rest) = jax.grad(loss, has_aux=True)(params, rest, part)
            return (jax.tree.map(jnp.add, total, grads), rest), losses_and_aux

        with transfers_meant():
            zeros = jax.tree.map(jnp.zeros_like, params)
        (grads, rest), losses_and_aux = lax.scan(one, (zeros, rest), parts)
        nnx.update(self.online, rest)
        return grads["module"], losses_and_aux

    def run(self, fn: Callable[[Before, Slices], object], parts: Slices) -> PyTree:
        graph, state = nnx.split(self.online)

        def one(state: nnx.State, part: Slices) -> tuple[nnx.State, object]:
            online = nnx.merge(graph, state)
            out = fn((online,), part)
            return nnx.state(online), out

        state, outs = lax.scan(one, state, parts)
        nnx.update(self.online, state)
        return outs
