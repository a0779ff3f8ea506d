"""Between which bounds a value lies: intervals, their arithmetic, and bounds that many primitives share.

Bounds hold for every finite input; NaN has no sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import NamedTuple, TypeAlias

from ..._compat import JaxprEqn


class Range(NamedTuple):
    """lo ≤ value ≤ hi."""

    lo: float = -inf
    hi: float = inf

    @property
    def one_sign(self) -> bool:
        return self.lo >= 0 or self.hi <= 0


ANY, ZERO, POSITIVE, UNIT = Range(), Range(0, 0), Range(0, inf), Range(0, 1)
# The range of the output of an equation, given those of its operands.
Bounds: TypeAlias = Callable[[JaxprEqn, Sequence[Range]], Range]

# By operand of an equation, the number at which the output is infinite, or no number; NaN: at numbers not said here.
Poles: TypeAlias = Callable[[JaxprEqn], Mapping[int, float]]


def join(ranges: Sequence[Range]) -> Range:
    return Range(min(r.lo for r in ranges), max(r.hi for r in ranges))


def plus(a: Range, b: Range) -> Range:
    return Range(a.lo + b.lo, a.hi + b.hi)


def minus(a: Range) -> Range:
    return Range(-a.hi, -a.lo)


def times(a: Range, b: Range) -> Range:
    ends = [0.0 if x == 0 or y == 0 else x * y for x in a for y in b]  # 0 · ∞ is 0: an end that is never taken
    return Range(min(ends), max(ends))


def power(a: Range, n: int) -> Range:
    if a.lo >= 1 and n >= 1:
        return Range(a.lo, inf)  # from 1 on powers grow; below it a power may be rounded to zero
    return POSITIVE if n % 2 == 0 or a.lo >= 0 else minus(POSITIVE) if a.hi <= 0 else ANY


def summed(a: Range) -> Range:
    """A sum of any number of values of one range."""
    return Range(0 if a.lo >= 0 else -inf, 0 if a.hi <= 0 else inf)


def same(eqn: JaxprEqn, ranges: Sequence[Range]) -> Range:
    """Elements of the first operand, moved, chosen or kept."""
    return ranges[0]


def joined(eqn: JaxprEqn, ranges: Sequence[Range]) -> Range:
    """Elements of any operand."""
    return join(ranges)


def of_sum(eqn: JaxprEqn, ranges: Sequence[Range]) -> Range:
    """Elements of the first operand, added."""
    return summed(ranges[0])


def always(bounds: Range) -> Bounds:
    """Bounds that hold whatever the operands."""
    return lambda eqn, ranges: bounds


def monotone(f: Callable[[float], float]) -> Bounds:
    """Those of a function that never falls."""
    return lambda eqn, ranges: Range(f(ranges[0].lo), f(ranges[0].hi))


def of_product(eqn: JaxprEqn, ranges: Sequence[Range]) -> Range:
    return power(ranges[0], 2) if eqn.invars[0] is eqn.invars[1] else times(ranges[0], ranges[1])


def of_quotient(eqn: JaxprEqn, ranges: Sequence[Range]) -> Range:
    """A sign is all that is kept."""
    a, b = ranges
    if b.lo < 0 < b.hi or not a.one_sign:
        return ANY
    return times(a, POSITIVE if b.lo >= 0 else minus(POSITIVE))


def of_clamp(eqn: JaxprEqn, ranges: Sequence[Range]) -> Range:
    low, a, high = ranges
    return Range(max(low.lo, min(a.lo, high.hi)), min(high.hi, max(a.hi, low.lo)))


def pole(operand: int, at: float = 0.0) -> Poles:
    """The output is infinite where one operand is a number."""
    return lambda eqn: {operand: at}


def anywhere(eqn: JaxprEqn) -> Mapping[int, float]:
    """The output may be infinite, wherever the operands are."""
    return dict.fromkeys(range(len(eqn.invars)), nan)
