"""Which elements of a source an array depends on, linearly.

A `Dep` of an array z on a source s says: element e of z depends at most on the *blocks* `maps[0][e], maps[1][e], …`
of s. Blocks come from a partition of s; the finest has one element a block. A map holds -1 where there is no
dependence. Everything here over-approximates: a pattern may be too large, never too small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..ir import Source

# More targets than this per element, and the pattern is held by blocks.
MAX_MAPS = 16


@dataclass(frozen=True)
class Cause:
    """The equation that spread a dependence beyond one element; `mixes` if by adding several of them up."""

    primitive: str
    source: Source | None
    mixes: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"`{self.primitive}`" + (f" at {self.source}" if self.source else "")


@dataclass(frozen=True, eq=False)
class Partition:
    """Blocks of a source: `labels[element]` is its block, or each element its own block if None."""

    size: int
    labels: np.ndarray | None = None

    def block_of(self, maps: np.ndarray) -> np.ndarray:
        """Blocks of elements, keeping -1."""
        if self.labels is None:
            return maps
        return look_up(self.labels, maps)

    def all_labels(self) -> np.ndarray:
        return np.arange(self.size, dtype=np.int32) if self.labels is None else self.labels


@dataclass(frozen=True, eq=False)
class Dep:
    """See the module's text. `cause` is the last equation that mixed elements, or the last that moved them if none did.

    Where a dependence reaches further than one element, that is because of a sum rather than of a slice before it.
    """

    part: Partition
    maps: tuple[np.ndarray, ...]
    cause: Cause | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.maps[0].shape

    def relocate(self, f: Callable[[np.ndarray], np.ndarray], cause: Cause | None = None) -> Dep:
        """The dependence after elements were moved, dropped or repeated."""
        mixed = self.cause is not None and self.cause.mixes
        return replace(self, maps=tuple(f(m) for m in self.maps), cause=self.cause if mixed else cause or self.cause)

    def masked(self, mask: np.ndarray) -> Dep:
        """The dependence of those elements alone that a mask marks."""
        return self.relocate(lambda m: np.where(mask.reshape(m.shape), m, -1))

    @property
    def is_empty(self) -> bool:
        return not any((m >= 0).any() for m in self.maps)


def identity(shape: Sequence[int]) -> Dep:
    """An array's dependence on itself."""
    n = int(np.prod(shape, dtype=np.int64))
    return Dep(Partition(n), (np.arange(n, dtype=np.int32).reshape(shape),))


def look_up(table: np.ndarray, at: np.ndarray) -> np.ndarray:
    """`table[at]`, and -1 where `at` is."""
    if at.size and int(at.min()) >= 0:
        return table[at]
    return np.where(at < 0, -1, table[np.maximum(at, 0)] if table.size else -1).astype(table.dtype)


def same_map(a: np.ndarray, b: np.ndarray) -> bool:
    if a is b:
        return True
    if a.shape != b.shape:
        return False
    if a.strides == b.strides and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]:
        return True
    return bool(np.array_equal(a, b))


def same_dep(a: Dep, b: Dep) -> bool:
    """Whether two dependences are written alike."""
    labels = a.part is b.part or np.array_equal(a.part.all_labels(), b.part.all_labels())
    return labels and len(a.maps) == len(b.maps) and all(map(same_map, a.maps, b.maps))


