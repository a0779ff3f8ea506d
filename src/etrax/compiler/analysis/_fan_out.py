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
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import common_dtype, is_inexact
from ..opened import OpenStep, WeightSite
from ..ops import Columns, with_columns
from ..primitives import Dep
from ._memo import memoised

if TYPE_CHECKING:
    from ._facts import Facts, Relation

# Of each hidden leaf of a group that an op reaches: how its elements reach those of the leaf, and their positions.
Reach: TypeAlias = tuple[tuple[Dep, np.ndarray], ...]
# Beyond these, pairs are not coloured, or not listed: colours of one word, elements of a row, pairs.
_MAX_COLOURS = 62
_MAX_COLOURED = 100_000
_MAX_LISTED = 20_000_000


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
    Where no column is repeated, and some are left out (`_acting`), F is read as that of the relation `source` of y.
    """

    site: WeightSite
    columns: Columns
    of: np.ndarray
    count: int
    pairs: int
    colour: np.ndarray | None = None
    push: np.ndarray | None = None
    source: Relation | None = None

    @property
    def pushes(self) -> int:
        return 0 if self.colour is None else int(self.colour.max()) + 1


@memoised
def fanned_out(facts: Facts, relation: Relation, limit: FanOut) -> Relation | None:
    """A relation that is not representable with a place for each of its pairs, if that stays within a limit."""
    if not limit.nbytes or not can_fan_out(facts, relation):
        return None
    site, count = facts.sites[relation.site], _count(facts, relation)
    if count.meeting > limit.pushes or _bytes_of(facts, site, relation.group, count.least) > limit.nbytes:
        return None
    if bytes_over_pairs(facts, relation) > limit.nbytes:
        return None
    if np.bincount(_listed(facts, relation).position_of).max() > limit.pushes:
        return None
    copied = _with_copies(facts, relation)
    return copied if copied is not None and copied.copies is not None and copied.copies.pushes <= limit.pushes else None


def can_fan_out(facts: Facts, relation: Relation) -> bool:
    """Whether a trace over the pairs of a relation is possible at all, whatever it costs."""
    site = facts.sites[relation.site]
    if relation.representable or facts.nonlinear or site.rule.columns(site.call) is None:
        return False
    copied = tuple(r for r in facts.relations if not r.representable)
    return _can_push(facts, copied) or _can_push(facts, (relation,))


@memoised
def _can_push(facts: Facts, relations: tuple[Relation, ...]) -> bool:
    """Whether the way back from groups to ops can be transposed; a `while_loop` in a derivative rule cannot."""
    opened = OpenStep(facts.step, facts.sites, facts.cut)
    ends = sorted({i for r in relations for i in facts.group(r.group).leaves if is_inexact(facts.states[i].aval)})
    deltas = {r.site: facts.sites[r.site].y_struct for r in relations}

    def push(deltas: dict[int, Array], leaves: list[Array]) -> list[Array]:
        out, pull = jax.vjp(lambda d: [opened(leaves, d)[0][i] for i in ends], deltas)
        return jax.vjp(lambda bars: pull(bars)[0], [jnp.zeros_like(a) for a in out])[1](deltas)[0]

    try:
        jax.eval_shape(push, deltas, [leaf.aval for leaf in facts.step.ins])
    except (ValueError, NotImplementedError):
        return False
    return True


@memoised
def bytes_over_pairs(facts: Facts, relation: Relation) -> int:
    """Bytes that a trace over the pairs of a relation takes, or about that many where there are too many to list."""
    site, elements = facts.sites[relation.site], _count(facts, relation).about
    if elements <= _MAX_LISTED:
        listed = _listed(facts, relation)
        elements = listed.traced.rows * int(_most(listed.row, listed.column).sum())
    return _bytes_of(facts, site, relation.group, elements)


def trace_bytes(facts: Facts, relation: Relation) -> int:
    """Bytes of the trace of a relation, at most: a state that follows from others needs none."""
    site = relation.copies.site if relation.copies is not None else facts.sites[relation.site]
    return _bytes_of(facts, site, relation.group, _size((*site.slices, *site.call.out.shape)))


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _bytes_of(facts: Facts, site: WeightSite, group: int, elements: int) -> int:
    """Bytes of traces for that many elements of y."""
    per_element = _size(site.rule.trace_shape(site.call)) / max(_size(site.call.out.shape), 1)
    g, states = facts.group(group), 0
    for leaf, place in zip(g.leaves, g.place, strict=True):
        parts = 2 if np.issubdtype(facts.states[leaf].aval.dtype, np.complexfloating) else 1
        states += parts * place.size // max(g.num_positions, 1)
    return int(elements * per_element * states * common_dtype(site.call.out.dtype, np.float32).itemsize)


class _Count(NamedTuple):
    """Pairs, and elements that meet at one position, counted without a list of them."""

    least: int
    about: int
    meeting: int


@memoised
def _count(facts: Facts, relation: Relation) -> _Count:
    least = about = meeting = 0
    for dep, place in relation.reach:
        sizes = np.bincount(_blocks(dep, place)[0])
        reached = [np.bincount(m[m >= 0], minlength=sizes.size) for m in (m.reshape(-1) for m in dep.maps)]
        pairs = [int((n * sizes).sum()) for n in reached]
        least, meeting = max(least, *pairs), max(meeting, *(int(n.max(initial=0)) for n in reached))
        about = max(about, sum(pairs))
    return _Count(least, about, meeting)


def _blocks(dep: Dep, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (block, position in it), each once, ordered."""
    labels, positions = dep.part.all_labels(), place.reshape(-1)
    if dep.part.labels is None:
        return labels, positions
    width = int(positions.max(initial=0)) + 1
    # One number for a pair, so that sorting numbers orders pairs and drops those that come twice.
    return np.divmod(_distinct(labels.astype(np.int64) * width + positions), width)


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Each number once, ordered; numpy's own way by hashing takes ten times as long."""
    numbers = np.sort(numbers, kind="stable")  # as a rule they are a few ordered runs, which this merges
    return numbers[np.diff(numbers, prepend=-1) != 0]


