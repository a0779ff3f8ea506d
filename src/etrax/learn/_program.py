"""What a learner runs under `jit`: facts, transport, and the way between the user's trees and the step's leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import export as jax_export

from .._arguments import check_arrays, format_bytes, short
from .._compat import shape_struct, staged_copy, transfers_meant
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.analysis import Facts
from ..compiler.ir import Leaf, PyTree, Role, TreeDef, leaves_with_paths
from ..compiler.opened import Weights, param_grads, weights
from ..runtime import Transport, count_on, with_kernels
from ._checks import check_inputs, check_leaves, check_length, check_mask, check_reset, check_targets, describe
from ._sequence import Losses, run_sequence


class LearnerState(NamedTuple):
    """What the next step needs: hidden state, trace, and the number of steps taken, which stops at 2³¹ − 1.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> state, output = learner.step(learner.params, learner.init(), jnp.ones(3))
    >>> state.hidden.shape, int(state.step)
    ((4,), 1)
    """

    hidden: PyTree
    trace: PyTree
    step: jax.Array

    def __repr__(self) -> str:
        arrays = [a for a in jax.tree.leaves(self.trace) if hasattr(a, "dtype")]
        held = format_bytes(sum(a.size * a.dtype.itemsize for a in arrays))
        return f"LearnerState(step {self.step}; hidden: {describe(self.hidden, 'hidden')}; trace: {held})"


class Arguments(NamedTuple):
    """Checked arguments of a sequence, as leaves in the step's order; `weight` is the mask as numbers.

    Before the steps that `reset` flags, states start again at `initial`.
    """

    params: list[jax.Array]
    states: list[jax.Array]
    inputs: list[jax.Array]
    weight: jax.Array | None
    reset: jax.Array | None = None
    initial: Sequence[jax.Array] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled model under a rule, which `rule` names.

    `encode` and `decode` lead from the model's own inputs to the step's, and from the step's outputs to the model's own
    (units, for one). `hidden` is the tree of states that the model was compiled with; `frozen` are the numbers of
    parameters that have no gradient. `place_trace` says how a trace lies on a mesh of devices, where there is one. A
    rule whose gradient is that of a whole call (`directional`) has `by_call`, which is called as `gradient` is.
    """

    facts: Facts
    transport: Transport
    rule: str
    frozen: frozenset[int]
    hidden: PyTree
    encode: Callable[..., tuple[PyTree, ...]]
    decode: Callable[[PyTree], PyTree]
    place_trace: Callable[[PyTree], PyTree] = lambda trace: trace
    by_call: Callable[..., tuple[jax.Array, PyTree, list[jax.Array], PyTree]] | None = None

    def gradient(
        self, arguments: Arguments, trace: PyTree, targets: PyTree, losses: Losses, k: int, remat: int | None = None
    ) -> tuple[jax.Array, PyTree, list[jax.Array], PyTree]:
        """Loss, gradients of the parameters, states and trace at the end of a sequence in windows of k steps."""
        if self.by_call is not None:
            return self.by_call(arguments, trace, targets, losses, k, remat)
        return run_sequence(self, arguments, trace, targets, losses, k, remat)

    @cached_property
    def _hidden_tree(self) -> TreeDef:
        return jax.tree.structure(self.hidden)

    def new_trace(self) -> PyTree:
        """The trace before the first step. Each of its arrays is one of its own, as a state that is given away needs.

        A rule may put one array of zeros into several places.
        """
        with transfers_meant():
            leaves, tree = jax.tree.flatten(self.transport.init())
        repeated = [any(a is b for b in leaves[:i]) for i, a in enumerate(leaves)]
        separate = [staged_copy(a) if again else a for a, again in zip(leaves, repeated, strict=True)]
        return jax.tree.unflatten(tree, separate)

    @cached_property
    def trace_struct(self) -> PyTree:
        """Shapes and types of a trace."""
        return jax.eval_shape(self.transport.init)

    @cached_property
    def _order(self) -> list[int]:
        """Where each state of the step stands in the tree, whose order may be another (the step puts hidden first)."""
        paths = [path for path, _ in leaves_with_paths(self.hidden)]
        return [paths.index(leaf.path) for leaf in self.facts.states]

    def params(self, tree: PyTree, what: str = "params") -> list[jax.Array]:
        """The leaves of the parameters, or of a tree like them, checked."""
        step = self.facts.step
        return check_leaves(what, tree, step.select(Role.PARAM), step.trees[Role.PARAM])

    def states_in_tree(self, hidden: PyTree) -> list[Leaf]:
        """The states of the step in the order of the tree that users see."""
        number = {path: i for i, (path, _) in enumerate(leaves_with_paths(hidden))}
        return sorted(self.facts.states, key=lambda leaf: number.get(leaf.path, 0))

    def states(self, hidden: PyTree) -> list[jax.Array]:
        """The leaves of the states in the step's order, checked."""
        leaves = check_leaves("hidden", hidden, self.states_in_tree(hidden), self._hidden_tree)
        return [leaves[i] for i in self._order]

    def hidden_of(self, states: Sequence[jax.Array] | Sequence[jax.sharding.NamedSharding]) -> PyTree:
        """The tree of the states, or of what there is one of for each."""
        # `_order` leads from the step's states to the tree; here it is inverted.
        placed = dict(zip(self._order, states, strict=True))
        return jax.tree.unflatten(self._hidden_tree, [placed[i] for i in range(len(placed))])

    def state_after(self, state: LearnerState, states: Sequence[jax.Array], trace: PyTree, steps: int) -> LearnerState:
        """The state so many steps later, of the step's states and the trace there."""
        return LearnerState(self.hidden_of(states), trace, count_on(state.step, steps))

    def output_of(self, outs: Sequence[jax.Array]) -> PyTree:
        """The model's own output, with its units."""
        return self.decode(jax.tree.unflatten(self.facts.step.trees[Role.OUTPUT], outs))

    def inputs_of_step(self, inputs: PyTree) -> list[jax.Array]:
        """The leaves of the inputs of one step, checked."""
        step, inputs = self.facts.step, self.as_tuple(inputs)
        check_arrays("inputs", inputs)
        return check_leaves("inputs", self.encode(inputs, {}), step.select(Role.INPUT), step.trees[Role.INPUT])

    def inputs_of_sequence(self, inputs: PyTree) -> tuple[list[jax.Array], int | None]:
        """The leaves of the inputs of a sequence, checked, and its length if they say it."""
        return check_inputs(self.facts.step, self.encode(self.as_tuple(inputs), {}, 1))

    def as_tuple(self, inputs: PyTree) -> tuple[PyTree, ...]:
        """The tuple of the step's inputs; a single one may be passed bare, none as None."""
        if isinstance(inputs, tuple):
            return inputs
        return () if inputs is None and not self.facts.step.trees[Role.INPUT].children() else (inputs,)

    def arguments(
        self, params: PyTree, hidden: PyTree, inputs: PyTree, targets: PyTree, mask: object, losses: Losses,
        reset: object = None, initial: PyTree = None,
    ) -> Arguments:  # fmt: skip
        """The arguments of a sequence, checked."""
        x, length = self.inputs_of_sequence(inputs)
        length = check_length(length, targets, mask, reset)
        check_targets(targets, length)
        weight = check_mask(mask, length)
        p, states = self.params(params), self.states(hidden)
        losses.check(targets, weight)
        return Arguments(p, states, x, weight, *self.resets(reset, initial, length))

    def resets(
        self, reset: object, initial: PyTree, length: int | None
    ) -> tuple[jax.Array | None, Sequence[jax.Array]]:
        """Flags of a sequence, or of one step (`length` is None), and the states to start again from; checked."""
        flags = check_reset(reset, length, self.facts.lanes)
        if flags is None:
            return None, ()
        leaves = check_leaves("initial", initial, self.states_in_tree(initial), self._hidden_tree)
        return flags, [leaves[i] for i in self._order]

    def weights(self, params: Sequence[jax.Array]) -> Weights:
        return weights(self.facts.step, self.facts.sites, params)

    def with_kernels(self, params: Sequence[jax.Array]) -> Weights:
        """The weights, with faster ways to compute their ops where there are any."""
        return with_kernels(self.facts, self.weights(params))

    def param_grads(self, params: Sequence[jax.Array], grads: Mapping[int, jax.Array]) -> PyTree:
        """Gradients of the parameters, as their tree, from those of the weights of all sites."""
        leaves = param_grads(self.facts.step, self.facts.sites, params, grads, self.frozen)
        return jax.tree.unflatten(self.facts.step.trees[Role.PARAM], leaves)

    def check_given(
        self, params: PyTree, state: object, inputs: PyTree, targets: PyTree, mask: object, reset: object = None,
        initial: PyTree = None,
    ) -> None:  # fmt: skip
        """What can be seen only outside `jit`, which takes arrays alone."""
        self.check_both(params, state)
        values = {"params": params, "inputs": inputs, "targets": targets, "mask": mask}
        for what, tree in {**values, "reset": reset, "initial": initial}.items():
            check_arrays(what, tree)

    def check_both(self, params: PyTree, state: object) -> None:
        if isinstance(params, LearnerState) and not isinstance(state, LearnerState):
            raise ArgumentTypeError("`params` and `state` are swapped: pass the parameters first, then the state.")
        self.check_state(state)

    def check_state(self, state: object, shapes: bool = True) -> None:
        """Without `shapes`, of many streams at once: the state may have come out of `vmap`."""
        if not isinstance(state, LearnerState):
            if jax.tree.structure(state) == self._hidden_tree and jax.tree.leaves(state):
                raise ArgumentTypeError("`state` holds hidden states alone: pass `learner.init(params, hidden)`.")
            kind = "an array" if isinstance(state, jax.Array) else short(state)
            raise ArgumentTypeError(
                f"`state` is {kind}; pass a `LearnerState`, as `learner.init()` makes it and every other function "
                "returns it."
            )
        check_like("state.trace", state.trace, self.trace_struct, f"`init` of this learner ({self.rule})", shapes)
        check_like("state.step", state.step, jax.ShapeDtypeStruct((), jnp.int32), "`init`", shapes)


