"""Find the weight ops: equations that join a value made of parameters only with one that depends on data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._compat import JaxprEqn, Var, is_inexact, scan_parts
from ..dataflow import Domain, Note, Solver, is_linear_backwards
from ..ir import Address, Role, Source, Step, source_of_eqn
from ..ops import ALIGNED, OpCall, OpRule, call_of, rule_for
from ..primitives import Cause, record_of

# Inner scans around an equation, outermost first: address and length.
Loops: TypeAlias = tuple[tuple[Address, int], ...]


@dataclass(frozen=True)
class WeightSite:
    """One operand of one equation that is made of parameters only.

    `at` addresses the equation (see `interpret`); an address past the last equation means the step's output of that
    number, which is then a function of parameters alone. `loops` are the inner scans around it, each with its length:
    its data and output have these leading axes. `sliced` says, loop by loop, whether the weight is another one in each
    iteration (the scan slices it, or it is made of a counter): it then has that leading axis too. `reads_moving` says
    that its data are made of hidden states or of what weight ops give, so that gradients pass it. `rounded` is
    where the way from parameters to the weight rounds gradients, once for a sequence instead of at each step.
    """

    at: Address
    operand: int
    call: OpCall
    rule: OpRule
    params: frozenset[int]
    source: Source | None
    loops: Loops = ()
    sliced: tuple[bool, ...] = ()
    reads_hidden: bool = False
    reads_moving: bool = False
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
        return tuple(n for (_, n), sliced in zip(self.loops, self.sliced, strict=True) if sliced)

    def is_sliced_by(self, loop: Address) -> bool:
        return any(where == loop and sliced for (where, _), sliced in zip(self.loops, self.sliced, strict=True))

    def beside_loops(self, shape: Sequence[int]) -> tuple[int, ...]:
        """(slices…, rest…) as a shape beside (loops…, rest…): ones for loops that use one and the same weight."""
        n = len(self.slices)
        lengths = iter(shape[:n])
        return (*(next(lengths) if sliced else 1 for sliced in self.sliced), *shape[n:])

    def one_place(self, place: np.ndarray) -> np.ndarray | None:
        """Places of y's elements without the axes of loops that use one and the same weight; None if they change it."""
        place = place.reshape(self.y_shape)
        first = place[tuple(slice(None) if sliced else slice(0, 1) for sliced in self.sliced)]
        return first.reshape((*self.slices, *self.call.out.shape)) if bool((place == first).all()) else None

    @cached_property
    def label(self) -> str:
        where = f" at {self.source}" if self.source else ""
        return f"`{self.call.primitive}`{where}"


class Addresses:
    """Sites by the address of their equation: those at it, and those inside it."""

    def __init__(self, sites: Sequence[WeightSite]):
        self.here: dict[Address, list[int]] = {}
        self.below: dict[Address, list[int]] = {}
        for j, s in enumerate(sites):
            self.here.setdefault(s.at, []).append(j)
            for n in range(1, len(s.at)):
                self.below.setdefault(s.at[:n], []).append(j)


@dataclass(frozen=True)
class _Origin:
    """What a value is made of: parameters (by leaf number), data, hidden states.

    It is `moving` if it is made of hidden states or of what weight ops give: a derivative by a parameter is not zero.
    A value that is not data can still change inside a loop: `along` are the loops in whose iterations it does.
    `rounded` is where the gradient of a weight is rounded on its way to the parameters.
    """

    params: frozenset[int] = frozenset()
    data: bool = False
    hidden: bool = False
    moving: bool = False
    along: frozenset[Address] = frozenset()
    rounded: Cause | None = None

    @property
    def weight(self) -> bool:
        return bool(self.params) and not self.data


_CONST = _Origin()


def _merge(origins: Sequence[_Origin]) -> _Origin:
    origins_of_data = [o for o in origins if o is not _CONST]
    if all(
        o is origins_of_data[0] for o in origins_of_data[1:]
    ):  # most equations read values of one origin, and constants
        return origins_of_data[0] if origins_of_data else _CONST
    return _Origin(
        frozenset().union(*(o.params for o in origins)),
        any(o.data for o in origins),
        any(o.hidden for o in origins),
        any(o.moving for o in origins),
        frozenset().union(*(o.along for o in origins)),
        next((o.rounded for o in origins if o.rounded), None),
    )


def _has_gradient(aval: Any) -> bool:
    """Whole numbers have none, and an array without elements has nothing to have one of."""
    return is_inexact(aval) and bool(aval.size)


def find_sites(step: Step) -> tuple[WeightSite, ...]:
    """All weight ops of a step, in program order."""
    solver = Solver(_Origins())
    number = {id(leaf): i for i, leaf in enumerate(step.select(Role.PARAM))}
    args: list[_Origin] = [_CONST] * len(step.consts)
    for leaf in step.ins:
        if leaf.role is Role.PARAM:
            args.append(_Origin(frozenset({number[id(leaf)]})) if _has_gradient(leaf.aval) else _CONST)
        else:
            hidden = leaf.role in (Role.HIDDEN, Role.OTHER)
            args.append(_Origin(data=True, hidden=hidden, moving=hidden))
    outs = solver.run(step.jaxpr, (), args)
    sites = solver.notes
    for k, (origin, leaf) in enumerate(zip(outs, step.outs, strict=True)):
        if origin.weight and _has_gradient(leaf.aval):
            call = OpCall("output", {}, 0, (leaf.aval,), leaf.aval)
            # An address past the last equation stands for an output of the step.
            sites.append(WeightSite((len(step.jaxpr.eqns) + k,), 0, call, ALIGNED, origin.params, None))
    # A weight with which a loop begins is noted behind the sites inside the loop; its address comes before theirs.
    return tuple(sorted(sites, key=lambda site: site.at))