class _Listed(NamedTuple):
    """All pairs of a relation, ordered: element of y and position.

    Iterations of an inner loop that share a weight are one element of the trace: `copy` is the number of such an
    element's pair, which `row`, `column` and `position` describe; `traced` says how elements of the trace lie.
    """

    element: np.ndarray
    position_of: np.ndarray
    copy: np.ndarray
    traced: _Rows
    row: np.ndarray
    column: np.ndarray
    position: np.ndarray


@memoised
def _listed(facts: Facts, relation: Relation) -> _Listed:
    site = facts.sites[relation.site]
    columns = site.rule.columns(site.call)
    assert columns is not None
    e, p = _pairs(relation.reach)
    rows = _Rows.of((*site.slices, *site.call.out.shape), columns)
    elements = np.arange(rows.rows * rows.columns).reshape(site.beside_loops((*site.slices, *site.call.out.shape)))
    # Of each element of y, the element of the trace: iterations of a loop with one weight fall together.
    elements = np.broadcast_to(elements, site.y_shape).reshape(-1)
    width = int(p.max()) + 1
    # One number for a pair of element and position, as in `_blocks`.
    pair = elements[e] * width + p
    pair, copy = (pair, np.arange(pair.size)) if all(site.sliced) else np.unique(pair, return_inverse=True)
    element, position = np.divmod(pair, width)
    return _Listed(e, p, copy, rows, rows.row[element], rows.column[element], position)


def pairs_of(reach: Reach, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """All pairs (element of the source, position), each once, ordered; None if there may be more than so many."""
    about = 0
    for dep, place in reach:
        sizes = np.bincount(_blocks(dep, place)[0])
        about += sum(int(sizes[m[m >= 0]].sum()) for m in dep.maps)
    return None if about > most else _pairs(reach)


def _pairs(reach: Reach) -> tuple[np.ndarray, np.ndarray]:
    """All pairs (element of y, position), each once, ordered."""
    width = max(int(place.max(initial=0)) for _, place in reach) + 1
    pairs = []
    for dep, place in reach:
        block, position = _blocks(dep, place)
        sizes = np.bincount(block)
        starts = np.cumsum(sizes) - sizes
        for m in (m.reshape(-1) for m in dep.maps):
            e = np.flatnonzero(m >= 0)
            n = sizes[m[e]]  # an element has as many pairs as its block has positions
            # 0, 1, …, n - 1 for each element in turn: the number of a pair within its block.
            within = np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n)
            pairs.append(np.repeat(e, n) * width + position[np.repeat(starts[m[e]], n) + within])
    return np.divmod(_distinct(np.concatenate(pairs)), width)


