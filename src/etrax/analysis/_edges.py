"""The reach graph: which element of which state or weight op reaches which, within one step.

An edge says how elements of one node (a state, a weight op, an output) reach elements of another without passing a
cut weight op. It is read off the transposed step: the derivative program itself decides, so custom derivatives,
`stop_gradient` and dead branches count as they do in reverse mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax

from .._compat import is_inexact, open_jaxpr
from .._errors import CompilationError, NotSupportedError
from ..ir import Role, Step
from ..primitives import Dep
from ._cut import OpenStep
from ._nodes import Node, OpNode, OutputNode, StateNode
from ._propagate import Problem, propagate
from ._sites import WeightSite

S = TypeVar("S", StateNode, OpNode)
T = TypeVar("T", StateNode, OpNode, OutputNode)


@dataclass(frozen=True, eq=False)
class Edges:
    """`dep[source, target]` maps elements of the source to the elements of the target that they reach."""

    dep: dict[tuple[Node, Node], Dep]
    problems: tuple[Problem[Node], ...]

    def out(self, node: Node) -> dict[Node, Dep]:
        return {t: d for (s, t), d in self.dep.items() if s == node}

    def between(self, source: type[S], target: type[T]) -> Iterator[tuple[S, T, Dep]]:
        """Edges from nodes of one kind to nodes of another."""
        for (s, t), d in self.dep.items():
            if isinstance(s, source) and isinstance(t, target):
                yield s, t, d

    def states_into(self, op: int) -> dict[int, Dep]:
        """The states that reach a weight op."""
        return {s.index: d for s, t, d in self.between(StateNode, OpNode) if t.index == op}

    def states_from(self, op: int) -> dict[int, Dep]:
        """The states that a weight op reaches."""
        return {t.index: d for s, t, d in self.between(OpNode, StateNode) if s.index == op}


def state_leaves(step: Step) -> list[Any]:
    """Hidden, then other state leaves: `StateNode(i)` is the i-th of these."""
    return [*step.select(Role.HIDDEN), *step.select(Role.OTHER)]


def reach_edges(
    step: Step, sites: Sequence[WeightSite], cut: frozenset[int], observe: frozenset[int] | None = None
) -> Edges:
    """Edges of the step with the given sites cut; `observe`d sites (by default the cut ones) are targets as well."""
    opened = OpenStep(step, tuple(sites), cut)
    observe = cut if observe is None else observe
    seen = sorted(observe)
    leaves = [leaf.aval for leaf in step.ins]
    first = len(step.select(Role.PARAM))
    states = state_leaves(step)
    diff = [i for i, leaf in enumerate(states) if is_inexact(leaf.aval)]
    targets: list[Node] = [*map(StateNode, diff)]
    targets += [OutputNode(k) for k, leaf in enumerate(step.select(Role.OUTPUT)) if is_inexact(leaf.aval)]
    targets += map(OpNode, seen)

    def run(moving: list[Any], deltas: list[Any], fixed: list[Any]) -> list[Any]:
        values = list(fixed)
        for i, value in zip(diff, moving, strict=True):
            values[first + i] = value
        outs, found = opened(values, deltas)
        kept = [outs[i] for i in diff]
        kept += [
            o for o, leaf in zip(outs[len(states) :], step.outs[len(states) :], strict=True) if is_inexact(leaf.aval)
        ]
        return kept + [found[j][0] for j in seen]

    def pull(moving: list[Any], deltas: list[Any], fixed: list[Any], cotangents: list[Any]) -> Any:
        return jax.vjp(lambda m, d: run(m, d, fixed), moving, deltas)[1](cotangents)

    moving = [states[i].aval for i in diff]
    deltas = [jax.ShapeDtypeStruct(s.y_shape, s.call.out.dtype) for s in sites]
    shapes = jax.eval_shape(run, moving, deltas, leaves)
    jaxpr, consts = open_jaxpr(_transposed(pull, (moving, deltas, leaves, shapes)))
    offset = len(moving) + len(deltas) + len(leaves)
    sources = {offset + k: node for k, node in enumerate(targets)}
    rows, problems = propagate(jaxpr, consts, sources, {})
    origins: list[Node] = [*map(StateNode, diff), *map(OpNode, range(len(sites)))]
    dep = {
        (origin, target): d
        for origin, found in zip(origins, rows, strict=True)
        for target, d in found.items()
        if _any(d)
    }
    return Edges(dep, tuple(problems))


def _any(dep: Dep) -> bool:
    return any(bool((m >= 0).any()) for m in dep.maps)


NO_REVERSE = "which has no reverse mode in JAX, so neither BPTT nor Etrax can train it"
TRAINABLE = "use `lax.scan` or a `fori_loop` with constant bounds, or `stop_gradient` its inputs, to train it."


def refuse_while(error: Exception) -> None:
    """Say what to do if JAX could not differentiate because of a loop without reverse mode."""
    if "while_loop" in str(error):
        raise NotSupportedError(
            "the step differentiates through a `while_loop` (or a `fori_loop` whose bounds are not constants), "
            f"{NO_REVERSE}; {TRAINABLE}\nJAX says: {error}"
        ) from error


def _transposed(pull: Any, args: tuple[Any, ...]) -> Any:
    try:
        return jax.make_jaxpr(pull)(*args)
    except (ValueError, NotImplementedError) as error:
        refuse_while(error)
        raise CompilationError(
            "the step cannot be differentiated in reverse mode, so neither BPTT nor Etrax can train it. Replace the "
            f"operation, give it a rule by `jax.custom_vjp`, or `stop_gradient` its inputs.\nJAX says: {error}"
        ) from error
