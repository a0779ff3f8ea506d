"""Hidden groups and their positions, from the edges between hidden leaves.

Elements that act on each other through the cut step share a position, as long as that leaves many small, equal
positions. Where it does not (a ring, a mean field, a fixed matrix), the widest edges are left out: first those by which
an element acts on several of a leaf that never acts back (a short convolution under a state of several numbers a
channel), then those that mix whole blocks, then those within a leaf, then all. What was left out is reported as not
carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..ir import Leaf
from ..primitives import Dep, look_up
from ._elements import ElementGraph

# So many state scalars at one position may all act on each other. More of them make a position only where they have
# no more links than that (a delay line is a shift: as many links as slots), and no weight drives two of them apart.
# This decides which traces there are, and so what is exact, on every device alike.
MAX_STATES = 64
MAX_LINKS = MAX_STATES**2


@dataclass(frozen=True, eq=False)
class Group:
    """Hidden leaves with one position set; element e of leaf i is state `slot[i][e]` at position `place[i][e]`."""

    index: int
    leaves: tuple[int, ...]
    num_positions: int
    num_state: int
    varshape: tuple[int, ...]
    place: tuple[np.ndarray, ...]
    slot: tuple[np.ndarray, ...]

    def place_of(self, leaf: int) -> np.ndarray:
        return self.place[self.leaves.index(leaf)]


@dataclass(frozen=True)
class Anchor:
    """How a weight op reaches a leaf: used to tell a state axis from positions."""

    leaf: int
    dep: Dep
    per_element: int  # elements of y that stand for one (lengths of inner loops)
    mixes: bool  # whether the op is a product, not a bias or a gain


Edge: TypeAlias = tuple[int, int, Dep]


def find_groups(
    leaves: Sequence[Leaf], diff: Sequence[int], edges: Sequence[Edge], anchors: Sequence[Anchor]
) -> list[Group]:
    """Groups of the differentiable leaves numbered `diff`, in the order of their first leaf."""
    groups: list[Group] = []
    for cluster in _clusters(diff, edges):
        groups += _split(leaves, cluster, _within(cluster, edges), edges, anchors, _LEVELS)
    groups.sort(key=lambda g: g.leaves[0])
    return [Group(i, g.leaves, g.num_positions, g.num_state, g.varshape, g.place, g.slot) for i, g in enumerate(groups)]


def positions_of(leaves: Sequence[Leaf], cluster: tuple[int, ...], edges: Sequence[Edge]) -> Group | None:
    """The group of some leaves if all their edges are links; None if its positions are too large, or unequal."""
    return _try(leaves, cluster, edges, (), complete=True)


def _within(cluster: Sequence[int], edges: Sequence[Edge]) -> list[Edge]:
    return [e for e in edges if e[0] in cluster and e[1] in cluster]


def _is_fine(edge: Edge) -> bool:
    return edge[2].part.labels is None


def _is_between(edge: Edge) -> bool:
    return _is_fine(edge) and edge[0] != edge[1] and len(edge[2].maps) == 1


def _mutual(cluster: Sequence[int], edges: Sequence[Edge]) -> list[Edge]:
    """Edges but for those by which an element acts on several of a leaf that never acts back."""
    reached = {i: {i} for i in cluster}
    grown = None
    while grown != reached:
        grown, reached = reached, {
            i: there.union(*(reached[b] for a, b, _ in edges if a in there)) for i, there in reached.items()
        }  # fmt: skip
    return [e for e in edges if (_is_fine(e) and len(e[2].maps) == 1) or e[0] in reached[e[1]]]


# Which edges of a cluster are taken as links, first all of them.
Levels: TypeAlias = Sequence[Callable[[Sequence[int], Sequence[Edge]], Sequence[Edge]]]
_LEVELS: Levels = (
    lambda cluster, edges: edges,
    _mutual,
    lambda cluster, edges: [e for e in edges if _is_fine(e)],
    lambda cluster, edges: [e for e in edges if _is_between(e)],
    lambda cluster, edges: [],
)


def _clusters(leaves: Sequence[int], edges: Sequence[Edge]) -> list[tuple[int, ...]]:
    """Leaves joined by edges, in order."""
    root = {i: i for i in leaves}

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for a, b, _ in edges:
        ra, rb = find(a), find(b)
        # The smallest number stays the root, so that clusters come in the order of their first leaf.
        root[max(ra, rb)] = min(ra, rb)
    clusters: dict[int, list[int]] = {}
    for i in leaves:
        clusters.setdefault(find(i), []).append(i)
    return [tuple(c) for _, c in sorted(clusters.items())]


def _split(
    leaves: Sequence[Leaf], cluster: tuple[int, ...], edges: Sequence[Edge], every: Sequence[Edge],
    anchors: Sequence[Anchor], levels: Levels,
) -> list[Group]:  # fmt: skip
    """Groups of a cluster by its edges that are not left out so far, of `every` edge that there is."""
    keep, *rest = levels
    carried = keep(cluster, edges)
    parts = _clusters(cluster, carried)
    if len(parts) > 1:
        return [g for part in parts for g in _split(leaves, part, _within(part, carried), every, anchors, levels)]
    group = _try(leaves, cluster, carried, anchors, complete=len(carried) == len(_within(cluster, every)))
    return [group] if group is not None else _split(leaves, cluster, edges, every, anchors, rest)


def _try(
    leaves: Sequence[Leaf], cluster: tuple[int, ...], edges: Sequence[Edge], anchors: Sequence[Anchor], complete: bool
) -> Group | None:
    """Positions if every edge is taken as a link, or None if they are too large, unequal, or join several neurons.

    `complete` says that no edge between these leaves is left out.
    """
    shapes = [leaves[i].aval.shape for i in cluster]
    sizes = [int(np.prod(s, dtype=np.int64)) for s in shapes]
    offsets = dict(zip(cluster, np.cumsum([0, *sizes[:-1]]), strict=True))
    labels = _labels(leaves, cluster, sizes, offsets, edges)
    parts = [labels[offsets[i] : offsets[i] + n] for i, n in zip(cluster, sizes, strict=True)]
    count = int(labels.max()) + 1 if labels.size else 0
    per_leaf = []
    for part in parts:
        # Every position has equally many elements of a leaf, else blocks would differ in size.
        counts = np.bincount(part, minlength=count)
        if count == 0 or counts.min() != counts.max():
            return None
        per_leaf.append(int(counts[0]))
    states = sum(per_leaf)
    many = states > MAX_STATES
    if many and sum(_links(dep) for *_, dep in edges) > MAX_LINKS * count:
        return None
    if not _separate(leaves, cluster, parts, per_leaf, [a for a in anchors if a.mixes or many], complete):
        return None
    # Positions are numbered in the order of a leaf that has one element at each, so that this leaf is read as it
    # stands.
    reference = per_leaf.index(1) if 1 in per_leaf else 0
    rank = np.empty(count, np.int32)
    # Of each position, where it first occurs in the leaf of reference.
    order = np.unique(parts[reference], return_index=True)[1]
    rank[parts[reference][np.sort(order)]] = np.arange(count, dtype=np.int32)
    place = tuple(rank[p].reshape(s) for p, s in zip(parts, shapes, strict=True))
    slots = _slots(place, per_leaf)
    return Group(-1, cluster, count, states, _varshape(place[reference], per_leaf[reference], count), place, slots)


def _links(dep: Dep) -> int:
    """How many pairs of elements an edge joins, at most."""
    sizes = np.ones(dep.part.size, np.int64) if dep.part.labels is None else np.bincount(dep.part.labels.reshape(-1))
    return sum(int(sizes[m[m >= 0]].sum()) for m in dep.maps)


def _labels(
    leaves: Sequence[Leaf],
    cluster: Sequence[int],
    sizes: Sequence[int],
    offsets: Mapping[int, int],
    edges: Sequence[Edge],
) -> np.ndarray:
    """The number of the position of every element of a cluster."""
    plain = all(_is_identity(e, sizes, cluster) for e in edges) and not any(leaves[i].state_axis for i in cluster)
    if plain and len(set(sizes)) == 1:
        return np.tile(np.arange(sizes[0], dtype=np.int32), len(sizes))
    graph = ElementGraph(sum(sizes))
    numbers = {i: offsets[i] + np.arange(n) for i, n in zip(cluster, sizes, strict=True)}
    for a, b, dep in edges:
        graph.join(numbers[a], numbers[b], dep)
    for i in cluster:
        if leaves[i].state_axis and leaves[i].aval.shape[-1] > 1:
            rows = numbers[i].reshape(-1, leaves[i].aval.shape[-1])
            # The model says that its last axis counts states of one position: each row is linked to its first element.
            graph.link(np.repeat(rows[:, :1], rows.shape[1] - 1, 1), rows[:, 1:])
    return graph.components()


def _is_identity(edge: Edge, sizes: Sequence[int], cluster: Sequence[int]) -> bool:
    a, b, dep = edge
    if dep.part.labels is not None or len(dep.maps) != 1 or sizes[cluster.index(a)] != sizes[cluster.index(b)]:
        return False
    flat = dep.maps[0].reshape(-1)
    return bool(((flat == np.arange(flat.size)) | (flat < 0)).all())


def _separate(
    leaves: Sequence[Leaf], cluster: Sequence[int], parts: Sequence[np.ndarray], per_leaf: Sequence[int],
    anchors: Sequence[Anchor], complete: bool,
) -> bool:  # fmt: skip
    """No position joins elements of a leaf that one weight op drives separately: those are neurons, not states.

    Where the positions carry the whole recurrence, elements of y that reach several of them do not count: the key of a
    delta rule acts on all rows of its memory at once, and the states of a row act on each other.
    """
    for anchor in anchors:
        if anchor.leaf not in cluster:
            continue
        i = cluster.index(anchor.leaf)
        if per_leaf[i] == 1 or leaves[anchor.leaf].state_axis:
            continue
        part, labels = parts[i], anchor.dep.part.all_labels()
        place = np.zeros(int(labels.max()) + 1, np.int64)  # of each block one of its positions
        place[labels] = part
        alone = _reach_one(anchor.dep, place, part) if complete else np.ones(anchor.dep.maps[0].size, bool)
        pairs, hit = [], np.zeros(place.size, bool)
        for m in anchor.dep.maps:
            flat = m.reshape(-1)
            live = np.flatnonzero((flat >= 0) & alone)
            pairs.append(np.stack([place[flat[live]], live]))
            hit[flat[live]] = True
        # Per position, how many different elements of y drive it; iterations of an inner loop count as one.
        drives = np.bincount(np.unique(np.concatenate(pairs, 1), axis=1)[0]).max(initial=0) // anchor.per_element
        distinct = np.bincount(part[hit[labels]]).max(initial=0)
        if drives > 1 and distinct > 1:
            return False
    return True


def _reach_one(dep: Dep, place: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Of each element of a source, whether it reaches elements of one position, `part`, only; `place` is of blocks."""
    labels = dep.part.all_labels()
    several = np.zeros(place.size, bool)
    # A block of which two elements lie at different positions reaches several.
    several[labels[place[labels] != part]] = True
    first = np.full(dep.maps[0].size, -1, np.int64)
    alone = np.ones(first.size, bool)
    for m in (m.reshape(-1) for m in dep.maps):
        at = np.where(m >= 0, place[m], first)
        alone &= (m < 0) | (~several[m] & ((first < 0) | (at == first)))
        first = at
    return alone