def check_like(what: str, got: PyTree, want: PyTree, made_by: str, shapes: bool = True) -> None:
    """The structure, shapes and dtypes that were made elsewhere."""
    check_arrays(what, got)
    a, b = jax.tree.leaves(want), jax.tree.leaves(got)
    same = jax.tree.structure(want) == jax.tree.structure(got) and all(
        p.dtype == q.dtype and (p.shape == q.shape or not shapes)
        for p, q in ((shape_struct(p), shape_struct(q)) for p, q in zip(a, b, strict=True))
    )
    if not same:
        raise ArgumentError(
            f"`{what}` does not belong to this learner: it holds {describe(got, what)}, expected "
            f"{describe(want, what)}. Make it with {made_by}."
        )


def register_for_export(tree: PyTree) -> None:
    """Let `jax.export` write the named tuples of a tree, so that functions over them can be exported as they are."""

    def register(node: PyTree) -> bool:
        kind = type(node)
        if isinstance(node, tuple) and hasattr(node, "_fields") and kind not in _REGISTERED:
            _REGISTERED.add(kind)
            jax_export.register_namedtuple_serialization(kind, serialized_name=f"{kind.__module__}.{kind.__qualname__}")
        return False

    jax.tree.flatten(tree, is_leaf=register)


_REGISTERED: set[type] = set()
