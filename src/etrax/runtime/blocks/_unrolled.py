"""Blocks of few states at a position: one array for each entry of the S×S matrices, products written out.

An entry is an array over positions. It has an axis of length one wherever all along it is equal, and is None where it
is always zero, so that products with it cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._machine import machine
from .._zeros import times

Entry: TypeAlias = Array | None
# entries[s][t]
Entries: TypeAlias = Sequence[Sequence[Entry]]
Vector: TypeAlias = Sequence[Entry]
Shape: TypeAlias = tuple[int, ...]

# What the products of blocks that do not change are called in a compiled program.
POWERS = "powers_of_blocks"


def total(terms: Iterable[Array]) -> Array:
    """Σ of arrays."""
    out: Any = sum(terms)
    return out


def _sum(terms: Iterable[Entry]) -> Entry:
    out = None
    for term in terms:
        if term is not None:
            out = term if out is None else out + term
    return out


def _times(a: Entry, b: Entry, steep: bool) -> Entry:
    return None if a is None or b is None else times(a, b, steep)


def row_times(row: Vector, v: Vector, steep: bool = False) -> Entry:
    """Σ_t row_t · v_t; None if all terms are always zero."""
    return _sum(_times(x, y, steep) for x, y in zip(row, v, strict=True))


def product(a: Entries, b: Entries, steep: bool = False) -> list[list[Entry]]:
    """a · b."""
    columns = range(len(b[0]) if b else 0)
    return [[row_times(row, [line[t] for line in b], steep) for t in columns] for row in a]


def _fitted(a: Entry, like: Entry) -> Entry:
    """`a` in shape and type of another entry, so that a loop can carry it."""
    if like is None:
        return None
    return jnp.zeros_like(like) if a is None else jnp.broadcast_to(a, like.shape).astype(like.dtype)


@dataclass(frozen=True, eq=False)
class Unrolled:
    """The algebra of blocks with few states.

    `shapes[s][t]` is the shape of that entry in all products of blocks; None where it is always zero. In a steep step
    products are masked (`_zeros.py`).
    """

    shapes: Sequence[Sequence[Shape | None]]
    steep: bool = False

    @property
    def rank(self) -> int:
        """The number of axes of an entry."""
        return next((len(shape) for line in self.shapes for shape in line if shape is not None), 0)

    def identity(self, dtype: np.dtype, zero: Array | float = 0.0) -> list[list[Entry]]:
        """I, with `zero` added to its ones, in the form of all products of blocks."""

        def entry(s: int, t: int, shape: Shape | None) -> Entry:
            if shape is None:
                return None
            # `zero` is a zero that XLA cannot fold; whatever is made of the identity then waits until `zero` is known.
            return jnp.ones(shape, dtype) + jnp.asarray(zero, dtype) if s == t else jnp.zeros(shape, dtype)

        return [[entry(s, t, shape) for t, shape in enumerate(line)] for s, line in enumerate(self.shapes)]

    def compose(self, a: Entries, d: Entries) -> list[list[Entry]]:
        """a · d for rows a, in the form of a."""
        pairs = zip(product(a, d, self.steep), a, strict=True)
        return [[_fitted(x, like) for x, like in zip(row, likes, strict=True)] for row, likes in pairs]

    def times(self, a: Entries, v: Vector, acts: np.ndarray | None = None) -> list[Entry]:
        """a · v."""
        return [row_times(row, v, self.steep) for row in a]

    def dot(self, f: Vector, x: Vector, acts: np.ndarray) -> Array:
        """Σ_s f_s · x_s over the slots that F acts on."""
        terms = ((f[s], x[s]) for s in np.flatnonzero(acts).tolist())
        return total(times(a, b, self.steep) for a, b in terms if a is not None and b is not None)

    def row(self, v: Vector) -> list[Vector]:
        """vᵀ, a matrix of one row."""
        return [v]

    def of_row(self, a: Entries) -> Vector:
        """The inverse of `row`."""
        return a[0]

    def vector(self, slots: Sequence[Array]) -> list[Array]:
        """A vector of its slots."""
        return list(slots)

    def only(self, v: Vector, first: int, lead: int, zero: bool) -> list[Entry]:
        """A vector from slot `first` on; before it None, or `zero`."""
        return [a if s >= first else None if a is None or not zero else jnp.zeros_like(a) for s, a in enumerate(v)]

    def zeros(self, size: int, shape: Shape, dtype: np.dtype) -> tuple[Array, ...]:
        """A vector of zeros."""
        return (jnp.zeros(shape, dtype),) * size

    def add_driven(self, v: Vector, f: Vector, acts: np.ndarray, like: Vector) -> tuple[Entry, ...]:
        """v + F, in the form of another vector."""
        sums = (_sum([a, f[s] if acts[s] else None]) for s, a in enumerate(v))
        return tuple(_fitted(a, x) for a, x in zip(sums, like, strict=True))

    def map(self, f: Callable[[Array, int, int], Entry], a: Entries) -> list[list[Entry]]:
        """f(entry, s, t) for every entry of a matrix that is not always zero."""
        return [[None if p is None else f(p, s, t) for t, p in enumerate(line)] for s, line in enumerate(a)]

    def map_vector(self, f: Callable[[Array], Array], v: Vector) -> list[Entry]:
        return [None if x is None else f(x) for x in v]

    def driven(self, f: Vector, acts: np.ndarray) -> list[tuple[int, Array]]:
        """F slot by slot, for the slots that its op acts on."""
        pairs = ((s, f[s]) for s in np.flatnonzero(acts).tolist())
        return [(s, a) for s, a in pairs if a is not None]

    def without(self, a: Entries, links: np.ndarray) -> list[list[Entry]]:
        """A matrix without the entries that are always zero, `links` being the others."""
        return [[p if links[s, t] else None for t, p in enumerate(line)] for s, line in enumerate(a)]

    def with_copies(self, d: Entries, plain: Sequence[int], copied: Sequence[int], kappa: float) -> list[list[Entry]]:
        """[[D, 0], [D, κ I]]: a low-pass copy of some slots, behind those that are kept as they are."""
        leak = jnp.full((1,) * self.rank, kappa)  # one number stands for all positions
        upper = [[*(d[s][t] for t in plain), *[None] * len(copied)] for s in plain]
        lower = [[*(d[s][t] for t in plain), *(leak if s == t else None for t in copied)] for s in copied]
        return [*upper, *lower]

    def chosen(self, f: Vector, acts: np.ndarray, slots: Sequence[int]) -> list[Entry]:
        """F at some slots, which may be repeated."""
        return [f[s] for s in slots]

    def full(self, a: Entries, shape: Shape) -> Array:
        """(S, S, *shape) of a matrix."""
        dtype = next((p.dtype for row in a for p in row if p is not None), np.dtype(np.float32))
        rows = [[jnp.zeros(shape, dtype) if p is None else jnp.broadcast_to(p, shape) for p in row] for row in a]
        return jnp.stack([jnp.stack(row) for row in rows])

    @partial(jax.named_call, name=POWERS)
    def powers(self, d: Entries, steps: int, dtype: np.dtype) -> tuple[Entries, Entries]:
        """d^K, and d^(K−k) stacked over k: each round doubles how many there are.

        They are those of every window: the compiler takes them out of the loop over windows, which a test holds it to.
        """
        if len(d) > machine().unrolled_power_states:
            return self._stacked_powers(d, steps, dtype)
        # I, D, …, D^(n−1) are held; times D^n they are the next n. So log₂ K products suffice.
        out, square, count = [[None if a is None else a[None] for a in line] for line in self.identity(dtype)], d, 1
        while count < steps:
            more = self._fitted(product(out, square), (count,), dtype)
            out = [
                [None if a is None or b is None else jnp.concatenate([a, b]) for a, b in zip(p, q, strict=True)]
                for p, q in zip(out, more, strict=True)
            ]
            square, count = product(square, square), 2 * count
        last = [[None if a is None else a[steps - 1] for a in line] for line in out]
        return product(last, d), [[None if a is None else a[steps - 1 :: -1] for a in line] for line in out]

    def _fitted(self, a: Entries, lead: Shape, dtype: np.dtype) -> list[list[Entry]]:
        """A matrix in the shapes of products, behind leading axes."""

        def fit(p: Entry, shape: Shape | None) -> Entry:
            if shape is None:
                return None
            shape = (*lead, *shape)
            return jnp.zeros(shape, dtype) if p is None else jnp.broadcast_to(p, shape).astype(dtype)

        pairs = zip(a, self.shapes, strict=True)
        return [[fit(p, shape) for p, shape in zip(line, shapes, strict=True)] for line, shapes in pairs]

    def _stacked_powers(self, d: Entries, steps: int, dtype: np.dtype) -> tuple[Entries, Entries]:
        """`powers` by arrays (s, t, positions): as many operations, however many states there are."""
        shape, n = np.broadcast_shapes(*(s for line in self.shapes for s in line if s is not None)), len(d)
        square = self.full(d, shape).astype(dtype)
        out = jnp.broadcast_to(jnp.eye(n, dtype=dtype).reshape(n, n, *(1 for _ in shape)), (1, n, n, *shape))
        # Each round doubles the powers that are held, as in `powers`.
        while out.shape[0] <= steps:
            out = jnp.concatenate([out, jnp.sum(out[:, :, :, None] * square, 2)])
            square = jnp.sum(square[:, :, None] * square, 1)

        def entry(powers: Array, s: int, t: int) -> Entry:
            narrow = self.shapes[s][t]
            return None if narrow is None else narrowed(powers[:, s, t], (False, *(size == 1 for size in narrow)))

        def entries(powers: Array) -> list[list[Entry]]:
            return [[entry(powers, s, t) for t in range(n)] for s in range(n)]

        last = [[None if a is None else a[0] for a in line] for line in entries(out[steps : steps + 1])]
        return last, entries(out[steps - 1 :: -1])


def narrowed(a: Array, along: Sequence[bool]) -> Array:
    """Keep one element along each axis on which all elements are equal."""
    return a[tuple(slice(0, 1) if even else slice(None) for even in along)]


def shortened(shape: Sequence[int], along: Sequence[bool]) -> Shape:
    """A shape with axes of one where all elements are equal."""
    return tuple(1 if even else n for n, even in zip(shape, along, strict=True))