def _slots(place: Sequence[np.ndarray], per_leaf: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Number the elements at a position: leaf by leaf, within a leaf in flat order."""
    slots, base = [], 0
    for p, n in zip(place, per_leaf, strict=True):
        flat = p.reshape(-1)
        if n == 1:
            slot = np.zeros(flat.size, np.int32)
        else:
            order = np.argsort(flat, kind="stable")
            slot = np.empty(flat.size, np.int32)
            slot[order] = np.tile(np.arange(n, dtype=np.int32), flat.size // n)
        slots.append((slot + base).reshape(p.shape).astype(np.int32))
        base += n
    return tuple(slots)


def _varshape(place: np.ndarray, per: int, count: int) -> tuple[int, ...]:
    """Shape of the position set, if its reference leaf shows one."""
    if per == 1:
        return place.shape
    lead = place.shape[:-1]
    if place.ndim and int(np.prod(lead, dtype=np.int64)) == count and bool((place == place[..., :1]).all()):
        return lead
    return (count,)


def target_places(dep: Dep, place: np.ndarray) -> np.ndarray | None:
    """Position that each element reaches (-1: none), or None if one of them reaches several."""
    flat = place.reshape(-1)
    if dep.part.labels is not None:
        blocks = np.full(int(dep.part.labels.max()) + 1, -1, np.int32)
        blocks[dep.part.labels] = flat
        in_one = blocks[dep.part.labels] == flat  # a block within one position agrees with all of its elements
        spread = np.zeros(blocks.size, bool)
        spread[dep.part.labels[~in_one]] = True
        flat = np.where(spread, -2, blocks)
    first, *rest = (look_up(flat, m) for m in dep.maps)
    if (first == -2).any():
        return None
    for at in rest:
        if (at == -2).any() or ((first >= 0) & (at >= 0) & (first != at)).any():
            return None
        first = np.maximum(first, at)
    return first


def reached_places(deps: Mapping[int, Dep], group: Group) -> np.ndarray | None:
    """The position of a group that each element of a source reaches (-1: none), by its edges to leaves of the group.

    None if an element reaches several.
    """
    place: np.ndarray | None = None
    for leaf, dep in deps.items():
        at = target_places(dep, group.place_of(leaf))
        if at is None or (place is not None and ((place >= 0) & (at >= 0) & (place != at)).any()):
            return None
        place = at if place is None else np.maximum(place, at)
    return place
