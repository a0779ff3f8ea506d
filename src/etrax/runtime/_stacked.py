"""S×S matrices for many state scalars at a position, in one array each: what is compiled does not grow with S.

A `Sparse` block holds the entries of a fixed pattern, (entries, *positions). A full one is an array (S, S, *positions),
a vector an array (S, *positions). With few states at a position the lists of `_blocks.py` run faster; with many they
take minutes to compile, S³ products for every step of S×S blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._zeros import times


@dataclass(frozen=True)
class Pattern:
    """Which entries of an S×S matrix may differ from zero: rows of bits, so that patterns are compared by value."""

    size: int
    bits: bytes

    @classmethod
    def of(cls, links: np.ndarray) -> Pattern:
        return cls(links.shape[0], np.packbits(links).tobytes())

    @cached_property
    def links(self) -> np.ndarray:
        """(S, S), row and column."""
        flat = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=self.size**2)
        return flat.astype(bool).reshape(self.size, self.size)

    @cached_property
    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the entries, row by row."""
        rows, cols = np.nonzero(self.links)
        return rows, cols

    @cached_property
    def number(self) -> np.ndarray:
        """(S, S): the number of an entry, or that of none."""
        found = np.full((self.size, self.size), self.entries[0].size)
        found[self.entries] = np.arange(self.entries[0].size)
        return found

    @cached_property
    def by_row(self) -> np.ndarray:
        """(rounds, S): the columns of each row one by one; where there are no more, S."""
        return _one_by_one(self.links)

    @cached_property
    def by_col(self) -> np.ndarray:
        """(rounds, S): the rows of each column one by one; where there are no more, S."""
        return _one_by_one(self.links.T)


def _one_by_one(links: np.ndarray) -> np.ndarray:
    n = links.shape[0]
    order = np.argsort(~links, axis=1, kind="stable")[:, : max(int(links.sum(1).max(initial=0)), 1)]
    return np.where(np.take_along_axis(links, order, 1), order, n).T


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Sparse:
    """The entries of a pattern, (entries, *positions), row by row."""

    values: Array
    pattern: Pattern

    def tree_flatten(self) -> tuple[tuple[Array], Pattern]:
        return (self.values,), self.pattern

    @classmethod
    def tree_unflatten(cls, pattern: Pattern, values: tuple[Array]) -> Sparse:
        return cls(values[0], pattern)

    def full(self) -> Array:
        """(S, S, *positions)."""
        return _with_none(self.values)[self.pattern.number]


def _with_none(values: Array) -> Array:
    """One row more, of zeros."""
    return jnp.concatenate([values, jnp.zeros_like(values, shape=(1, *values.shape[1:]))])


def _is_short(rounds: np.ndarray) -> bool:
    """Whether to take the terms of a sum one by one, rather than all that a full matrix would have."""
    return 2 * len(rounds) <= rounds.shape[1]


def is_shift(links: np.ndarray) -> bool:
    """Whether rows have few entries each, so that a product reads a few times at other places."""
    return _is_short(_one_by_one(links))


def product(q: Array, d: Sparse, steep: bool = False) -> Array:
    """q · d, full."""
    rounds, n = d.pattern.by_col, d.pattern.size
    if not _is_short(rounds):
        return times(q[:, :, None], d.full()[None], steep).sum(1)
    values, none, found = _with_none(d.values), d.pattern.entries[0].size, jnp.zeros(())
    for rows in rounds:
        which = np.where(rows < n, d.pattern.number[np.minimum(rows, n - 1), np.arange(n)], none)
        found = found + times(q[:, np.minimum(rows, n - 1)], values[which][None], steep)
    return found


def stacked_times(d: Sparse, v: Array, steep: bool = False) -> Array:
    """d · v."""
    return _times(d, v, d.pattern.by_row, lambda rows, cols: d.pattern.number[rows, cols], lambda full: full, steep)


def transposed_times(d: Sparse, v: Array, steep: bool = False) -> Array:
    """dᵀ · v."""
    return _times(
        d, v, d.pattern.by_col, lambda cols, rows: d.pattern.number[rows, cols], lambda full: full.swapaxes(0, 1), steep
    )


def _times(
    d: Sparse, v: Array, rounds: np.ndarray, number: Callable[..., np.ndarray], turned: Callable[[Array], Array],
    steep: bool,
) -> Array:  # fmt: skip
    n = d.pattern.size
    if not _is_short(rounds):
        return times(turned(d.full()), v[None], steep).sum(1)
    values, none = _with_none(d.values), d.pattern.entries[0].size
    found = 0
    for at in rounds:
        which = np.where(at < n, number(np.arange(n), np.minimum(at, n - 1)), none)
        found = found + times(values[which], v[np.minimum(at, n - 1)], steep)
    return jnp.asarray(found)


def identity(n: int, one: Array) -> Array:
    """The unit matrix at all positions; `one` is 1 at each."""
    eye = np.eye(n, dtype=bool).reshape(n, n, *[1] * one.ndim)
    return jnp.where(eye, one, jnp.zeros_like(one))


def full_times(a: Array, v: Array, links: np.ndarray) -> Array:
    """a · v for large vectors; `links` are the entries of a that may differ from zero.

    A pass over v for each round of terms. A shift has one, which reads v at another place.
    """
    n = links.shape[0]
    rounds = _one_by_one(links)
    if not _is_short(rounds):
        return sum((a[:, t] * v[t] for t in range(1, n)), a[:, 0] * v[0])
    found = jnp.zeros((), v.dtype)
    for at in rounds:
        there = (at < n).reshape(n, *[1] * (v.ndim - 1))
        cols = np.minimum(at, n - 1)
        found = found + jnp.where(there, a[np.arange(n), cols], 0) * v[cols]
    return found