class _Origins(Domain[_Origin, WeightSite]):
    """What values are made of; what is noted are the sites, where a weight meets data."""

    def __init__(self) -> None:
        self.lengths: dict[Address, int] = {}  # of the scans that were entered, by address

    def constant(self, value: object) -> _Origin:
        return _CONST

    def join(self, a: _Origin, b: _Origin) -> _Origin:
        """A weight and data together have parameters and are data: `leave` and `widen` say what becomes of them."""
        return _merge([a, b])

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[_Origin], note: Note[WeightSite]) -> list[_Origin]:
        merged = _merge(values)
        if _is_one(eqn, merged):
            merged = replace(merged, rounded=merged.rounded or _rounds(eqn, merged))
            return [_output(merged, eqn, v) for v in eqn.outvars]
        if any(_has_gradient(v.aval) for v in eqn.outvars):
            for i, origin in enumerate(values):
                if origin.weight and _has_gradient(eqn.invars[i].aval):
                    note(self._site(at, eqn, i, values))
        return [_as_data(merged) for _ in eqn.outvars]

    def enters(self, at: Address, eqn: JaxprEqn, values: list[_Origin]) -> bool:
        name = eqn.primitive.name
        if name not in ("scan", "cond") or not any(o.weight for o in values) or _is_one(eqn, _merge(values)):
            return False
        if name == "scan":
            self.lengths[at] = scan_parts(eqn).length
        return True

    def carried(self, at: Address, value: _Origin) -> _Origin:
        return _varying(value, at)

    def widen(self, eqn: JaxprEqn, old: list[_Origin], new: list[_Origin], rounds: int) -> list[_Origin]:
        return list(map(_as_carry, new))

    def settled(self, old: list[_Origin], new: list[_Origin]) -> bool:
        return old == list(map(_as_carry, new))

    def sliced(self, at: Address, eqn: JaxprEqn, value: _Origin, i: int | None) -> _Origin:
        return _varying(value, at)

    def leave(
        self, at: Address, eqn: JaxprEqn, values: list[_Origin], outs: list[_Origin], note: Note[WeightSite]
    ) -> list[_Origin] | None:
        """None where a weight takes the place of data inside: its trace is then that of the operand."""
        if eqn.primitive.name == "cond":
            if any(o.params for o in outs):
                return None
            return [_as_data(_merge([values[0], o])) for o in outs]
        scan = scan_parts(eqn)
        # The operands of a scan are its constants, the carry and what it slices.
        start = values[scan.num_consts : scan.num_consts + scan.num_carry]
        ends = outs[: scan.num_carry]
        if any(end.weight and begin.data for begin, end in zip(start, ends, strict=True)):
            return None
        for k, (begin, end) in enumerate(zip(start, ends, strict=True), scan.num_consts):
            # A weight with which a loop over data begins meets the data there.
            if begin.weight and end.data and _has_gradient(eqn.invars[k].aval):
                note(self._site(at, eqn, k, values))
        outside = [replace(o, along=o.along - {at}) for o in outs]
        return [_as_data(o) if o.data else o for o in outside]

    def _site(self, at: Address, eqn: JaxprEqn, operand: int, origins: list[_Origin]) -> WeightSite:
        call = call_of(eqn, operand)
        rule = rule_for(call)
        several = any(is_inexact(v.aval) for v in eqn.outvars[1:])  # a family knows the first output only
        if several or any(origins[i] != _CONST for i in rule.fixed_operands):
            rule = ALIGNED
        if rule is ALIGNED and not record_of(eqn.primitive.name).elementwise:
            call = replace(call, out=call.w)  # the weight itself is traced, at its own shape
        call = rule.with_rows_last(call)
        others = [o for i, o in enumerate(origins) if i != operand and is_inexact(eqn.invars[i].aval)]
        hidden, moving = any(o.hidden for o in others), any(o.moving for o in others)
        around = (at[:n] for n in range(1, len(at)))
        loops = tuple((where, self.lengths[where]) for where in around if where in self.lengths)
        weight = origins[operand]
        sliced = tuple(loop in weight.along for loop, _ in loops)
        source = source_of_eqn(eqn)
        return WeightSite(at, operand, call, rule, weight.params, source, loops, sliced, hidden, moving, weight.rounded)


def _is_one(eqn: JaxprEqn, merged: _Origin) -> bool:
    """Whether an equation joins no weight with data: no parameter is in it, or nothing else and its rule is linear."""
    return not merged.params or (merged.weight and is_linear_backwards(eqn))


def _output(merged: _Origin, eqn: JaxprEqn, var: Var) -> _Origin:
    if merged.weight and (not _has_gradient(var.aval) or eqn.primitive.name == "stop_gradient"):
        return replace(merged, params=frozenset())
    return merged


def _as_data(origin: _Origin) -> _Origin:
    """What a weight op gives."""
    return replace(origin, params=frozenset(), along=frozenset(), data=True, moving=True, rounded=None)


def _as_carry(origin: _Origin) -> _Origin:
    """A carry that is a weight at one end of an iteration and data at the other is data that weights have made."""
    return _as_data(origin) if origin.data and origin.params else origin


def _varying(origin: _Origin, loop: Address) -> _Origin:
    """What a loop slices, or carries and changes."""
    return origin if origin.data else replace(origin, along=origin.along | {loop})


def _rounds(eqn: JaxprEqn, origin: _Origin) -> Cause | None:
    """Where an equation between parameters and a weight rounds gradients on their way back."""
    rounds = origin.weight and record_of(eqn.primitive.name).rounds
    return Cause(eqn.primitive.name, source_of_eqn(eqn)) if rounds else None