def components(n: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Connected components over n nodes, numbered by first appearance."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    graph = coo_matrix((np.ones(left.size, np.int8), (left, right)), shape=(n, n))
    _, labels = connected_components(graph, directed=False)
    return first_seen(labels)


def first_seen(labels: np.ndarray) -> np.ndarray:
    """Renumber labels (not negative) in the order in which they appear."""
    labels = labels.reshape(-1)
    if not labels.size:
        return labels.astype(np.int32)
    first = np.empty(int(labels.max()) + 1, np.int32)
    first[labels[::-1]] = np.arange(labels.size - 1, -1, -1, dtype=np.int32)  # the last write of a repeated index stays
    at = first[labels]
    new = at == np.arange(labels.size, dtype=np.int32)
    return (np.cumsum(new, dtype=np.int32) - 1)[at]


def _join(a: Partition, b: Partition) -> Partition:
    """The finest partition coarser than both."""
    if a is b or b.labels is None:
        return a
    if a.labels is None or np.array_equal(a.labels, b.labels):
        return b
    # A bipartite graph: blocks of a on the left, those of b, numbered behind them, on the right; an element links two.
    la, lb = a.labels, b.labels
    nodes = components(int(la.max()) + int(lb.max()) + 2, la, lb + int(la.max()) + 1)
    return Partition(a.size, first_seen(nodes[la]))


def _refit(dep: Dep, part: Partition) -> tuple[np.ndarray, ...]:
    """Maps of `dep` as blocks of a coarser partition."""
    if dep.part is part or part.labels is None:
        return dep.maps
    if dep.part.labels is None:
        return tuple(part.block_of(m) for m in dep.maps)
    # Every element of an old block lies in the same new block, so that any of them may write the entry.
    lookup = np.zeros(int(dep.part.labels.max()) + 1, np.int32)
    lookup[dep.part.labels] = part.labels
    return tuple(look_up(lookup, m) for m in dep.maps)


def _add_map(maps: list[np.ndarray], new: np.ndarray) -> None:
    """Add one map to a list, merging it into another where the two never disagree."""
    for i, old in enumerate(maps):
        if same_map(old, new):
            return
        clash = (old >= 0) & (new >= 0) & (old != new)
        if not clash.any():
            maps[i] = np.maximum(old, new)
            return
    maps.append(new)


def union(deps: Sequence[Dep]) -> Dep:
    """Dependence of a sum of arrays of one shape."""
    first, *rest = deps
    if not rest:
        return first
    part, cause = first.part, first.cause
    for dep in rest:
        part = _join(part, dep.part)
        cause = dep.cause if cause is None or (dep.cause is not None and dep.cause.mixes > cause.mixes) else cause
    if all(dep.part is part and _same_maps(first, dep) for dep in rest):
        return replace(first, cause=cause)
    maps: list[np.ndarray] = []
    for dep in deps:
        for m in _refit(dep, part):
            _add_map(maps, m)
    joined = Dep(part, tuple(maps), cause)
    return coarsen(joined) if len(maps) > MAX_MAPS else joined


def _same_maps(a: Dep, b: Dep) -> bool:
    """Whether two patterns are written with the same maps in the same order."""
    if len(a.maps) != len(b.maps):
        return False
    return all(m is n for m, n in zip(a.maps, b.maps, strict=True)) or bool(
        (np.array(a.maps) == np.array(b.maps)).all()
    )


def coarsen(dep: Dep) -> Dep:
    """One block per element of z: blocks that share an element of z become one."""
    base, labels = dep.maps[0].reshape(-1), dep.part.all_labels()
    # The first block that an element has stands for it; its other blocks are joined with that one.
    anchor = base
    for m in dep.maps[1:]:
        anchor = np.where(anchor >= 0, anchor, m.reshape(-1))
    left, right = [], []
    for m in dep.maps:
        m = m.reshape(-1)
        both = (m >= 0) & (anchor >= 0) & (m != anchor)
        left.append(anchor[both])
        right.append(m[both])
    merged = components(int(labels.max()) + 1, np.concatenate(left), np.concatenate(right))
    part = Partition(dep.part.size, first_seen(merged[labels]))
    moved = _refit(replace(dep, maps=(anchor.reshape(dep.shape),)), part)
    return Dep(part, moved, dep.cause)


def reduce(dep: Dep, axes: Sequence[int], cause: Cause) -> Dep:
    """Dependence of a sum over axes."""
    axes = tuple(sorted(axes))
    width = int(np.prod([dep.shape[a] for a in axes], dtype=np.int64))
    if width == 0:
        return dep.relocate(lambda m: np.full(np.delete(m.shape, axes), -1, np.int32), cause)
    if width == 1:
        return dep.relocate(lambda m: m.reshape([n for i, n in enumerate(m.shape) if i not in axes]))
    # Summed axes last, and those as one: a row holds all that one element of the result depends on.
    cause = replace(cause, mixes=True)
    moved = [np.moveaxis(m, axes, range(-len(axes), 0)) for m in dep.maps]
    rows = [m.reshape(*m.shape[: m.ndim - len(axes)], width) for m in moved]
    if width * len(rows) <= MAX_MAPS:
        columns = [m[..., i] for m in rows for i in range(width)]
        ordered = np.sort(rows[0], axis=-1)
        if len(rows) == 1 and ordered.size and ordered.min() >= 0 and (ordered[..., 1:] != ordered[..., :-1]).all():
            return Dep(dep.part, tuple(columns), cause)  # all different everywhere, so that none is part of another
        return union([Dep(dep.part, (m,), cause) for m in columns])
    wide = np.concatenate(rows, axis=-1)
    return Dep(*_coarse_rows(dep.part, wide), cause)


def _coarse_rows(part: Partition, wide: np.ndarray) -> tuple[Partition, tuple[np.ndarray, ...]]:
    """Make every row of `wide` (…, k) one block."""
    shape, width = wide.shape[:-1], wide.shape[-1]
    rows = int(np.prod(shape, dtype=np.int64))
    row = np.broadcast_to(np.arange(rows, dtype=np.int32)[:, None], (rows, width)).reshape(-1)
    new, blocks = merge_rows(part, row, wide.reshape(-1), rows)
    return new, (blocks.reshape(shape),)


def merge_rows(part: Partition, row: np.ndarray, block: np.ndarray, rows: int) -> tuple[Partition, np.ndarray]:
    """Make the blocks of each row one block, given pairs of row and block (-1: none); and the block of each row."""
    if block.size and int(block.min()) < 0:
        row, block = row[block >= 0], block[block >= 0]
    count = part.size if part.labels is None else int(part.labels.max(initial=-1)) + 1
    # Of the rows that hold a block, the last one that is written; if it is the only one, no graph is needed.
    owner = np.full(count, -1, np.int32)
    owner[block] = row
    if np.array_equal(owner[block], row):  # no block is in two rows
        blank = owner < 0
        merged = np.where(blank, rows + np.arange(count, dtype=np.int32), owner) if blank.any() else owner
    else:
        merged = components(rows + count, row, rows + block)[rows:]
    block_of_row = np.full(rows, -1, np.int32)
    if part.labels is None:
        new = Partition(part.size, first_seen(merged))
        block_of_row[row] = new.all_labels()[block]
    else:
        new = Partition(part.size, first_seen(merged[part.labels]))
        lookup = np.zeros(count, np.int32)
        lookup[part.labels] = new.all_labels()
        block_of_row[row] = lookup[block]
    return new, block_of_row


def everything(dep: Dep, shape: Sequence[int], cause: Cause) -> Dep:
    """Every element of an array of this shape depends on all that any element of `dep` depends on."""
    one = reduce(dep, range(len(dep.shape)), cause)
    return one.relocate(lambda m: np.broadcast_to(m, tuple(shape)), cause)
