"""How far a weight op reaches, counted in steps, when nothing is cut.

Nodes are positions (all states of a group at one place) and elements of states that are in no group. An element of y
reaches

    R_1      the positions that it drives through the cut step
    R_2      also what it drives within its own step through other weight ops, and where R_1 leads in one step more
    R_n      where R_{n−1} leads in one step more

until nothing new is found: the influence of a weight is then carried whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..primitives import Dep
from ._edges import Edges, reach_edges
from ._facts import Facts
from ._memo import memoised
from ._nodes import StateNode


@memoised
def uncut_edges(facts: Facts) -> Edges:
    """Edges of the step as it is."""
    return reach_edges(facts.step, facts.sites, frozenset(), frozenset())


@dataclass(frozen=True, eq=False)
class Nodes:
    """The node of every element of every state."""

    of: Mapping[int, np.ndarray]
    count: int


@memoised
def find_nodes(facts: Facts) -> Nodes:
    numbers, count = {}, 0
    for group in facts.groups:
        numbers |= {i: count + place.reshape(-1) for i, place in zip(group.leaves, group.place, strict=True)}
        count += group.num_positions
    for i, leaf in enumerate(facts.states):
        if i not in numbers:
            numbers[i] = count + np.arange(leaf.aval.size)
            count += leaf.aval.size
    return Nodes(numbers, count)


@memoised
def one_step(facts: Facts) -> Any:
    """Which node acts on which within one step of the whole recurrence, (from, to)."""
    from scipy.sparse import csr_matrix  # on use: its import takes half a second

    nodes = find_nodes(facts)
    total = csr_matrix((nodes.count, nodes.count), dtype=bool)
    for source, target, dep in uncut_edges(facts).between(StateNode, StateNode):
        if target in facts.live:
            size = facts.states[source.index].aval.size
            rows = csr_matrix((np.ones(size, bool), (nodes.of[source.index], np.arange(size))), (nodes.count, size))
            total = total + rows @ _matrix(dep, nodes, target.index)
    return total.astype(bool)


def _matrix(dep: Dep, nodes: Nodes, leaf: int) -> Any:
    """(elements of the source, nodes)."""
    from scipy.sparse import csr_matrix  # on use: its import takes half a second

    labels = dep.part.all_labels()
    blocks = int(labels.max()) + 1 if labels.size else 0
    to = csr_matrix((np.ones(labels.size, bool), (labels, nodes.of[leaf])), (blocks, nodes.count))
    size = dep.maps[0].size
    total = csr_matrix((size, nodes.count), dtype=bool)
    for m in (m.reshape(-1) for m in dep.maps):
        at = np.flatnonzero(m >= 0)
        total = total + csr_matrix((np.ones(at.size, bool), (at, m[at])), (size, blocks)) @ to
    return total.astype(bool)


def _from_op(facts: Facts, edges: Edges, site: int) -> Any:
    """(elements of y, nodes) that an op reaches within its own step."""
    from scipy.sparse import csr_matrix  # on use: its import takes half a second

    nodes = find_nodes(facts)
    size = int(np.prod(facts.sites[site].y_shape, dtype=np.int64))
    total = csr_matrix((size, nodes.count), dtype=bool)
    for leaf, dep in edges.states_from(site).items():
        if StateNode(leaf) in facts.live:
            total = total + _matrix(dep, nodes, leaf)
    return total.astype(bool)


@memoised
def reach_of(facts: Facts, site: int, n: int) -> Any:
    """R_n of a weight op, (elements of y, nodes)."""
    from scipy.sparse import eye_array  # on use: its import takes half a second

    if n == 1:
        return _from_op(facts, facts.edges, site)
    before = reach_of(facts, site, n - 1)
    reached = before @ (one_step(facts) + eye_array(find_nodes(facts).count, dtype=bool, format="csr"))
    if n == 2:
        reached = reached + _from_op(facts, uncut_edges(facts), site)
    return reached.astype(bool)


def positions_reached(facts: Facts, group: int, n: int) -> Any:
    """Each position of a group, and where it leads in fewer than n steps of the whole recurrence, (from, to)."""
    from scipy.sparse import eye_array  # on use: its import takes half a second

    still = eye_array(find_nodes(facts).count, dtype=bool).tocsr()
    first = sum(g.num_positions for g in facts.groups[:group])  # nodes of groups come first, in their order
    rows = slice(first, first + facts.groups[group].num_positions)
    reached = still[rows]
    for _ in range(n - 1):
        further = (reached @ (one_step(facts) + still)).astype(bool)
        if further.nnz == reached.nnz:
            break
        reached = further
    return reached[:, rows]


def steps_to_fill(facts: Facts, site: int) -> int:
    """The first n at which R_n is all that the op ever reaches."""
    n = 1
    while reach_of(facts, site, n + 1).nnz > reach_of(facts, site, n).nnz:
        n += 1
    return n
