"""Fan-out: an element of y that reaches several positions, as one copy of it for each of them.

A shared gate, the key of linear attention, Δ and B of a selective state space: none has one position, but each pair of
an element of y and a position that it reaches has one. With y repeated, ŷ[q] = y[of[q]], every element of ŷ reaches one
position, and ŷ is the same op with its weights repeated: all that holds for an op at one position holds for ŷ. Copies
stand along one axis of y, the one whose elements read weights of their own (`Columns`):

    y     [u_0  u_1]          u_d drives h[d, 0], h[d, 1], h[d, 2]
    ŷ     [u_0  u_0  u_0  u_1  u_1  u_1]
    place [ 0    1    2    3    4    5 ]

F over pairs is read by pushing y forward. Elements of which no two reach one position are of one colour, and pushed
together: u of a selective layer in one push, [u, Δ, B] of a fused product in three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from .._compat import common_dtype
from ..ops import Columns, with_columns
from ..primitives import Dep
from ._sites import WeightSite

if TYPE_CHECKING:
    from ._facts import Facts, Relation

# Of each hidden leaf of a group that an op reaches: how its elements reach those of the leaf, and their positions.
Reach: TypeAlias = tuple[tuple[Dep, np.ndarray], ...]
_MAX_COLOURS = 62
_MAX_LISTED = 1_000_000


class FanOut(NamedTuple):
    """Which relations are carried over pairs: a trace of at most `nbytes`, F in at most `pushes` a step."""

    nbytes: float
    pushes: float


NO_FAN_OUT = FanOut(0, 0)


@dataclass(frozen=True, eq=False)
class Copies:
    """How y is repeated: element q of the columns of `site`, the op with repeated weights, copies column `of[q]` of y,
    one of `count`.
    `colour` is the push in which an element of y is read (-1: it reaches nothing), `push` that of each copy, both with
    the axes of inner loops: an iteration need not reach all places of its element (-1).
    """

    site: WeightSite
    columns: Columns
    of: np.ndarray
    count: int
    pairs: int
    colour: np.ndarray
    push: np.ndarray

    @property
    def pushes(self) -> int:
        return int(self.colour.max()) + 1


def fanned_out(facts: Facts, relation: Relation, limit: FanOut) -> Relation | None:
    """A relation that is not representable with a place for each of its pairs, if that stays within a limit."""
    if not limit.nbytes or not can_fan_out(facts, relation):
        return None
    site, count = facts.sites[relation.site], _count(relation.reach)
    if count.meeting > limit.pushes or _bytes_of(facts, site, relation.group, count.least) > limit.nbytes:
        return None
    found = _with_copies(facts, relation)
    if found is None or found.copies is None or found.copies.pushes > limit.pushes:
        return None
    return found if trace_bytes(facts, found) <= limit.nbytes else None


def can_fan_out(facts: Facts, relation: Relation) -> bool:
    """Whether a trace over the pairs of a relation is possible at all, whatever it costs."""
    site = facts.sites[relation.site]
    return not relation.representable and not facts.nonlinear and site.rule.columns(site.call) is not None


def bytes_over_pairs(facts: Facts, relation: Relation) -> int:
    """Bytes that a trace over the pairs of a relation takes, or about that many where there are too many to list."""
    site, about = facts.sites[relation.site], _count(relation.reach).about
    found = _with_copies(facts, relation) if about <= _MAX_LISTED else None
    return trace_bytes(facts, found) if found is not None else _bytes_of(facts, site, relation.group, about)


def trace_bytes(facts: Facts, relation: Relation) -> int:
    """Bytes of the trace of a relation, at most: a state that follows from others needs none."""
    site = relation.copies.site if relation.copies is not None else facts.sites[relation.site]
    return _bytes_of(facts, site, relation.group, _size((*site.slices, *site.call.out.shape)))


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _bytes_of(facts: Facts, site: WeightSite, group: int, elements: int) -> int:
    """Bytes of traces for that many elements of y."""
    per_element = _size(site.rule.trace_shape(site.call)) / max(_size(site.call.out.shape), 1)
    g, states = facts.groups[group], 0
    for leaf, place in zip(g.leaves, g.place, strict=True):
        parts = 2 if np.issubdtype(facts.states[leaf].aval.dtype, np.complexfloating) else 1
        states += parts * place.size // max(g.num_positions, 1)
    return int(elements * per_element * states * common_dtype(site.call.out.dtype, np.float32).itemsize)


class _Count(NamedTuple):
    """Pairs, and elements that meet at one position, counted without a list of them."""

    least: int
    about: int
    meeting: int


def _count(reach: Reach) -> _Count:
    least = about = meeting = 0
    for dep, place in reach:
        sizes = np.bincount(_blocks(dep, place)[0])
        reached = [np.bincount(m[m >= 0], minlength=sizes.size) for m in (m.reshape(-1) for m in dep.maps)]
        pairs = [int((n * sizes).sum()) for n in reached]
        least, meeting = max(least, *pairs), max(meeting, *(int(n.max(initial=0)) for n in reached))
        about = max(about, sum(pairs))
    return _Count(least, about, meeting)


def _blocks(dep: Dep, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (block, position in it), each once, ordered."""
    labels, positions = dep.part.all_labels(), place.reshape(-1)
    width = int(positions.max(initial=0)) + 1
    return np.divmod(np.unique(labels.astype(np.int64) * width + positions), width)


