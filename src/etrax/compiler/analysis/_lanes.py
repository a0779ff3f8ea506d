"""Lanes: streams side by side along the first axis of every state, each of which may start again on its own."""

from __future__ import annotations

import numpy as np

from ._elements import components_of
from ._facts import Facts
from ._memo import memoised
from ._nodes import Node, OpNode, StateNode
from ._positions import Group


def lane_of_elements(shape: tuple[int, ...]) -> np.ndarray:
    """The lane of every element of a state."""
    return np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape)


def lane_of_positions(facts: Facts, group: Group) -> np.ndarray | None:
    """The lane of every position of a group; None if one holds states of several lanes, which an op drives together."""
    lanes = np.full(group.num_positions, -1, np.int64)
    # States that were added to a step at the positions of others (copies, filtered data) may have no axis of lanes.
    for i in (i for i in group.leaves if facts.states[i].aval.shape[:1] == (facts.lanes,)):
        place, lane = group.place_of(i), lane_of_elements(facts.states[i].aval.shape)
        before = lanes[place]
        lanes[place] = lane
        if ((before >= 0) & (before != lane)).any() or (lanes[place] != lane).any():
            return None
    return lanes if (lanes >= 0).all() else None


@memoised
def lanes_meet(facts: Facts) -> bool:
    """Whether a state acts on a state at another index of the first axis, in any number of steps.

    Ops that no state reaches are left out: data that lanes share take nothing from one to another.
    """
    parts = components_of(facts.edges.dep, _carriers(facts))
    owner = np.full(1 + max((int(a.max(initial=-1)) for a in parts.values()), default=-1), -1, np.int64)
    for node, part in parts.items():
        if not isinstance(node, StateNode):
            continue
        part, lane = part.reshape(-1), lane_of_elements(part.shape).reshape(-1)
        before = owner[part]
        owner[part] = lane
        if ((before >= 0) & (before != lane)).any() or (owner[part] != lane).any():
            return True
    return False


def _carriers(facts: Facts) -> dict[Node, tuple[int, ...]]:
    """The shapes of the states, and of the outputs of ops that a state reaches."""
    states = {n for edge in facts.edges.dep for n in edge if isinstance(n, StateNode)}
    reached: set[Node] = set(states)
    while True:
        new = {t for s, t in facts.edges.dep if s in reached and isinstance(t, OpNode)} - reached
        if not new:
            break
        reached |= new
    shapes: dict[Node, tuple[int, ...]] = {n: facts.states[n.index].aval.shape for n in states}
    return shapes | {n: facts.sites[n.index].y_shape for n in reached if isinstance(n, OpNode)}
