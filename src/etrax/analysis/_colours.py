"""Colours of positions: those of one colour do not act on each other, so one cotangent can read them all at once.

Reverse mode with a cotangent at several positions gives the sum of their rows. That sum is a block only where no other
of these positions is reached.
"""

from __future__ import annotations

import numpy as np

from ..primitives import components
from ._facts import Facts, Tag
from ._nodes import StateNode
from ._positions import Group


def colours(facts: Facts, group: Group) -> np.ndarray | None:
    """A colour per position such that positions of one colour do not act on each other; None if one is enough.

    A diagonal or block group needs one; a ring three; a mean field as many as it has positions (per sample: samples
    never act on each other). The cost of the blocks is that number of pull-backs per state scalar.
    """
    if facts.tags[group.index] in (Tag.DIAGONAL, Tag.BLOCK):
        return None
    left, right, nodes, whole = [], [], group.num_positions, False
    for a in group.leaves:
        for b in group.leaves:
            dep = facts.edges.dep.get((StateNode(a), StateNode(b)))
            if dep is None or facts.carries(a, b):
                continue
            source, target = group.place_of(a).reshape(-1), group.place_of(b).reshape(-1)
            base = 0
            if dep.part.labels is not None:
                whole, base = True, nodes  # one node per block, joined with the positions in it
                nodes += int(dep.part.labels.max()) + 1
                left.append(target)
                right.append(base + dep.part.labels)
            for m in dep.maps:
                flat = m.reshape(-1)
                at = np.flatnonzero(flat >= 0)
                left.append(source[at])
                right.append(base + flat[at] if base else target[flat[at]])
    ends = np.concatenate(left).astype(np.int64), np.concatenate(right).astype(np.int64)
    found = _rank_in_component(nodes, group.num_positions, *ends) if whole else _greedy(group.num_positions, *ends)
    return found.reshape(group.varshape)


def _rank_in_component(nodes: int, positions: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    labels = components(nodes, left, right)[:positions]
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    rank = np.empty(positions, np.int32)
    rank[order] = np.arange(positions) - np.repeat(starts, np.diff(starts, append=positions))
    return rank


def _greedy(positions: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The smallest colour that no neighbour has, position by position."""
    near: list[set[int]] = [set() for _ in range(positions)]
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        if a != b:
            near[a].add(b)
            near[b].add(a)
    found = np.full(positions, -1, np.int32)
    for p in range(positions):
        taken = {int(found[q]) for q in near[p]}
        found[p] = next(c for c in range(len(taken) + 1) if c not in taken)
    return found
