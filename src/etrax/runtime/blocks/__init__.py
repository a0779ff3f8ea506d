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

from typing import Any, TypeAlias

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

Algebra: TypeAlias = Unrolled | Stacked
# What an algebra computes with, in the form that its implementation chooses: nobody else looks inside.
Block: TypeAlias = Any
Matrix: TypeAlias = Any
Vector: TypeAlias = Any
