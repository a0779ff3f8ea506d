"""Which state scalars at a position act on which, and which of them a weight op drives, within one step.

A delay line of S slots is a shift: S links, not S². The pattern of the edges, taken from elements to the numbers that
these have at their positions (`Group.slot`), shows it.
"""

from __future__ import annotations

import numpy as np

from ..primitives import Dep
from ._edges import Edges
from ._nodes import StateNode
from ._positions import Group


def slot_links(edges: Edges, group: Group) -> np.ndarray:
    """(new, old): whether state scalar `old` can act on state scalar `new` within a step, at whatever position."""
    slot = dict(zip(group.leaves, group.slot, strict=True))
    links = np.zeros((group.num_state, group.num_state), bool)
    for a, b, dep in edges.between(StateNode, StateNode):
        if a.index in slot and b.index in slot:
            source, target = _ends(dep, slot[a.index], slot[b.index], group.num_state)
            links |= (target.T.astype(np.int32) @ source) > 0
    return links


def driven_slots(edges: Edges, site: int, group: Group) -> np.ndarray:
    """(S,): whether some output of a weight op can act on a state scalar within its step."""
    slot = dict(zip(group.leaves, group.slot, strict=True))
    driven = np.zeros(group.num_state, bool)
    for leaf, dep in edges.states_from(site).items():
        if leaf in slot:
            _, target = _ends(dep, np.zeros(dep.shape, np.int32), slot[leaf], group.num_state)
            driven |= target.any(0)
    return driven


def _ends(dep: Dep, source: np.ndarray, target: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """An edge as two patterns: meeting points × state scalars that act, meeting points × state scalars acted on.

    Elements of one pair of state scalars meet in one point; those that reach whole blocks, in a point for each set of
    state scalars that a block has.
    """
    source, target = source.reshape(-1), target.reshape(-1)
    if dep.part.labels is None:
        pairs = np.zeros(size * size, bool)
        for m in (m.reshape(-1) for m in dep.maps):
            live = np.flatnonzero(m >= 0)
            pairs[source[live].astype(np.int64) * size + target[m[live]]] = True
        one, two = np.divmod(np.flatnonzero(pairs), size)
        return np.eye(size, dtype=np.int32)[one], np.eye(size, dtype=np.int32)[two]
    labels = dep.part.labels.reshape(-1)
    members = np.zeros((int(labels.max()) + 1, size), bool)
    members[labels, target] = True
    kinds, which = np.unique(members, axis=0, return_inverse=True)
    acting = np.zeros((kinds.shape[0], size), np.int32)
    for m in (m.reshape(-1) for m in dep.maps):
        live = np.flatnonzero(m >= 0)
        acting[which.reshape(-1)[m[live]], source[live]] = 1
    return acting, kinds.astype(np.int32)
