"""Between which bounds a value lies, by interval arithmetic over the step.

Bounds hold for every finite input; NaN has no sign. An equation whose primitive has no bounds in its record
gives those of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._compat import (
    CUSTOM,
    INLINED,
    JaxprEqn,
    cond_branches,
    inner_jaxpr,
    is_complex,
    is_concrete,
    is_extended,
    scan_parts,
)
from ..ir import Leaf, Role, Site, Step, interpret
from ..opened import Addresses, WeightSite
from ..primitives import ANY, POSITIVE, UNIT, ZERO, Range, join, record_of


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


def _of_leaf(leaf: Leaf, positive: bool) -> Range:
    return POSITIVE if positive and not is_complex(leaf.aval) else _of_type(leaf.aval)


def _of_type(aval: Any) -> Range:
    if is_extended(aval):
        return ANY
    kind = np.dtype(aval.dtype).kind
    return UNIT if kind == "b" else POSITIVE if kind == "u" else ANY


def range_of(value: Any) -> Range:
    """The range of a constant."""
    if isinstance(value, Range):
        return value
    if not is_concrete(value) or (hasattr(value, "dtype") and is_extended(value)):
        return ANY
    numbers = np.asarray(value)
    if numbers.dtype.name == "bfloat16":
        numbers = numbers.astype(np.float32)
    if numbers.dtype.kind not in "biuf":
        return ANY
    numbers = numbers[~np.isnan(numbers)] if numbers.dtype.kind == "f" else numbers
    return Range(float(numbers.min()), float(numbers.max())) if numbers.size else ZERO


def _walk(step: Step, sites: Sequence[WeightSite], args: list[Range]) -> tuple[list[Range], dict[int, Range]]:
    found: dict[int, Range] = {}
    here = Addresses(sites).here

    def handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Range] | None:
        ranges = [range_of(v) for v in values]
        for j in here.get(at, ()):
            met = [ranges[i] for i in sites[j].rule.varying(sites[j].call)]
            found[j] = join(met) if met else ANY
        name = eqn.primitive.name
        if name in INLINED:
            return None
        if name in CUSTOM:
            body, consts = inner_jaxpr(eqn)
            outs = [range_of(v) for v in interpret(body, consts, ranges, handle, at)]
        elif name == "cond":
            branches = [interpret(body, consts, ranges[1:], handle, (*at, b))
                        for b, (body, consts) in enumerate(cond_branches(eqn))]  # fmt: skip
            outs = [join([range_of(v) for v in each]) for each in zip(*branches, strict=True)]
        elif name == "scan":
            outs = _scan(eqn, ranges, handle, at)
        elif name == "optimization_barrier":
            outs = ranges
        else:
            return bounds_of(eqn, ranges)
        return [_within(r, v.aval) for r, v in zip(outs, eqn.outvars, strict=True)]

    outs = interpret(step.jaxpr, [], [*map(range_of, step.consts), *args], handle)
    return [range_of(v) for v in outs], found


def bounds_of(eqn: JaxprEqn, ranges: Sequence[Range]) -> list[Range]:
    """Ranges of the outputs of an equation, given those of its operands, by the record of its primitive."""
    bounds = record_of(eqn.primitive.name).bounds
    outs = [ANY] * len(eqn.outvars) if bounds is None else [bounds(eqn, ranges)]
    return [_within(r, v.aval) for r, v in zip(outs, eqn.outvars, strict=True)]


def _scan(eqn: JaxprEqn, ranges: list[Range], handle: Any, at: Site) -> list[Range]:
    """Nothing is known of what a loop carries."""
    parts = scan_parts(eqn)
    n = parts.num_consts
    args = [*ranges[:n], *[ANY] * parts.num_carry, *ranges[n + parts.num_carry :]]
    outs = interpret(parts.jaxpr, parts.consts, args, handle, at)
    return [*[ANY] * parts.num_carry, *map(range_of, outs[parts.num_carry :])]


def _within(found: Range, aval: Any) -> Range:
    """A range is never wider than its type; complex numbers have none."""
    own = _of_type(aval)
    if own == UNIT and not (found.lo >= 0 and found.hi <= 1):
        return UNIT
    if is_complex(aval) or np.isnan(found.lo) or np.isnan(found.hi):
        return own
    return Range(max(found.lo, own.lo), min(found.hi, own.hi)) if own != ANY else found
