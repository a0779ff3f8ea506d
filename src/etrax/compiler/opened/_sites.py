"""Find the weight ops: equations that join a value made of parameters only with one that depends on data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._compat import INLINED, Jaxpr, JaxprEqn, cond_branches, is_inexact, scan_parts
from ..dataflow import is_linear_backwards
from ..ir import Role, Site, Source, Step, interpret, source_of_eqn
from ..ops import ALIGNED, OpCall, OpRule, call_of, rule_for
from ..primitives import Cause, record_of

# Inner scans around an equation, outermost first: address and length.
Loops: TypeAlias = tuple[tuple[Site, int], ...]


@dataclass(frozen=True)
class WeightSite:
    """One operand of one equation that is made of parameters only.

    `at` addresses the equation (see `interpret`); an address past the last equation means the step's output of that
    number, which is then a function of parameters alone. `loops` are the inner scans around it, each with its length:
    its data and output have these leading axes. `sliced` says, loop by loop, whether the weight is another one in each
    iteration (the scan slices it, or it is made of a counter): it then has that leading axis too. `rounded` is
    where the way from parameters to the weight rounds gradients, once for a sequence instead of at each step.
    """

    at: Site
    operand: int
    call: OpCall
    rule: OpRule
    params: frozenset[int]
    source: Source | None
    loops: Loops = ()
    sliced: tuple[bool, ...] = ()
    reads_hidden: bool = False
    rounded: Cause | None = None

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (*(n for _, n in self.loops), *self.call.out.shape)

    @property
    def y_struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.y_shape, self.call.out.dtype)

    @property
    def slices(self) -> tuple[int, ...]:
        """Lengths of the loops in which the weight is another one in each iteration."""
        return tuple(n for (_, n), own in zip(self.loops, self.sliced, strict=True) if own)

    def is_sliced_by(self, loop: Site) -> bool:
        return any(where == loop and own for (where, _), own in zip(self.loops, self.sliced, strict=True))

    def beside_loops(self, shape: Sequence[int]) -> tuple[int, ...]:
        """(slices…, rest…) as a shape beside (loops…, rest…): ones for loops that use one and the same weight."""
        n = len(self.slices)
        own = iter(shape[:n])
        return (*(next(own) if sliced else 1 for sliced in self.sliced), *shape[n:])

    def one_place(self, place: np.ndarray) -> np.ndarray | None:
        """Places of y's elements without the axes of loops that use one and the same weight; None if they change it."""
        place = place.reshape(self.y_shape)
        first = place[tuple(slice(None) if own else slice(0, 1) for own in self.sliced)]
        return first.reshape((*self.slices, *self.call.out.shape)) if bool((place == first).all()) else None

    @cached_property
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
    """What a value is made of: parameters (by leaf number), data, hidden states.

    A value that is not data can still change inside a loop: `along` are the loops in whose iterations it does.
    `rounded` is where the gradient of a weight is rounded on its way to the parameters.
    """

    params: frozenset[int] = frozenset()
    data: bool = False
    hidden: bool = False
    along: frozenset[Site] = frozenset()
    rounded: Cause | None = None

    @property
    def weight(self) -> bool:
        return bool(self.params) and not self.data


_CONST = _Origin()


