"""The graph of elements: nodes that edges between arrays join, element by element."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..primitives import Dep, components
from ._nodes import Node


class ElementGraph:
    """Nodes, numbered from 0 to `size`, and the links between them.

    Where an element reaches a whole block of another array, the block is one more node, joined with all that is in it:
    the number of links stays that of the elements.
    """

    def __init__(self, size: int):
        self.size, self.nodes = size, size
        self._left, self._right = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def link(self, left: np.ndarray, right: np.ndarray) -> None:
        self._left.append(left.reshape(-1))
        self._right.append(right.reshape(-1))

    def join(self, source: np.ndarray, target: np.ndarray, dep: Dep) -> None:
        """Link the nodes of a source's elements (-1: none) with those of the target's elements that they reach."""
        source, target = source.reshape(-1), target.reshape(-1)
        if dep.part.labels is not None:
            self.link(target, self.nodes + dep.part.labels)
            blocks = self.nodes + np.arange(int(dep.part.labels.max()) + 1)
            target, self.nodes = blocks, self.nodes + blocks.size
        for m in (m.reshape(-1) for m in dep.maps):
            at = np.flatnonzero((m >= 0) & (source >= 0))
            self.link(source[at], target[m[at]])

    @property
    def links(self) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate(self._left).astype(np.int64), np.concatenate(self._right).astype(np.int64)

    def components(self) -> np.ndarray:
        """The component of every node that is no block, numbered by first appearance."""
        return components(self.nodes, *self.links)[: self.size]

    def ranks(self) -> np.ndarray:
        """The number of every node among those of its component."""
        labels = self.components()
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
        rank = np.empty(self.size, np.int32)
        rank[order] = np.arange(self.size) - np.repeat(starts, np.diff(starts, append=self.size))
        return rank


def components_of(
    dep: Mapping[tuple[Node, Node], Dep], shapes: Mapping[Node, tuple[int, ...]]
) -> dict[Node, np.ndarray]:
    """By node, the part that each of its elements belongs to: elements that reach each other share a number."""
    numbers: dict[Node, np.ndarray] = {}
    total = 0
    for node, shape in shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        numbers[node] = total + np.arange(size).reshape(shape)
        total += size
    graph = ElementGraph(total)
    for (source, target), edge in dep.items():
        if source in numbers and target in numbers:
            graph.join(numbers[source], numbers[target], edge)
    component = graph.components()
    return {node: component[number] for node, number in numbers.items()}
