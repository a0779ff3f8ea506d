"""States that a parameter can reach, in any number of steps: Q(θ).

An edge that is cut, or that leads to other positions, multiplies an influence. From a state outside of Q(θ) that
influence is zero: the edge costs θ nothing. All is told element by element, since one array may hold several things.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..primitives import Dep
from ._facts import Facts
from ._lost import LostPath, lost_from_state
from ._memo import memoised
from ._nodes import Node, OpNode, OutputNode, StateNode


@memoised
def reached_elements(facts: Facts, sites: tuple[int, ...]) -> dict[int, np.ndarray]:
    """Elements of states that some weight ops reach in any number of steps, whatever is cut, by leaf number."""
    masks: dict[Node, np.ndarray] = {OpNode(j): np.ones(facts.sites[j].y_shape, bool).reshape(-1) for j in sites}
    todo: list[Node] = [*masks]
    while todo:
        node = todo.pop()
        for target, dep in facts.edges.out(node).items():
            if isinstance(target, OutputNode):
                continue
            new = _forward(dep, masks[node])
            mask = masks.get(target)
            if mask is None or (new & ~mask).any():
                masks[target] = new if mask is None else mask | new
                todo.append(target)
    return {node.index: mask for node, mask in masks.items() if isinstance(node, StateNode) and mask.any()}


@memoised
def is_forgotten(facts: Facts, sites: tuple[int, ...], steps: int) -> bool:
    """Whether nothing shows what some weight ops did more than so many steps after it (a short convolution)."""
    masks: dict[Node, np.ndarray] = {OpNode(j): np.ones(facts.sites[j].y_shape, bool).reshape(-1) for j in sites}
    for _ in range(steps + 1):  # the ops' own step is the first
        before, reached = masks, _reached_in_step(facts, masks)
        masks = {node: mask for node, mask in reached.items() if isinstance(node, StateNode)}
        if masks.keys() == before.keys() and all((masks[n] == before[n]).all() for n in masks):
            return not masks  # so it goes on for ever
    return not _reached_in_step(facts, masks)


def _reached_in_step(facts: Facts, masks: Mapping[Node, np.ndarray]) -> dict[Node, np.ndarray]:
    """Elements of new states and of outputs that elements of old states and of ops reach, also through other ops."""
    inside, ends, todo = dict(masks), dict[Node, np.ndarray](), list(masks)
    while todo:
        node = todo.pop()
        for target, dep in facts.edges.out(node).items():
            into = inside if isinstance(target, OpNode) else ends
            new = _forward(dep, inside[node])
            before = into.get(target, np.zeros_like(new))
            if (target in facts.live or isinstance(target, OutputNode)) and (new & ~before).any():
                into[target] = before | new
                todo += [target] if isinstance(target, OpNode) else []
    return ends


def _forward(dep: Dep, mask: np.ndarray) -> np.ndarray:
    """Elements of the target that elements of a mask reach."""
    labels = dep.part.all_labels().reshape(-1)
    hit = np.zeros(int(labels.max(initial=-1)) + 1, bool)
    for m in (m.reshape(-1) for m in dep.maps):
        hit[m[mask & (m >= 0)]] = True
    return hit[labels]


def lost_from_reached(facts: Facts, group: int, sites: tuple[int, ...]) -> list[LostPath]:
    """The ways in which states of a group that some weight ops reach act on later states without being carried."""
    if not facts.lost_from_group[group]:
        return []
    reached = reached_elements(facts, sites)
    lost = [lost_from_state(facts, i, reached[i]) for i in facts.groups[group].leaves if i in reached]
    return list(dict.fromkeys(path for paths in lost for path in paths))
