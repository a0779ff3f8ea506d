"""Samples: the connected components of everything that a step does, weight ops included.

States of different samples never meet, so each sample's influence matrix moves on its own. Where the components are
not equal in size, or do not lie along one axis of every weight op, all states count as one sample: more work, same
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..primitives import first_seen
from . import Facts, Group, Node, OpNode, Relation, StateNode
from ._elements import components_of


@dataclass(frozen=True, eq=False)
class Samples:
    """Groups whose positions are samples, and the relations of every weight op to them."""

    groups: tuple[Group, ...]
    relations: tuple[Relation, ...]


def find_samples(facts: Facts) -> Samples:
    states = {n.index for edge in facts.edges.dep for n in edge if isinstance(n, StateNode)}
    leaves = sorted(states - facts.unreached)
    sites = [j for j in range(len(facts.sites)) if OpNode(j) in facts.live and facts.remembers(OpNode(j))]
    if not leaves or not sites:
        return Samples((), ())
    labels = _labels(facts, leaves, sites)
    # Components may be finer than samples (units that never meet): then the first or the last axis is tried as theirs.
    for candidates in (labels, _along(labels, leaves, 0), _along(labels, leaves, -1)):
        samples = _grouped(facts, leaves, sites, candidates) if candidates is not None else None
        if samples is not None:
            return samples
    # All as one sample is always right, and costs most.
    samples = _grouped(facts, leaves, sites, {n: np.zeros_like(v) for n, v in labels.items()})
    assert samples is not None
    return samples


def sample_rows(facts: Facts, leaves: Sequence[int]) -> int:
    """The number of samples if they lie along the first axis of these states; 1 where that is not certain."""
    shapes = [facts.states[i].aval.shape for i in leaves]
    if any(len(s) < 2 for s in shapes) or len({s[0] for s in shapes}) != 1:
        return 1
    return shapes[0][0] if _along(_labels(facts, list(leaves), []), list(leaves), 0) is not None else 1


def _along(labels: dict[Node, np.ndarray], leaves: list[int], axis: int) -> dict[Node, np.ndarray] | None:
    """Components joined by their index along one axis of the states, if each lies at one index."""
    count = 1 + max(int(v.max(initial=0)) for v in labels.values())
    owner = np.full(count, -1, np.int64)
    for i in leaves:
        label = labels[StateNode(i)]
        if not label.ndim:
            return None
        index = np.moveaxis(np.broadcast_to(np.arange(label.shape[axis]), np.moveaxis(label, axis, -1).shape), -1, axis)
        label, index = label.reshape(-1), index.reshape(-1)
        before = owner[label]
        owner[label] = index
        # A component at two indices of this axis mixes them, so the axis is none of samples.
        if ((before >= 0) & (before != index)).any() or (owner[label] != index).any():
            return None
    alone = owner < 0
    # What no state owns gets numbers of its own, behind those of the axis.
    owner[alone] = int(owner.max()) + 1 + np.flatnonzero(alone)
    return {n: owner[v] for n, v in labels.items()}


def _sizes(facts: Facts, leaves: list[int], sites: list[int]) -> dict[Node, tuple[int, ...]]:
    shapes: dict[Node, tuple[int, ...]] = {StateNode(i): facts.states[i].aval.shape for i in leaves}
    return shapes | {OpNode(j): facts.sites[j].y_shape for j in sites}


def _labels(facts: Facts, leaves: list[int], sites: list[int]) -> dict[Node, np.ndarray]:
    """Component of every element of every state and weight op."""
    return components_of(facts.edges.dep, _sizes(facts, leaves, sites))


def _grouped(facts: Facts, leaves: list[int], sites: list[int], labels: dict[Node, np.ndarray]) -> Samples | None:
    """Groups of leaves that share components, or None where these are not equal or not along one axis."""
    count = 1 + max(int(v.max(initial=0)) for v in labels.values())
    owned = {i: np.bincount(labels[StateNode(i)].reshape(-1), minlength=count) > 0 for i in leaves}
    clusters: list[list[int]] = []
    for i in leaves:
        same = [c for c in clusters if any((owned[i] & owned[k]).any() for k in c)]
        clusters = [c for c in clusters if c not in same] + [sorted([i, *(k for c in same for k in c)])]
    groups, relations = [], []
    for members in sorted(clusters):
        group = _group(facts, len(groups), members, labels)
        if group is None:
            return None
        groups.append(group)
    for j in sites:
        reached = _relation(facts, j, groups, labels)
        if reached is None:
            return None
        relations += reached
    return Samples(tuple(groups), tuple(relations))


def _group(facts: Facts, index: int, members: list[int], labels: dict[Node, np.ndarray]) -> Group | None:
    every = first_seen(np.concatenate([labels[StateNode(i)].reshape(-1) for i in members]))
    count = int(every.max()) + 1
    place, slot, at, states = [], [], 0, 0
    for i in members:
        shape = labels[StateNode(i)].shape
        n = labels[StateNode(i)].size
        label = every[at : at + n]
        counts = np.bincount(label, minlength=count)
        if counts.min() != counts.max():
            return None
        order = np.argsort(label, kind="stable")
        rank = np.empty(n, np.int32)
        # Sorted by component, elements of one stand together: their number within it is their slot.
        rank[order] = np.tile(np.arange(int(counts[0]), dtype=np.int32), count)
        place.append(label.reshape(shape))
        slot.append((rank + states).reshape(shape))
        states += int(counts[0])
        at += n
    return Group(index, tuple(members), count, states, (count,), tuple(place), tuple(slot))


def _relation(facts: Facts, j: int, groups: list[Group], labels: dict[Node, np.ndarray]) -> list[Relation] | None:
    """The group that a weight op reaches, with the sample of each of its elements."""
    site, label = facts.sites[j], labels[OpNode(j)]
    count = 1 + max(int(v.max(initial=0)) for v in labels.values())
    for g in groups:
        number = np.full(count, -1, np.int32)
        for i, at in zip(g.leaves, g.place, strict=True):
            number[labels[StateNode(i)].reshape(-1)] = at.reshape(-1)
        place = number[label]
        if not (place >= 0).any():
            continue
        if not (place >= 0).all():
            return None
        place = site.one_place(place)
        if place is None:
            return None
        along = [a for a, n in enumerate(place.shape) if _is_axis(place, a, n)]
        if g.num_positions > 1 and (not along or place.shape[along[0]] != g.num_positions):
            return None
        return [Relation(j, g.index, place)]
    return []


def _is_axis(place: np.ndarray, axis: int, n: int) -> bool:
    shape = [1] * place.ndim
    shape[axis] = n
    return bool(np.array_equal(place, np.broadcast_to(np.arange(n).reshape(shape), place.shape)))
