"""S×S matrices at every position, as lists of arrays: one array per entry, None for an entry that is always zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

# block[s][t], each an array over positions or None.
Block: TypeAlias = list[list[Any]]


def _sum(terms: Sequence[Any]) -> Any:
    total = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


def _times(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a * b


def multiply(a: Block, b: Block) -> Block:
    """a · b."""
    n = len(a)
    return [[_sum([_times(a[s][r], b[r][t]) for r in range(n)]) for t in range(n)] for s in range(n)]


def act(a: Block, v: Sequence[Any]) -> list[Any]:
    """a · v for a vector of arrays."""
    return [_sum([_times(x, y) for x, y in zip(row, v, strict=True)]) for row in a]


def act_transposed(a: Block, v: Sequence[Any]) -> list[Any]:
    """aᵀ · v for a vector of arrays."""
    n = len(v)
    return [_sum([_times(a[s][t], v[s]) for s in range(n)]) for t in range(n)]