def _merge(origins: Sequence[_Origin]) -> _Origin:
    made = [o for o in origins if o is not _CONST]
    if all(o is made[0] for o in made[1:]):  # most equations read values of one origin, and constants
        return made[0] if made else _CONST
    return _Origin(
        frozenset().union(*(o.params for o in origins)),
        any(o.data for o in origins),
        any(o.hidden for o in origins),
        frozenset().union(*(o.along for o in origins)),
        next((o.rounded for o in origins if o.rounded), None),
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
        if not merged.params or (merged.weight and is_linear_backwards(eqn)):
            merged = replace(merged, rounded=merged.rounded or _rounds(eqn, merged))
            return [self._output(merged, eqn, v) for v in eqn.outvars]
        enter = {"scan": self._scan, "cond": self._cond}.get(eqn.primitive.name)
        if enter is not None and any(o.weight for o in origins):
            kept = len(self.sites)
            outs = enter(at, eqn, origins, loops)
            if outs is not None:
                return outs
            # A weight takes the place of data inside a body: the trace is that of the operand of the whole equation.
            del self.sites[kept:]
        for i, origin in enumerate(origins):
            if origin.weight and _has_gradient(eqn.invars[i].aval) and any(_has_gradient(v.aval) for v in eqn.outvars):
                self.sites.append(_site(at, eqn, i, origins, loops))
        return [_as_data(merged) for _ in eqn.outvars]

    def _output(self, merged: _Origin, eqn: JaxprEqn, var: Any) -> _Origin:
        if merged.weight and (not _has_gradient(var.aval) or eqn.primitive.name == "stop_gradient"):
            return replace(merged, params=frozenset())
        return merged

    def _cond(self, at: Site, eqn: JaxprEqn, origins: list[_Origin], loops: Loops) -> list[_Origin] | None:
        branches = [self.walk(body, origins[1:], (*at, b), loops) for b, (body, _) in enumerate(cond_branches(eqn))]
        if any(o.weight for found in branches for o in found):
            return None
        outs = [_merge([origins[0], *found]) for found in zip(*branches, strict=True)]
        return [_as_data(o) for o in outs]

    def _scan(self, at: Site, eqn: JaxprEqn, origins: list[_Origin], loops: Loops) -> list[_Origin] | None:
        scan = scan_parts(eqn)
        n, m = scan.num_consts, scan.num_consts + scan.num_carry
        passed = [scan.jaxpr.outvars[k] is scan.jaxpr.invars[n + k] for k in range(scan.num_carry)]
        carry = [o if same else _varying(o, at) for o, same in zip(origins[n:m], passed, strict=True)]
        slices = [_varying(o, at) for o in origins[m:]]
        first = len(self.sites)
        while True:
            outs = self.walk(scan.jaxpr, [*origins[:n], *carry, *slices], at, (*loops, (at, scan.length)))
            ends = outs[: scan.num_carry]
            new = [a if same else _merged_carry(a, b) for a, b, same in zip(carry, ends, passed, strict=True)]
            if new == carry:
                break
            del self.sites[first:]
            carry = new
        if any(end.weight and not o.weight for end, o in zip(ends, carry, strict=True)):
            return None  # a weight takes the place of data inside the body
        # A weight with which a loop over data begins meets the data there.
        begins = [n + k for k, o in enumerate(carry) if origins[n + k].weight and not o.weight]
        begins = [i for i in begins if _has_gradient(eqn.invars[i].aval)]
        self.sites[first:first] = [_site(at, eqn, i, origins, loops) for i in begins]
        found = [replace(o, along=o.along - {at}) for o in (*carry, *outs[scan.num_carry :])]
        return [o if o.weight or not o.data else _as_data(o) for o in found]


def _as_data(origin: _Origin) -> _Origin:
    """What a weight op gives."""
    return replace(origin, params=frozenset(), along=frozenset(), data=True, rounded=None)


def _varying(origin: _Origin, loop: Site) -> _Origin:
    """What a loop slices, or carries and changes."""
    return origin if origin.data else replace(origin, along=origin.along | {loop})


def _merged_carry(begin: _Origin, end: _Origin) -> _Origin:
    """A carry that is a weight at one end of an iteration and data at the other is data that weights have made."""
    both = _merge([begin, end])
    return _as_data(both) if both.data and both.params else both


def _site(at: Site, eqn: JaxprEqn, operand: int, origins: list[_Origin], loops: Loops) -> WeightSite:
    call = call_of(eqn, operand)
    rule = rule_for(call)
    several = any(is_inexact(v.aval) for v in eqn.outvars[1:])  # a family knows the first output only
    if several or any(origins[i] != _CONST for i in rule.fixed_operands):
        rule = ALIGNED
    if rule is ALIGNED and not record_of(eqn.primitive.name).elementwise:
        call = replace(call, out=call.w)  # the weight itself is traced, at its own shape
    call = rule.with_rows_last(call)
    hidden = any(o.hidden for i, o in enumerate(origins) if i != operand and is_inexact(eqn.invars[i].aval))
    weight = origins[operand]
    source = source_of_eqn(eqn)
    sliced = tuple(loop in weight.along for loop, _ in loops)
    return WeightSite(at, operand, call, rule, weight.params, source, loops, sliced, hidden, weight.rounded)


def _rounds(eqn: JaxprEqn, origin: _Origin) -> Cause | None:
    """Where an equation between parameters and a weight rounds gradients on their way back."""
    rounds = origin.weight and eqn.primitive.name == "reduce_precision"
    return Cause(eqn.primitive.name, source_of_eqn(eqn)) if rounds else None