def _listed(reach: Reach) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (element of y, position), each once, ordered."""
    width = max(int(place.max(initial=0)) for _, place in reach) + 1
    found = []
    for dep, place in reach:
        block, position = _blocks(dep, place)
        sizes = np.bincount(block)
        starts = np.cumsum(sizes) - sizes
        for m in (m.reshape(-1) for m in dep.maps):
            e = np.flatnonzero(m >= 0)
            n = sizes[m[e]]
            within = np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n)
            found.append(np.repeat(e, n) * width + position[np.repeat(starts[m[e]], n) + within])
    return np.divmod(np.unique(np.concatenate(found)), width)


@lru_cache(maxsize=256)
def _with_copies(facts: Facts, relation: Relation) -> Relation | None:
    """A relation with one place for each copy; None if too many elements of y meet at a position."""
    site = facts.sites[relation.site]
    columns = site.rule.columns(site.call)
    assert columns is not None
    e, p = _listed(relation.reach)
    colour = _colours(e, p, _size(site.y_shape), site.y_shape[-1] if site.y_shape else 1)
    if colour is None:
        return None
    kept = _Rows.of((*site.slices, *site.call.out.shape), columns)  # iterations that share a weight are one element
    every = _Rows.of(site.y_shape, columns)
    own = np.arange(kept.rows * kept.columns).reshape(site.beside_loops((*site.slices, *site.call.out.shape)))
    own = np.broadcast_to(own, site.y_shape).reshape(-1)
    width = int(p.max()) + 1
    pair, copy = np.unique(own[e] * width + p, return_inverse=True)
    element, position = np.divmod(pair, width)
    row, column = kept.row[element], kept.column[element]
    first = np.zeros(pair.size, np.int64)
    first[copy[::-1]] = colour[e][::-1]
    q, of = _numbered(row, column, position, first)
    place = np.full((kept.rows, of.size), -1, np.int32)
    place[row, q] = position
    push = np.full((every.rows, of.size), -1, np.int32)
    push[every.row[e], q[copy]] = colour[e]
    wide = replace(site, call=with_columns(site.call, columns, of.size))
    copies = Copies(wide, columns, of, kept.columns, e.size, colour.reshape(site.y_shape), every.put_back(push))
    return replace(relation, place=kept.put_back(place), copies=copies)


class _Rows(NamedTuple):
    """An array with its columns last: of each element, in flat order, the row and the column."""

    row: np.ndarray
    column: np.ndarray
    lead: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, shape: Sequence[int], columns: Columns) -> _Rows:
        axis = len(shape) + columns.out + columns.new
        full = (*shape[:axis], 1, *shape[axis:]) if columns.new else tuple(shape)
        lead = (*full[:axis], *full[axis + 1 :])
        rows = np.expand_dims(np.arange(_size(lead)).reshape(lead), axis)
        along = np.arange(full[axis]).reshape(-1, *[1] * (len(full) - axis - 1))
        return cls(np.broadcast_to(rows, full).reshape(-1), np.broadcast_to(along, full).reshape(-1), lead, axis)

    @property
    def rows(self) -> int:
        return _size(self.lead)

    @property
    def columns(self) -> int:
        return self.column.size // max(self.rows, 1)

    def put_back(self, a: np.ndarray) -> np.ndarray:
        """(rows, n) → the shape of the array with n columns."""
        return np.moveaxis(a.reshape(*self.lead, a.shape[-1]), -1, self.axis)


def _numbered(
    row: np.ndarray, column: np.ndarray, position: np.ndarray, colour: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The number of the copy that each pair has in its row, and the column that each copy is of.

    A column has as many copies as its element of most places. Copies of one push stand together in the order of their
    positions: what is read at the positions is then as a rule an array as it stands.
    """
    order = np.lexsort((position, column, row))
    new = np.flatnonzero(np.diff(row[order] * (int(column.max()) + 1) + column[order], prepend=-1))
    counts = np.diff(new, append=row.size)
    rank = np.empty(row.size, np.int64)
    rank[order] = np.arange(row.size) - np.repeat(new, counts)
    most = np.zeros(int(column.max()) + 1, np.int64)
    np.maximum.at(most, column[order][new], counts)
    q = (np.cumsum(most) - most)[column] + rank
    lowest = np.full(int(row.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, row, position)
    seen = np.unique(q, return_index=True)[1]  # of each copy, the pair of the first row that has it
    moved = np.empty(seen.size, np.int64)
    sort = np.lexsort((position[seen] - lowest[row[seen]], colour[seen]))
    moved[sort] = np.arange(seen.size)
    return moved[q], np.repeat(np.arange(most.size), most)[sort]


def _colours(e: np.ndarray, p: np.ndarray, elements: int, width: int) -> np.ndarray | None:
    """The smallest colour that no other element has at any of the positions that an element reaches (-1: none).

    Rows of `width` elements that never meet are coloured side by side. None if there are too many colours.
    """
    row_at = np.zeros(int(p.max()) + 1, np.int64)
    row_at[p] = e // width
    if (row_at[p] != e // width).any():
        width = elements
    found, taken = np.full(elements, -1, np.int64), np.zeros(row_at.size, np.int64)
    order = np.argsort(e % width, kind="stable")
    e, p = e[order], p[order]
    for part in np.split(np.arange(e.size), np.flatnonzero(np.diff(e % width)) + 1):
        first = np.flatnonzero(np.diff(e[part], prepend=-1))
        near = np.bitwise_or.reduceat(taken[p[part]], first)
        free = ~near & (near + 1)
        if int(free.max()) >= 1 << _MAX_COLOURS:
            return None
        found[e[part][first]] = np.log2(free).astype(np.int64)
        taken[p[part]] |= np.repeat(free, np.diff(first, append=part.size))
    return found
