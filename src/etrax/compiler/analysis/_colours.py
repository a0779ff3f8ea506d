"""Colours of positions: those of one colour do not act on each other, so one cotangent can read them all at once.

Reverse mode with a cotangent at several positions gives the sum of their rows. That sum is a block only where no other
of these positions is reached.
"""

from __future__ import annotations

import numpy as np

from ._elements import ElementGraph
from ._facts import Facts, Tag
from ._nodes import StateNode
from ._positions import Group


def colours(facts: Facts, group: Group) -> np.ndarray | None:
    """A colour per position such that positions of one colour do not act on each other; None if one is enough.

    A diagonal or block group needs one; a ring three; a mean field as many as it has positions (per sample: samples
    never act on each other). The cost of the blocks is that number of pull-backs per state scalar.
    """
    if group.index >= len(facts.groups):
        return None  # a subgroup
    if facts.tags[group.index] in (Tag.DIAGONAL, Tag.BLOCK):
        return None
    graph = ElementGraph(group.num_positions)
    for a in group.leaves:
        for b in group.leaves:
            dep = facts.edges.dep.get((StateNode(a), StateNode(b)))
            if dep is not None and not facts.carries(a, b):
                graph.join(group.place_of(a), group.place_of(b), dep)
    mixes = graph.nodes > graph.size  # whole blocks: all that are joined act on each other
    return (graph.ranks() if mixes else _greedy(graph)).reshape(group.varshape)


def _greedy(graph: ElementGraph) -> np.ndarray:
    """The smallest colour that no neighbour has, position by position."""
    near: list[set[int]] = [set() for _ in range(graph.size)]
    for a, b in zip(*(end.tolist() for end in graph.links), strict=True):
        if a != b:
            near[a].add(b)
            near[b].add(a)
    colour = np.full(graph.size, -1, np.int32)
    for p in range(graph.size):
        taken = {int(colour[q]) for q in near[p]}
        colour[p] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colour
