"""Find the weight ops: equations that join a value made of parameters only with one that depends on data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .._compat import INLINED, Jaxpr, JaxprEqn, cond_branches, is_inexact, scan_parts
from ..ir import Role, Site, Source, Step, interpret, source_of_eqn
from ..ops import ALIGNED, OpCall, OpRule, rule_for
from ..ops._base import call_of

# Inner scans around an equation, outermost first: address and length.
Loops: TypeAlias = tuple[tuple[Site, int], ...]


@dataclass(frozen=True)
class WeightSite:
    """One operand of one equation that is made of parameters only.

    `at` addresses the equation (see `interpret`); an address past the last equation means the step's output of that
    number, which is then a function of parameters alone. `loops` are the inner scans around it, each with its length:
    its data and output have these leading axes. `scanned` says that such a scan slices the weight as well. The data of
    a site `from_inputs` are made of the step's inputs and constants alone, and it runs at every step; of data that were
    concatenated along the axis that the op contracts, `parts_from_inputs` are such: ranges of that axis.
    """

    at: Site
    operand: int
    call: OpCall
    rule: OpRule
    params: frozenset[int]
    source: Source | None
    loops: Loops = ()
    scanned: bool = False
    reads_hidden: bool = False
    from_inputs: bool = False
    parts_from_inputs: tuple[tuple[int, int], ...] = ()

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (*(n for _, n in self.loops), *self.call.out.shape)

    @property
    def label(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"`{self.call.primitive}`{where}"


class Addresses:
    """Sites by the address of their equation: those at it, and those inside it."""

    def __init__(self, sites: Sequence[WeightSite]):
        self.here: dict[Site, list[int]] = {}
        self.below: dict[Site, list[int]] = {}
        for j, s in enumerate(sites):
            self.here.setdefault(s.at, []).append(j)
            for n in range(1, len(s.at)):
                self.below.setdefault(s.at[:n], []).append(j)


@dataclass(frozen=True)
class _Origin:
    """What a value is made of: parameters (by leaf number), data, hidden states, what weight ops gave.

    `joined` is the axis of a concatenation, and the ranges of it that came from outside: inputs alone.
    """

    params: frozenset[int] = frozenset()
    data: bool = False
    hidden: bool = False
    scanned: bool = False
    learned: bool = False
    joined: tuple[int, tuple[tuple[int, int], ...]] | None = None

    @property
    def outside(self) -> bool:
        return self.data and not (self.hidden or self.learned or self.params)

    @property
    def weight(self) -> bool:
        return bool(self.params) and not self.data


_CONST = _Origin()


def _merge(origins: Sequence[_Origin]) -> _Origin:
    return _Origin(
        frozenset().union(*(o.params for o in origins)),
        any(o.data for o in origins),
        any(o.hidden for o in origins),
        any(o.scanned for o in origins),
        any(o.learned for o in origins),
    )


def _has_gradient(aval: Any) -> bool:
    """Whole numbers have none, and an array without elements has nothing to have one of."""
    return is_inexact(aval) and bool(aval.size)


def find_sites(step: Step) -> tuple[WeightSite, ...]:
    """All weight ops of a step, in program order."""
    finder = _Finder()
    number = {id(leaf): i for i, leaf in enumerate(step.select(Role.PARAM))}
    args: list[_Origin] = [_CONST] * len(step.consts)
    for leaf in step.ins:
        if leaf.role is Role.PARAM:
            args.append(_Origin(frozenset({number[id(leaf)]})) if _has_gradient(leaf.aval) else _CONST)
        else:
            args.append(_Origin(data=True, hidden=leaf.role in (Role.HIDDEN, Role.OTHER)))
    outs = finder.walk(step.jaxpr, args, (), ())
    for k, (origin, leaf) in enumerate(zip(outs, step.outs, strict=True)):
        if origin.weight and _has_gradient(leaf.aval):
            call = OpCall("output", {}, 0, (leaf.aval,), leaf.aval)
            finder.sites.append(WeightSite((len(step.jaxpr.eqns) + k,), 0, call, ALIGNED, origin.params, None))
    return tuple(finder.sites)


class _Finder:
    """Collects sites while origins flow through the step."""

    def __init__(self) -> None:
        self.sites: list[WeightSite] = []
        self.branches = 0  # how many are open: what is in them may not run

    def walk(self, jaxpr: Jaxpr, args: Sequence[_Origin], at: Site, loops: Loops) -> list[_Origin]:
        def handle(site: Site, eqn: JaxprEqn, values: list[Any]) -> list[_Origin] | None:
            if eqn.primitive.name in INLINED:
                return None
            origins = [v if isinstance(v, _Origin) else _CONST for v in values]
            return self.equation(site, eqn, origins, loops)

        outs = interpret(jaxpr, [_CONST] * len(jaxpr.constvars), args, handle, at)
        return [o if isinstance(o, _Origin) else _CONST for o in outs]

    def equation(self, at: Site, eqn: JaxprEqn, origins: list[_Origin], loops: Loops) -> list[_Origin]:
        merged = _merge(origins)
        if eqn.primitive.name == "concatenate" and not merged.params:
            return [replace(merged, joined=_joined(eqn, origins))]
        if merged.weight or not merged.params:
            return [self._output(merged, eqn, v) for v in eqn.outvars]
        enter = {"scan": self._scan, "cond": self._cond}.get(eqn.primitive.name)
        # A weight that an outer loop slices is not followed into an inner one.
        if enter is not None and any(o.weight for o in origins) and not any(o.weight and o.scanned for o in origins):
            kept = len(self.sites)
            outs = enter(at, eqn, origins, loops)
            if outs is not None:
                return outs
            del self.sites[kept:]  # a weight leaves the body or is changed in it: its trace is kept at the body's door
        for i, origin in enumerate(origins):
            if origin.weight and _has_gradient(eqn.invars[i].aval) and any(_has_gradient(v.aval) for v in eqn.outvars):
                site = _site(at, eqn, i, origins, loops)
                rare = self.branches > 0
                self.sites.append(replace(site, from_inputs=False, parts_from_inputs=()) if rare else site)
        data = replace(merged, params=frozenset(), scanned=False, learned=True)
        return [data for _ in eqn.outvars]

    def _output(self, merged: _Origin, eqn: JaxprEqn, var: Any) -> _Origin:
        if merged.weight and (not _has_gradient(var.aval) or eqn.primitive.name == "stop_gradient"):
            return replace(merged, params=frozenset())
        return merged

    def _cond(self, at: Site, eqn: JaxprEqn, origins: list[_Origin], loops: Loops) -> list[_Origin] | None:
        self.branches += 1
        branches = [self.walk(body, origins[1:], (*at, b), loops) for b, (body, _) in enumerate(cond_branches(eqn))]
        self.branches -= 1
        if any(o.weight for found in branches for o in found):
            return None
        outs = [_merge([origins[0], *found]) for found in zip(*branches, strict=True)]
        return [replace(o, params=frozenset(), learned=True) for o in outs]

    def _scan(self, at: Site, eqn: JaxprEqn, origins: list[_Origin], loops: Loops) -> list[_Origin] | None:
        scan = scan_parts(eqn)
        n, m = scan.num_consts, scan.num_consts + scan.num_carry
        passed = [scan.jaxpr.outvars[k] is scan.jaxpr.invars[n + k] for k in range(scan.num_carry)]
        carry, kept = origins[n:m], len(self.sites)
        if any(o.weight and not same for o, same in zip(carry, passed, strict=True)):
            return None
        scanned = [replace(o, scanned=o.weight) for o in origins[m:]]
        while True:
            outs = self.walk(scan.jaxpr, [*origins[:n], *carry, *scanned], at, (*loops, (at, scan.length)))
            new = [a if same else _merge([a, b]) for a, b, same in zip(carry, outs, passed, strict=False)]
            if new == carry:
                break
            del self.sites[kept:]
            carry = new
        if any(o.weight and not (k < len(passed) and passed[k]) for k, o in enumerate(outs)):
            return None
        ends = [*carry, *outs[scan.num_carry :]]
        return [o if o.weight else replace(o, params=frozenset(), learned=True) for o in ends]


def _site(at: Site, eqn: JaxprEqn, operand: int, origins: list[_Origin], loops: Loops) -> WeightSite:
    call = call_of(eqn, operand)
    rule = rule_for(call)
    several = any(is_inexact(v.aval) for v in eqn.outvars[1:])  # a family knows the first output only
    if several or any(origins[i] != _CONST for i in rule.fixed_operands):
        rule = ALIGNED
    if rule is ALIGNED and eqn.primitive.name not in _ELEMENTWISE:
        call = replace(call, out=call.w)  # the weight itself is traced, at its own shape
    call = rule.laid_out(call)
    hidden = any(o.hidden for i, o in enumerate(origins) if i != operand and is_inexact(eqn.invars[i].aval))
    others = [o for i, o in enumerate(origins) if i != operand]
    outside = any(o.outside for o in others) and all(o.outside or o == _CONST for o in others)
    axis = rule.contracted(call)
    parts = tuple(ranges for o in others if o.joined is not None and o.joined[0] == axis for ranges in o.joined[1])
    weight = origins[operand]
    source = source_of_eqn(eqn)
    return WeightSite(at, operand, call, rule, weight.params, source, loops, weight.scanned, hidden, outside, parts)


def _joined(eqn: JaxprEqn, origins: Sequence[_Origin]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The axis of a concatenation, and which of it came from outside."""
    axis, at, found = eqn.params["dimension"], 0, []
    for v, o in zip(eqn.invars, origins, strict=True):
        n = v.aval.shape[axis]
        if o.outside:
            found.append((at, at + n))
        at += n
    return axis, tuple(found)


# Equations that spread a smaller operand over the shape of their output.
_ELEMENTWISE = frozenset(
    {"add", "add_any", "sub", "mul", "div", "max", "min", "pow", "atan2", "rem", "complex", "clamp", "nextafter"}
)
