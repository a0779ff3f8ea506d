"""The reach graph: which element of which state or weight op reaches which, within one step.

An edge says how elements of one node (a state, a weight op, an output) reach elements of another without passing a
cut weight op. It is read off the transposed step: the derivative program itself decides, so custom derivatives,
`stop_gradient` and dead branches count as they do in reverse mode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar, cast

from ..._compat import is_inexact
from ..dataflow import Problem
from ..ir import Role, Step
from ..opened import WeightSite
from ..primitives import Dep
from ._nodes import Node, OpNode, OutputNode, StateNode
from ._sweep import Sweep

S = TypeVar("S", StateNode, OpNode)
T = TypeVar("T", StateNode, OpNode, OutputNode)


@dataclass(frozen=True, eq=False)
class Edges:
    """`dep[source, target]` maps elements of the source to the elements of the target that they reach.

    Those that copies of the source carry (`_spread`) are in `by_copies` instead.
    """

    dep: dict[tuple[Node, Node], Dep]
    problems: tuple[Problem[Node], ...]
    by_copies: dict[tuple[Node, Node], Dep] = field(default_factory=dict)

    @property
    def every(self) -> dict[tuple[Node, Node], Dep]:
        """All edges of the step: what reaches what, whoever carries it."""
        return {**self.dep, **self.by_copies} if self.by_copies else self.dep

    @cached_property
    def _from(self) -> dict[Node, dict[Node, Dep]]:
        """Edges by source: deep nets ask for the edges of each of many nodes, many times."""
        by_source: dict[Node, dict[Node, Dep]] = {}
        for (s, t), d in self.dep.items():
            by_source.setdefault(s, {})[t] = d
        return by_source

    def carried_by_copies(self, pairs: Collection[tuple[Node, Node]]) -> Edges:
        """Edges of which those between some pairs of nodes are carried by copies of the source."""
        parts = ({pair: d for pair, d in self.dep.items() if (pair in pairs) is copied} for copied in (False, True))
        dep, by_copies = parts
        return replace(self, dep=dep, by_copies=by_copies) if pairs else self

    def out(self, node: Node) -> Mapping[Node, Dep]:
        """What a node reaches, and how."""
        return self._from.get(node, {})

    def before(self, ends: Iterable[Node], through: type = object) -> frozenset[Node]:
        """These nodes, and all from which one of them is reached by way of nodes of a kind."""
        nodes, todo = set(ends), list(ends)
        while todo:
            node = todo.pop()
            if isinstance(node, through):
                new = self._into.get(node, set()) - nodes
                nodes |= new
                todo += new
        return frozenset(nodes)

    @cached_property
    def _into(self) -> dict[Node, set[Node]]:
        sources: dict[Node, set[Node]] = {}
        for s, t in self.every:
            sources.setdefault(t, set()).add(s)
        return sources

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
        return {t.index: d for t, d in self._from.get(OpNode(op), {}).items() if isinstance(t, StateNode)}


def reach_edges(
    step: Step, sites: Sequence[WeightSite], cut: frozenset[int], observe: frozenset[int] | None = None
) -> Edges:
    """Edges of the step with the given sites cut; `observe`d sites (by default the cut ones) are targets as well."""
    states, observed = step.states, sorted(cut if observe is None else observe)
    diff = [i for i, leaf in enumerate(states) if is_inexact(leaf.aval)]
    outputs = [k for k, leaf in enumerate(step.select(Role.OUTPUT)) if is_inexact(leaf.aval)]
    targets: dict[Node, int] = {StateNode(i): i for i in diff}
    targets |= {OutputNode(k): len(states) + k for k in outputs}
    rows, problems = Sweep(step, sites, cut, observed).run({StateNode(i): step.first_state + i for i in diff}, targets)
    origins: list[Node] = [*map(StateNode, diff), *map(OpNode, range(len(sites)))]
    places = {node: k for k, node in enumerate([*targets, *map(OpNode, observed)])}
    dep: dict[tuple[Node, Node], Dep] = {}
    for origin in origins:
        row = cast(dict[Node, Dep], rows[origin])  # a sweep starts from nodes alone
        for target in sorted(row, key=places.__getitem__):
            if any((m >= 0).any() for m in row[target].maps):
                dep[origin, target] = row[target]
    return Edges(dep, tuple(problems))
