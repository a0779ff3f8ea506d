"""Blocks of many states at a position, in one array each: what is compiled does not grow with S.

A block D holds the entries of a fixed pattern (`Sparse`), (entries, *positions). A product of blocks is an array
(S, S, *positions), a vector an array (S, *positions). With few states the lists of `_unrolled.py` run faster; with many
they take minutes to compile, S³ products for every step of S×S blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import common_dtype
from .._zeros import times


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
        out = np.full((self.size, self.size), self.entries[0].size)
        out[self.entries] = np.arange(self.entries[0].size)
        return out

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
        size = self.pattern.size
        if self.values.shape[0] == size**2:
            return self.values.reshape(size, size, *self.values.shape[1:])
        return _with_none(self.values)[self.pattern.number]


def _with_none(values: Array) -> Array:
    """Append a row of zeros, which indices of missing entries point to."""
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
    # Round i takes the i-th entry of every column at once. A column with fewer entries takes the row of zeros, number
    # `none`.
    values, none, out = _with_none(d.values), d.pattern.entries[0].size, jnp.zeros(())
    for rows in rounds:
        which = np.where(rows < n, d.pattern.number[np.minimum(rows, n - 1), np.arange(n)], none)
        out = out + times(q[:, np.minimum(rows, n - 1)], values[which][None], steep)
    return out


def sparse_times(d: Sparse, v: Array, steep: bool = False) -> Array:
    """d · v."""
    rounds, n = d.pattern.by_row, d.pattern.size
    if not _is_short(rounds):
        return times(d.full(), v[None], steep).sum(1)
    # Round i takes the i-th entry of every row at once. A row with fewer entries takes the row of zeros, number `none`.
    values, none, out = _with_none(d.values), d.pattern.entries[0].size, jnp.zeros(())
    for cols in rounds:
        which = np.where(cols < n, d.pattern.number[np.arange(n), np.minimum(cols, n - 1)], none)
        out = out + times(values[which], v[np.minimum(cols, n - 1)], steep)
    return out


def full_times(a: Array, v: Array, links: np.ndarray) -> Array:
    """a · v for large vectors; `links` are the entries of a that may differ from zero.

    A pass over v for each round of terms. A shift has one, which reads v at another place.
    """
    n = links.shape[0]
    rounds = _one_by_one(links)
    lead = _lead(a.shape[2:], v.shape[1:])
    if not _is_short(rounds) and lead is not None:
        return _matrix_product(a, v, lead)
    if not _is_short(rounds):
        # A sum of columns: XLA fuses it into one pass over v, where a product of arrays would store all terms.
        return sum((a[:, t] * v[t] for t in range(1, n)), a[:, 0] * v[0])
    out = jnp.zeros((), v.dtype)
    for at in rounds:
        # Rows without an entry in this round have column n: they read the last one, masked.
        there = (at < n).reshape(n, *[1] * (v.ndim - 1))
        cols = np.minimum(at, n - 1)
        out = out + jnp.where(there, a[np.arange(n), cols], 0) * v[cols]
    return out


def _lead(few: Sequence[int], many: Sequence[int]) -> int | None:
    """The number of leading axes that two shapes share, if the first has only ones, of many numbers, behind them."""
    lead = next((i for i, n in enumerate(few) if n == 1 and any(m > 1 for m in many[i:])), None)
    if lead is None or tuple(few[:lead]) != tuple(many[:lead]) or any(n > 1 for n in few[lead:]):
        return None
    return lead


def _matrix_product(a: Array, v: Array, lead: int) -> Array:
    """a · v where a has axes of one behind `lead` leading ones: a matrix product for each element of these."""
    batch = tuple(range(1, 1 + lead))
    dims = ((1,), (0,)), (tuple(i + 1 for i in batch), batch)
    out = _dot(a.reshape(a.shape[: 2 + lead]), v, dims)  # (lead…, S, …)
    return jnp.moveaxis(out, lead, 0)


def _dot(a: Array, b: Array, dims: jax.lax.DotDimensionNumbers) -> Array:
    """A matrix product in the wider type of the two: blocks may be of a type in which they are not added up."""
    dtype = common_dtype(a.dtype, b.dtype)
    return jax.lax.dot_general(a.astype(dtype), b.astype(dtype), dims)


def _block_product(a: Array, d: Array) -> Array:
    """a · d for two matrices at the same positions, by a matrix product at each."""
    batch = tuple(range(2, a.ndim))
    out = _dot(a, d, (((1,), (0,)), (batch, batch)))  # (positions…, rows, columns)
    return jnp.moveaxis(out, (-2, -1), (0, 1))


@dataclass(frozen=True, eq=False)
class Stacked:
    """The algebra of blocks with many states; in a steep step products are masked (`_zeros.py`).

    `even` says that blocks are equal along axes of positions: products with them are then matrix products.
    """

    size: int
    shape: tuple[int, ...]
    steep: bool = False
    even: bool = False

    def identity(self, dtype: np.dtype, zero: Array | float = 0.0) -> Array:
        """I at all positions, with `zero` added to its ones."""
        # `zero` is a zero that XLA cannot fold. It is added to the ones alone: other entries stay zero for the
        # compiler.
        one = jnp.ones(self.shape, dtype) + jnp.asarray(zero, dtype)
        eye = np.eye(self.size, dtype=bool).reshape(self.size, self.size, *[1] * one.ndim)
        return jnp.where(eye, one, jnp.zeros_like(one))

    def compose(self, a: Array, d: Sparse) -> Array:
        """a · d for rows a, (R, S, …), in the type of a."""
        # Where blocks are equal along positions, few positions are left: a matrix product at each beats sums over all.
        if self.even and a.shape[2:] == d.values.shape[1:] and not _is_short(d.pattern.by_col):
            return _block_product(a, d.full()).astype(a.dtype)
        return product(a, d, self.steep).astype(a.dtype)

    def times(self, a: Array | Sparse, v: Array, acts: np.ndarray | None = None) -> Array:
        """a · v; `acts` are the slots that v is of, if not of all."""
        if isinstance(a, Sparse):
            return sparse_times(a, v, self.steep)
        a = a if acts is None or acts.all() else a[:, acts]
        lead = _lead(a.shape[2:], v.shape[1:]) if self.even else None
        return times(a, v[None], self.steep).sum(1) if lead is None else _matrix_product(a, v, lead)

    def dot(self, f: Array, x: Array, acts: np.ndarray) -> Array:
        """Σ_s f_s · x_s over the slots that F is of."""
        return times(f, x[acts], self.steep).sum(0)

    def row(self, v: Array) -> Array:
        """vᵀ, a matrix of one row."""
        return v[None]

    def of_row(self, a: Array) -> Array:
        """The inverse of `row`."""
        return a[0]

    def vector(self, slots: Sequence[Array]) -> Array:
        """A vector of its slots."""
        return jnp.stack(list(slots))

    def only(self, v: Array, first: int, lead: int, zero: bool) -> Array:
        """A vector from slot `first` on, with zero before it; `lead` axes stand before that of slots."""
        where = (np.arange(v.shape[lead]) >= first).reshape(-1, *[1] * (v.ndim - lead - 1))
        return jnp.where(where, v, 0)

    def zeros(self, size: int, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """A vector of zeros."""
        return jnp.zeros((size, *shape), dtype)

    def add_driven(self, v: Array, f: Array, acts: np.ndarray, like: Array) -> Array:
        """v + F, in the type of another vector."""
        return v.at[acts].add(f).astype(like.dtype)

    def map(self, f: Callable[[Array, int, int], Array | None], a: Array | Sparse) -> Array | Sparse:
        """f(entry, 0, 0) for every entry of a matrix: with many states nothing is known of one that is not of all."""

        def of_all(p: Array) -> Array:
            entry = f(p, 0, 0)
            assert entry is not None, "with many states no entry is known to be zero"
            return entry

        if isinstance(a, Sparse):
            return Sparse(jax.vmap(of_all)(a.values), a.pattern)
        return jax.vmap(jax.vmap(of_all))(a)

    def map_vector(self, f: Callable[[Array], Array], v: Array) -> Array:
        return jax.vmap(f)(v)

    def driven(self, f: Array, acts: np.ndarray) -> list[tuple[int, Array]]:
        """F slot by slot, for the slots that its op acts on."""
        return list(zip(np.flatnonzero(acts).tolist(), f, strict=True))

    def without(self, a: Array, links: np.ndarray) -> Array:
        """A matrix without the entries that are always zero: an array has all."""
        return a

    def with_copies(self, d: Sparse, plain: Sequence[int], copied: Sequence[int], kappa: float) -> Sparse:
        """[[D, 0], [D, κ I]]: a low-pass copy of some slots, behind those that are kept as they are."""
        old, size = np.array([*plain, *copied]), len(plain)
        links = np.zeros((old.size, old.size), bool)
        links[:, :size] = d.pattern.links[np.ix_(old, old[:size])]
        links[np.arange(size, old.size), np.arange(size, old.size)] = True
        pattern = Pattern.of(links)
        rows, cols = pattern.entries
        # κ stands behind the entries of D; columns of copies have no other entry.
        which = np.where(cols < size, d.pattern.number[old[rows], old[np.minimum(cols, size - 1)]], d.values.shape[0])
        return Sparse(jnp.concatenate([d.values, jnp.full_like(d.values[:1], kappa)])[which], pattern)

    def chosen(self, f: Array, acts: np.ndarray, slots: Sequence[int]) -> Array:
        """F at those of some slots, which may be repeated, that its op acts on."""
        # F holds the driven slots alone: slot s stands behind all driven slots before it.
        number = np.cumsum(acts) - 1
        return f[np.array([number[s] for s in slots if acts[s]], np.int64)]

    def full(self, a: Array | Sparse, shape: tuple[int, ...]) -> Array:
        """(S, S, *shape) of a matrix."""
        return a.full() if isinstance(a, Sparse) else a
