"""S×S matrices at every position, as lists of arrays: one array per entry, None for an entry that is always zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from jax import Array

from ._zeros import times

# An array over positions; None is zero.
Entry: TypeAlias = Array | None
# block[s][t], as it is made and as it is read.
Block: TypeAlias = list[list[Entry]]
Matrix: TypeAlias = Sequence[Sequence[Entry]]


def total(terms: Iterable[Array]) -> Array:
    """Σ of arrays."""
    found: Any = sum(terms)
    return found


def _sum(terms: Sequence[Entry]) -> Entry:
    found = None
    for term in terms:
        if term is not None:
            found = term if found is None else found + term
    return found


def _times(a: Entry, b: Entry, steep: bool) -> Entry:
    return None if a is None or b is None else times(a, b, steep)


def full(entries: Sequence[Entry]) -> list[Array]:
    """Entries of which none is always zero, as those of blocks that were read without leaving any out."""
    found = [e for e in entries if e is not None]
    assert len(found) == len(entries)
    return found


def block_product(a: Matrix, b: Matrix, steep: bool = False) -> Block:
    """a · b."""
    n = len(a)
    return [[_sum([_times(a[s][r], b[r][t], steep) for r in range(n)]) for t in range(n)] for s in range(n)]


def block_times(a: Matrix, v: Sequence[Array], steep: bool = False) -> list[Entry]:
    """a · v for a vector of arrays."""
    return [_sum([_times(x, y, steep) for x, y in zip(row, v, strict=True)]) for row in a]


def transposed_times(a: Matrix, v: Sequence[Array], steep: bool = False) -> list[Entry]:
    """aᵀ · v for a vector of arrays."""
    n = len(v)
    return [_sum([_times(a[s][t], v[s], steep) for s in range(n)]) for t in range(n)]
