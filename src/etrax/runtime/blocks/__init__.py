"""One algebra of the S×S blocks at a group's positions, in two implementations, and one reverse recursion of them.

| method | is |
|---|---|
| `identity(dtype, zero)` | I, in the form of all products of blocks |
| `compose(a, d)` | a · d for rows a, in the form of a: what a loop carries backwards |
| `times(a, v, acts)`, `dot(f, x, acts)` | a · v, and Σ_s f_s x_s; `acts` are the slots that F is of |
| `row(v)`, `of_row(a)` | vᵀ as a matrix of one row, and back: dᵀ v is `of_row(compose(row(v), d))` |
| `map(f, a)`, `map_vector(f, v)` | every entry read elsewhere: at the elements of y, spread over a trace |
| `vector(slots)`, `driven(f, acts)` | a vector of its slots; the slots of F that its op acts on |
| `full(a, shape)` | one array (S, S, …) of a matrix |

`Unrolled` has one array per entry, `Stacked` one for all: chosen once for a group, by how many products its blocks
take (`Layout.stacked`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from jax import Array

from ._alike import Alike as Alike
from ._alike import alike as alike
from ._recursion import Step as Step
from ._recursion import power as power
from ._recursion import reverse as reverse
from ._recursion import reverse_leak as reverse_leak
from ._stacked import Pattern as Pattern
from ._stacked import Sparse as Sparse
from ._stacked import Stacked as Stacked
from ._stacked import full_times as full_times
from ._stacked import is_shift as is_shift
from ._unrolled import POWERS as POWERS
from ._unrolled import Entries as Entries
from ._unrolled import Entry as Entry
from ._unrolled import Unrolled as Unrolled
from ._unrolled import narrowed as narrowed
from ._unrolled import row_times as row_times
from ._unrolled import shortened as shortened
from ._unrolled import total as total

# What an algebra computes with, in the form that its implementation chooses: nobody else looks inside.
Block: TypeAlias = Any
Matrix: TypeAlias = Any
Vector: TypeAlias = Any


class Algebra(Protocol):
    """The operations that `Unrolled` and `Stacked` share, each with matrices and vectors of its own form."""

    def identity(self, dtype: np.dtype, zero: Array | float = 0.0) -> Matrix: ...
    def compose(self, a: Matrix, d: Block) -> Matrix: ...
    def times(self, a: Matrix, v: Vector, acts: np.ndarray | None = None) -> Vector: ...
    def dot(self, f: Vector, x: Vector, acts: np.ndarray) -> Array: ...
    def row(self, v: Vector) -> Matrix: ...
    def of_row(self, a: Matrix) -> Vector: ...
    def vector(self, slots: Sequence[Array]) -> Vector: ...
    def only(self, v: Vector, first: int, lead: int, zero: bool) -> Vector: ...
    def zeros(self, size: int, shape: tuple[int, ...], dtype: np.dtype) -> Vector: ...
    def add_driven(self, v: Vector, f: Vector, acts: np.ndarray, like: Vector) -> Vector: ...
    def map(self, f: Callable[[Array, int, int], Entry], a: Matrix) -> Matrix: ...
    def map_vector(self, f: Callable[[Array], Array], v: Vector) -> Vector: ...
    def driven(self, f: Vector, acts: np.ndarray) -> list[tuple[int, Array]]: ...
    def without(self, a: Matrix, links: np.ndarray) -> Matrix: ...
    def with_copies(self, d: Block, plain: Sequence[int], copied: Sequence[int], kappa: float) -> Block: ...
    def chosen(self, f: Vector, acts: np.ndarray, slots: Sequence[int]) -> Vector: ...
    def full(self, a: Matrix, shape: tuple[int, ...]) -> Array: ...
