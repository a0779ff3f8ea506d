"""Between which bounds a value lies, by interval arithmetic.

Bounds hold for every finite input; NaN has no sign. An equation whose primitive has no bounds in its record gives those
of its type.
"""

from __future__ import annotations

from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ..._compat import CUSTOM, JaxprEqn, Var, is_complex, is_concrete, is_extended
from ..ir import Address
from ..primitives import ANY, POSITIVE, UNIT, ZERO, Range, join, record_of
from ._solver import Domain, Note

N = TypeVar("N")


class Bounded(NamedTuple):
    """The range of a value, and whether it is made of parameters and constants only."""

    range: Range
    fixed: bool = False


class Bounds(Domain[Bounded, N], Generic[N]):
    """Ranges, and what is fixed; an analysis that is about them notes what it wants to know."""

    def constant(self, value: object) -> Bounded:
        return Bounded(_of_constant(value), True)

    def join(self, a: Bounded, b: Bounded) -> Bounded:
        return Bounded(join([a.range, b.range]), a.fixed and b.fixed)

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Bounded], note: Note[N]) -> list[Bounded]:
        bounds = record_of(eqn.primitive.name).bounds
        ranges = [ANY] * len(eqn.outvars) if bounds is None else [bounds(eqn, [v.range for v in values])]
        fixed = all(v.fixed for v in values)
        return [Bounded(_within(r, v), fixed) for r, v in zip(ranges, eqn.outvars, strict=True)]

    def leave(
        self, at: Address, eqn: JaxprEqn, values: list[Bounded], outs: list[Bounded], note: Note[N]
    ) -> list[Bounded]:
        # What a branch or a loop gives also depends on what chooses it.
        fixed = eqn.primitive.name in CUSTOM or all(v.fixed for v in values)
        return [Bounded(_within(o.range, v), o.fixed and fixed) for o, v in zip(outs, eqn.outvars, strict=True)]

    def widen(self, eqn: JaxprEqn, old: list[Bounded], new: list[Bounded], rounds: int) -> list[Bounded]:
        """A bound that moves goes as far as it may without changing sign, and then without end."""
        return [Bounded(_widened(a.range, b.range), b.fixed) for a, b in zip(old, new, strict=True)]


def _widened(old: Range, new: Range) -> Range:
    lo = old.lo if new.lo >= old.lo else 0.0 if new.lo >= 0 else -inf
    hi = old.hi if new.hi <= old.hi else 0.0 if new.hi <= 0 else inf
    return Range(lo, hi)


def range_of_type(aval: object) -> Range:
    """What the type of an array says: numbers without a sign, and truth values."""
    if is_extended(aval):
        return ANY
    kind = np.dtype(aval.dtype).kind  # type: ignore[attr-defined]
    return UNIT if kind == "b" else POSITIVE if kind == "u" else ANY


def _of_constant(value: object) -> Range:
    if not is_concrete(value) or (hasattr(value, "dtype") and is_extended(value)):
        return ANY
    numbers = np.asarray(value)
    if numbers.dtype.name == "bfloat16":
        numbers = numbers.astype(np.float32)
    if numbers.dtype.kind not in "biuf":
        return ANY
    numbers = numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers
    return Range(float(numbers.min()), float(numbers.max())) if numbers.size else ZERO


def _within(bounds: Range, var: Var) -> Range:
    """A range is never wider than its type; complex numbers have none."""
    of_type = range_of_type(var.aval)
    if of_type == UNIT and not (bounds.lo >= 0 and bounds.hi <= 1):
        return UNIT
    if is_complex(var.aval) or np.isnan(bounds.lo) or np.isnan(bounds.hi):
        return of_type
    return Range(max(bounds.lo, of_type.lo), min(bounds.hi, of_type.hi)) if of_type != ANY else bounds
