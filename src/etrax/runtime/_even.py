"""Blocks of many states that are equal along axes of positions: how they are read, at y and off a step.

A delta rule moves all rows of its memory by one matrix. Arrays per position then have an axis of one for rows; at the
elements of y they are read with axes of one as well. And since any row tells what the matrix is, one pull asks row 0
for the first state scalar, row 1 for the second, and so on (`Pack`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax import Array

from ._pulls import Pack
from .blocks import shortened


@dataclass(frozen=True, eq=False)
class EvenGather:
    """From arrays per position with axes of one, to arrays per element of y with axes of one where `along` is true."""

    index: np.ndarray
    along: tuple[bool, ...]

    def __call__(self, p: Array) -> Array:
        if np.array_equal(self.index.reshape(-1), np.arange(p.size)):
            return p.reshape(self.index.shape)
        return p.reshape(-1)[self.index]


def even_gather(place: np.ndarray, shape: Sequence[int], even: Sequence[bool]) -> EvenGather:
    """Plan how values per position, equal along some axes, are read at the elements of y."""
    short = [1 if e else n for n, e in zip(shape, even, strict=True)]
    # Positions that are equal along the even axes share a number, that of the one element which is kept.
    numbers = np.broadcast_to(np.arange(math.prod(short)).reshape(short), shape).reshape(-1)
    index = np.where(place < 0, -1, numbers[np.maximum(place, 0)])
    along = []
    for axis in range(index.ndim):
        # An axis of y is even if all its elements read one number; those that reach no position (−1) may read any.
        most = index.max(axis, keepdims=True)
        along.append(bool(((index == most) | (index < 0)).all()))
        index = most if along[-1] else index
    return EvenGather(np.maximum(index, 0), tuple(along))


def pack_of(shape: Sequence[int], even: Sequence[bool], ops: Mapping[int, tuple[np.ndarray, Sequence[bool]]]) -> Pack:
    """How slots are read at different positions, of which blocks are equal along some axes.

    `ops` has, by site, the positions that elements of y reach and the axes of y along which F is equal. A site of which
    no element reaches some position is left out.
    """
    positions = _positions_by_place(shape, even)
    place_of = np.empty(positions.size, np.int64)
    # The place of a position: how far it stands along the even axes, where one pull reads another slot at each place.
    place_of[positions] = np.arange(positions.shape[1])
    outputs = {}
    for site, (places, along) in ops.items():
        elements = _elements_by_place(places, along, place_of, positions.shape[1])
        if elements is not None:
            outputs[site] = elements, shortened(places.shape, along)
    return Pack(shortened(shape, even), positions, outputs)


def _positions_by_place(shape: Sequence[int], even: Sequence[bool]) -> np.ndarray:
    """(n, r): positions by what differs, and by their place along the axes along which blocks are equal."""
    apart = [a for a, e in enumerate(even) if not e]
    axes = [*apart, *(a for a, e in enumerate(even) if e)]
    return np.arange(math.prod(shape)).reshape(shape).transpose(axes).reshape(math.prod(shape[a] for a in apart), -1)


def _elements_by_place(
    places: np.ndarray, along: Sequence[bool], place_of: np.ndarray, count: int
) -> np.ndarray | None:
    """(n, r): an element of y, by what differs there and the place of the position that it reaches; None if not all."""
    short = shortened(places.shape, along)
    numbers = np.broadcast_to(np.arange(math.prod(short)).reshape(short), places.shape).reshape(-1)
    there = np.flatnonzero(places.reshape(-1) >= 0)
    elements = np.full((math.prod(short), count), -1)
    # Any element of those that are equal will do: the last one written stays.
    elements[numbers[there], place_of[places.reshape(-1)[there]]] = there
    return elements if (elements >= 0).all() else None
