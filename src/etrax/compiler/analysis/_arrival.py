"""From which window on credit arrives: how many steps pass until an output shows what a trace or a weight op holds.

A window of K steps gives a weight op credit if an output shows it within these K steps, either

- the op itself: its output y in the window's first step reaches an output in one of the K steps;
- its trace: an old state that has a trace of it, at the window's entry, reaches an output in one of the K steps.

Where an upper layer reads the old state below, or a delay lies between them, a short window holds neither, and the
gradient is exactly zero whatever the loss is. What is found here is a proof of that: edges are never too small. From
the least window on the gradient is not zero, unless the numbers make it so.

Everything is told element by element, since a delay line is one array of which an output reads the last row. A complex
number is one element: what reaches its real part alone, where an output shows the imaginary part, counts as shown. A
matrix that has no gradient (constants, whole numbers) counts as full, also where some of its elements are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from ..primitives import Dep
from ._edges import Edges
from ._facts import Facts, Relation
from ._memo import memoised
from ._nodes import Node, OpNode, OutputNode, StateNode
from ._positions import Group
from ._reach import find_nodes, reach_of

# Elements of states, by leaf number: true where a trace is carried to them.
Elements: TypeAlias = Mapping[int, np.ndarray]
_Masks: TypeAlias = dict[Node, np.ndarray]


def least_window(facts: Facts, sites: Iterable[int], traced: Elements) -> int | None:
    """The least number of steps in a window after which credit can arrive; None if it never does."""
    ops = [OpNode(j) for j in sites]
    for steps, shown in enumerate(_shown_within(facts), start=1):
        if any(shown[op].any() for op in ops if op in shown):
            return steps
        if any((shown[StateNode(i)] & mask).any() for i, mask in traced.items() if StateNode(i) in shown):
            return steps
    return None


class _Shown:
    """Elements of old states and of weight ops that an output shows within 1, 2, … steps, as far as was asked for."""

    def __init__(self, facts: Facts):
        self.into: dict[Node, list[tuple[Node, Dep]]] = {}
        for (source, target), dep in facts.edges.every.items():
            self.into.setdefault(target, []).append((source, dep))
        self.levels: list[_Masks] = []

    def extend(self) -> bool:
        """Find those of one step more; False if there are no others."""
        before = self.levels[-1] if self.levels else {}
        ends: _Masks = {t: np.ones(1, bool) for t in self.into if isinstance(t, OutputNode)}
        ends |= {t: mask for t, mask in before.items() if isinstance(t, StateNode)}
        new = dict(before)
        todo = list(ends)
        while todo:
            target = todo.pop()
            mask = ends[target] if target in ends else new[target]
            for source, dep in self.into.get(target, ()):
                shown = _sources(dep, mask)
                elements = new.get(source)
                if elements is not None and not (shown & ~elements).any():
                    continue
                new[source] = shown if elements is None else elements | shown
                if isinstance(source, OpNode):  # in the same step; a state is read in the next
                    todo.append(source)
        if self.levels and all(int(new[n].sum()) == int(before[n].sum()) if n in before else False for n in new):
            return False
        self.levels.append(new)
        return True


@memoised
def _shown(facts: Facts) -> _Shown:
    return _Shown(facts)


def _shown_within(facts: Facts) -> Iterator[_Masks]:
    shown, k = _shown(facts), 0
    while k < len(shown.levels) or shown.extend():
        yield shown.levels[k]
        k += 1


def _sources(dep: Dep, mask: np.ndarray) -> np.ndarray:
    """Elements of the source that reach an element of the mask; a mask of one element stands for all."""
    mask = np.broadcast_to(mask, (dep.part.size,)) if mask.size == 1 else mask
    if dep.part.labels is not None:
        blocks = np.zeros(int(dep.part.labels.max()) + 1, bool)
        blocks[dep.part.labels[mask]] = True
        mask = blocks
    table = np.append(mask, False)  # -1 is no block
    sources = table[dep.maps[0].reshape(-1)]
    for m in dep.maps[1:]:
        sources |= table[m.reshape(-1)]
    return sources


def traced_elements(
    facts: Facts, relations: Iterable[Relation], edges: Edges | None = None, *, moved: bool = True
) -> dict[int, np.ndarray]:
    """Elements of states to which blocks by position carry a trace of some relations.

    `edges` are those of the cut step, if none are given. Without `moved`, only what an op drives in its own step.
    """
    edges = facts.edges if edges is None else edges
    elements_of: dict[int, np.ndarray] = {}
    for r in relations:
        group = facts.groups[r.group]
        masks = {i: np.zeros(facts.states[i].aval.size, bool) for i in group.leaves}
        for leaf in group.leaves:
            dep = edges.dep.get((OpNode(r.site), StateNode(leaf)))
            if dep is None:
                continue
            size = dep.maps[0].size
            # An op in an inner loop has one place for all iterations; copies of an op reach all that the op does.
            place = None if r.place is None or r.copies is not None else np.resize(r.place.reshape(-1), size)
            masks[leaf] |= _targets(dep, np.ones(size, bool), place, group.place_of(leaf))
        if moved:
            _move(edges, group, masks)
        for i, mask in masks.items():
            elements_of[i] = elements_of[i] | mask if i in elements_of else mask
    return elements_of


def _move(edges: Edges, group: Group, masks: dict[int, np.ndarray]) -> None:
    """Add what the states of each position do to others at the same position, in any number of steps."""
    todo = [i for i in group.leaves if masks[i].any()]
    while todo:
        leaf = todo.pop()
        for target, dep in edges.out(StateNode(leaf)).items():
            if not isinstance(target, StateNode) or target.index not in masks:
                continue
            mask = masks[target.index]
            new = _targets(dep, masks[leaf], group.place_of(leaf), group.place_of(target.index))
            if (new & ~mask).any():
                masks[target.index] = mask | new
                todo.append(target.index)


def _targets(dep: Dep, mask: np.ndarray, place: np.ndarray | None, target_place: np.ndarray) -> np.ndarray:
    """Elements of the target that elements of the mask reach at their own position, or anywhere if it is None."""
    labels, there = dep.part.all_labels(), target_place.reshape(-1).astype(np.int64)
    count = int(there.max(initial=0)) + 1
    hits = []
    for m in (m.reshape(-1) for m in dep.maps):
        at = np.flatnonzero(mask & (m >= 0) if place is None else mask & (m >= 0) & (place.reshape(-1) >= 0))
        hits.append(m[at].astype(np.int64) if place is None else m[at] * count + place.reshape(-1)[at])
    keys = labels if place is None else labels.astype(np.int64) * count + there
    return np.isin(keys, np.unique(np.concatenate(hits)))


def nearby_elements(facts: Facts, sites: Iterable[int], steps: int) -> dict[int, np.ndarray]:
    """Elements of states at positions that weight ops reach within some steps, when nothing is cut."""
    nodes = find_nodes(facts)
    met = np.zeros(nodes.count, bool)
    for j in sites:
        met[reach_of(facts, j, steps).indices] = True
    return {i: met[place] for i, place in nodes.of.items()}