@memoised
def _with_copies(facts: Facts, relation: Relation) -> Relation | None:
    """A relation with one place for each copy; None if too many elements of y meet at a position."""
    site, listed = facts.sites[relation.site], _listed(facts, relation)
    columns, e = site.rule.columns(site.call), listed.element
    assert columns is not None
    colour = colours_of_pairs(e, listed.position_of, site.y_shape)
    if colour is None:
        return None
    first = np.zeros(listed.row.size, np.int64)
    # Written backwards, so that of the iterations that share a copy the first one is left.
    first[listed.copy[::-1]] = colour[e][::-1]
    q, of = _numbered(listed, first)
    place = np.full((listed.traced.rows, of.size), -1, np.int32)
    place[listed.row, q] = listed.position
    every = _Rows.of(site.y_shape, columns)
    push = np.full((every.rows, of.size), -1, np.int32)
    push[every.row[e], q[listed.copy]] = colour[e]
    wide = replace(site, call=with_columns(site.call, columns, of.size))
    shaped = colour.reshape(site.y_shape), every.put_back(push)
    copies = Copies(wide, columns, of, listed.traced.columns, e.size, *shaped)
    return replace(relation, place=listed.traced.put_back(place), copies=copies)


class _Rows(NamedTuple):
    """An array with its columns last: of each element, in flat order, the row and the column."""

    row: np.ndarray
    column: np.ndarray
    lead: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, shape: Sequence[int], columns: Columns) -> _Rows:
        axis = len(shape) + columns.out + columns.new  # `out` counts from behind; a new axis is one more
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


def _most(row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """How many pairs an element of each column has, at most."""
    width = int(column.max()) + 1
    counts = np.bincount(row * width + column, minlength=(int(row.max()) + 1) * width)
    return counts.reshape(-1, width).max(0)


def _numbered(listed: _Listed, colour: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the copies: `q[pair]` is its copy within its row, `of[q]` the column that copy q repeats.

    A column has as many copies as its element of most places. Copies of one push stand together in the order of their
    positions: what is read at the positions is then as a rule an array as it stands.
    """
    row, column, position = listed.row, listed.column, listed.position
    order = np.lexsort((position, column, row))
    # Where, in this order, another element (row and column) begins; the rank of a pair counts from there.
    new = np.flatnonzero(np.diff(row[order] * (int(column.max()) + 1) + column[order], prepend=-1))
    rank = np.empty(row.size, np.int64)
    rank[order] = np.arange(row.size) - np.repeat(new, np.diff(new, append=row.size))
    most = _most(row, column)
    q = (np.cumsum(most) - most)[column] + rank  # the copies of a column stand side by side
    # Copies are ordered by push, then by position relative to their row, which is alike in all rows.
    lowest = np.full(int(row.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(lowest, row, position)
    sample = np.unique(q, return_index=True)[1]  # of each copy, the pair of the first row that has it
    moved = np.empty(sample.size, np.int64)
    sort = np.lexsort((position[sample] - lowest[row[sample]], colour[sample]))
    moved[sort] = np.arange(sample.size)
    return moved[q], np.repeat(np.arange(most.size), most)[sort]


def colours_of_pairs(e: np.ndarray, p: np.ndarray, shape: Sequence[int]) -> np.ndarray | None:
    """The smallest colour that no other element has at any of the positions that an element reaches (-1: none).

    Rows that never meet (samples, as a rule) are coloured side by side. None if there are too many colours.
    """
    width = _width_of_rows(e, p, shape)
    colour, taken = np.full(_size(shape), -1, np.int64), np.zeros(int(p.max()) + 1, np.int64)
    order = np.argsort(e % width, kind="stable")
    e, p = e[order], p[order]
    ends = np.flatnonzero(np.diff(e % width, append=-1)) + 1
    if ends.size > _MAX_COLOURED:
        return None
    for start, end in zip((0, *ends[:-1].tolist()), ends.tolist(), strict=True):
        # All elements with the same number within their row at once: rows never meet.
        elements, at = e[start:end], p[start:end]
        first = np.flatnonzero(np.diff(elements, prepend=-1))
        # Bit c of `taken[p]` says that colour c is in use at position p: the lowest bit that is free at all positions
        # of an element is its colour.
        near = np.bitwise_or.reduceat(taken[at], first)
        free = ~near & (near + 1)
        if int(free.max()) >= 1 << _MAX_COLOURS:
            return None
        colour[elements[first]] = np.log2(free).astype(np.int64)
        taken[at] |= np.repeat(free, np.diff(first, append=elements.size))
    return colour


def _width_of_rows(e: np.ndarray, p: np.ndarray, shape: Sequence[int]) -> int:
    """The number of elements behind the most leading axes that keep apart what meets at a position."""
    row_at = np.zeros(int(p.max()) + 1, np.int64)
    for k in range(len(shape) - 1, 0, -1):
        width = _size(shape[k:])
        # Written, then read: where two rows meet at a position, one of them reads the number of the other.
        row_at[p] = e // width
        if (row_at[p] == e // width).all():
            return width
    return _size(shape)
