"""Between which bounds a value lies, by interval arithmetic over the step.

Bounds hold for every finite input; NaN has no sign. An equation without a rule here gives those of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from .._compat import CUSTOM, INLINED, JaxprEqn, cond_branches, inner_jaxpr, is_extended, scan_parts
from ..ir import Role, Site, Step, interpret
from ._sites import Addresses, WeightSite


class Range(NamedTuple):
    """lo ≤ value ≤ hi."""

    lo: float = -inf
    hi: float = inf

    @property
    def one_sign(self) -> bool:
        return self.lo >= 0 or self.hi <= 0


ANY, POSITIVE, UNIT = Range(), Range(0, inf), Range(0, 1)


def _join(ranges: Sequence[Range]) -> Range:
    return Range(min(r.lo for r in ranges), max(r.hi for r in ranges))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _mul(a: Range, b: Range) -> Range:
    found = [_times(x, y) for x in a for y in b]
    return Range(min(found), max(found))


def _add(a: Range, b: Range) -> Range:
    return Range(a.lo + b.lo, a.hi + b.hi)


def _neg(a: Range) -> Range:
    return Range(-a.hi, -a.lo)


def _div(a: Range, b: Range) -> Range:
    """A sign is all that is kept of a quotient."""
    if b.lo < 0 < b.hi:
        return ANY
    sign = POSITIVE if b.lo >= 0 else _neg(POSITIVE)
    return _mul(a, sign) if a.one_sign else ANY


def _summed(a: Range) -> Range:
    return Range(0 if a.lo >= 0 else -inf, 0 if a.hi <= 0 else inf)


def _power(a: Range, n: int) -> Range:
    return POSITIVE if n % 2 == 0 or a.lo >= 0 else _neg(POSITIVE) if a.hi <= 0 else ANY


def _monotone(f: Callable[[float], float]) -> Callable[[JaxprEqn, list[Range]], Range]:
    return lambda eqn, r: Range(f(r[0].lo), f(r[0].hi))


def _same(*names: str) -> dict[str, Callable[[JaxprEqn, list[Range]], Range]]:
    return {name: lambda eqn, r: r[0] for name in names}


def _always(found: Range, *names: str) -> dict[str, Callable[[JaxprEqn, list[Range]], Range]]:
    return {name: lambda eqn, r: found for name in names}


_RULES: dict[str, Callable[[JaxprEqn, list[Range]], Range]] = {
    **_same("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "slice", "dynamic_slice", "rev",
            "copy", "stop_gradient", "reduce_max", "reduce_min", "convert_element_type", "reduce_precision",
            "cummax", "cummin", "real"),
    **_always(UNIT, "logistic", "eq", "lt", "le", "gt", "ge", "is_finite"),
    **_always(POSITIVE, "exp", "exp2", "sqrt", "rsqrt", "square", "iota", "random_bits", "argmax", "argmin", "cosh"),
    **_always(Range(-1, 1), "tanh", "sin", "cos", "erf", "sign"),
    **{name: lambda eqn, r: _summed(r[0]) for name in ("reduce_sum", "cumsum")},
    **{name: lambda eqn, r: _join(r) for name in ("concatenate", "pad", "dynamic_update_slice", "scatter")},
    **{name: _monotone(np.floor if name == "floor" else np.ceil if name == "ceil" else np.round)
       for name in ("floor", "ceil", "round")},
    "ne": lambda eqn, r: Range(0, 0) if eqn.invars[0] is eqn.invars[1] else UNIT,  # NaN differs from itself
    "select_n": lambda eqn, r: r[1] if r[0] == Range(0, 0) else _join(r[1:]),
    "gather": lambda eqn, r: _join([r[0], Range(0, 0)]),
    "add": lambda eqn, r: _add(*r),
    "add_any": lambda eqn, r: _add(*r),
    "sub": lambda eqn, r: _add(r[0], _neg(r[1])),
    "neg": lambda eqn, r: _neg(r[0]),
    "mul": lambda eqn, r: POSITIVE if eqn.invars[0] is eqn.invars[1] else _mul(*r),
    "div": lambda eqn, r: _div(*r),
    "max": lambda eqn, r: Range(max(r[0].lo, r[1].lo), max(r[0].hi, r[1].hi)),
    "min": lambda eqn, r: Range(min(r[0].lo, r[1].lo), min(r[0].hi, r[1].hi)),
    "abs": lambda eqn, r: Range(0, max(-r[0].lo, r[0].hi)),
    "clamp": lambda eqn, r: Range(max(r[0].lo, min(r[1].lo, r[2].hi)), min(r[2].hi, max(r[1].hi, r[0].lo))),
    "log1p": lambda eqn, r: POSITIVE if r[0].lo >= 0 else ANY,
    "pow": lambda eqn, r: POSITIVE if r[0].lo >= 0 else ANY,
    "integer_pow": lambda eqn, r: _power(r[0], eqn.params["y"]),
    "dot_general": lambda eqn, r: _summed(_mul(*r)),
    "scatter-add": lambda eqn, r: _summed(_join([r[0], r[2]])),
}  # fmt: skip


def data_ranges(step: Step, sites: Sequence[WeightSite], positive_inputs: bool) -> dict[int, Range]:
    """Per site, the range of the data that its weight meets; `positive_inputs` takes the step's inputs to be ≥ 0.

    A state counts as ≥ 0 if the step leaves it so whenever all such states and inputs are: the largest such set.
    """
    positive = {k for k, leaf in enumerate(step.ins) if leaf.role in (Role.HIDDEN, Role.OTHER)}
    first = min(positive, default=0)
    while True:
        args = [_of_leaf(leaf, k in positive or (positive_inputs and leaf.role is Role.INPUT))
                for k, leaf in enumerate(step.ins)]  # fmt: skip
        outs, found = _walk(step, sites, args)
        broken = {k for k in positive if outs[k - first].lo < 0}
        if not broken:
            return found
        positive -= broken


def _of_leaf(leaf: Any, positive: bool) -> Range:
    return POSITIVE if positive and not _is_complex(leaf.aval) else _of_type(leaf.aval)


def _of_type(aval: Any) -> Range:
    if is_extended(aval):
        return ANY
    kind = np.dtype(aval.dtype).kind
    return UNIT if kind == "b" else POSITIVE if kind == "u" else ANY


def _is_complex(aval: Any) -> bool:
    return not is_extended(aval) and np.dtype(aval.dtype).kind == "c"


def _of_value(value: Any) -> Range:
    """The range of a constant."""
    if isinstance(value, Range):
        return value
    if is_extended(value) if hasattr(value, "dtype") else False:
        return ANY
    numbers = np.asarray(value)
    if numbers.dtype.name == "bfloat16":
        numbers = numbers.astype(np.float32)
    if numbers.dtype.kind not in "biuf":
        return ANY
    numbers = numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers
    return Range(float(numbers.min()), float(numbers.max())) if numbers.size else Range(0, 0)


def _walk(step: Step, sites: Sequence[WeightSite], args: list[Range]) -> tuple[list[Range], dict[int, Range]]:
    found: dict[int, Range] = {}
    here = Addresses(sites).here

    def handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Range] | None:
        ranges = [_of_value(v) for v in values]
        for j in here.get(at, ()):
            met = [ranges[i] for i in sites[j].rule.varying(sites[j].call)]
            found[j] = _join(met) if met else ANY
        name = eqn.primitive.name
        if name in INLINED:
            return None
        if name in CUSTOM:
            body, consts = inner_jaxpr(eqn)
            outs = [_of_value(v) for v in interpret(body, consts, ranges, handle, at)]
        elif name == "cond":
            branches = [interpret(body, consts, ranges[1:], handle, (*at, b))
                        for b, (body, consts) in enumerate(cond_branches(eqn))]  # fmt: skip
            outs = [_join([_of_value(v) for v in each]) for each in zip(*branches, strict=True)]
        elif name == "scan":
            outs = _scan(eqn, ranges, handle, at)
        elif name == "optimization_barrier":
            outs = ranges
        else:
            outs = [_RULES[name](eqn, ranges)] if name in _RULES else [ANY] * len(eqn.outvars)
        return [_within(r, v.aval) for r, v in zip(outs, eqn.outvars, strict=True)]

    outs = interpret(step.jaxpr, [], [*map(_of_value, step.consts), *args], handle)
    return [_of_value(v) for v in outs], found


def _scan(eqn: JaxprEqn, ranges: list[Range], handle: Any, at: Site) -> list[Range]:
    """Nothing is known of what a loop carries."""
    parts = scan_parts(eqn)
    n = parts.num_consts
    args = [*ranges[:n], *[ANY] * parts.num_carry, *ranges[n + parts.num_carry :]]
    outs = interpret(parts.jaxpr, parts.consts, args, handle, at)
    return [*[ANY] * parts.num_carry, *map(_of_value, outs[parts.num_carry :])]


def _within(found: Range, aval: Any) -> Range:
    """A range is never wider than its type; complex numbers have none."""
    own = _of_type(aval)
    if own == UNIT and not (found.lo >= 0 and found.hi <= 1):
        return UNIT
    if _is_complex(aval) or np.isnan(found.lo) or np.isnan(found.hi):
        return own
    return Range(max(found.lo, own.lo), min(found.hi, own.hi)) if own != ANY else found
