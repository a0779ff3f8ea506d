"""Which data keep their sign, and which slopes are finite: two questions about the bounds of values.

A step is steep if a slope of it may be infinite, or no number, at values that are finite. The root of a state that is
zero has such a slope. It meets influences: traces, and gradients of later losses. Where an influence is exactly zero
the product has to be zero, and 0 · ∞ is not. The runtime masks such products in a steep step, and in no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from ..._compat import JaxprEqn, is_complex, is_inexact, open_jaxpr, without_dead_code
from ..dataflow import Bounded, Bounds, Note, Solver, range_of_type
from ..ir import Address, Leaf, Role, Step
from ..opened import Addresses, Rows, WeightSite
from ..primitives import ANY, POSITIVE, Range, anywhere, join, record_of
from ._memo import memoised

if TYPE_CHECKING:
    from ._facts import Facts


def data_ranges(step: Step, sites: Sequence[WeightSite], positive_inputs: bool) -> dict[int, Range]:
    """Per site, the range of the data that its weight meets; `positive_inputs` takes the step's inputs to be ≥ 0.

    A state counts as ≥ 0 if the step leaves it so whenever all such states and inputs are: the largest such set.
    """
    positive = {k for k, leaf in enumerate(step.ins) if leaf.role in (Role.HIDDEN, Role.OTHER)}
    first, domain = min(positive, default=0), _DataBounds(sites)
    constants = [domain.constant(c) for c in step.consts]
    while True:
        solver = Solver(domain)
        leaves = [
            Bounded(_of_leaf(leaf, k in positive or (positive_inputs and leaf.role is Role.INPUT)))
            for k, leaf in enumerate(step.ins)
        ]
        outs = solver.run(step.jaxpr, (), [*constants, *leaves])
        broken = {k for k in positive if outs[k - first].range.lo < 0}
        if not broken:
            return dict(solver.notes)
        positive -= broken


def _of_leaf(leaf: Leaf, positive: bool) -> Range:
    return POSITIVE if positive and not is_complex(leaf.aval) else range_of_type(leaf.aval)


class _DataBounds(Bounds[tuple[int, Range]]):
    """Notes, for every weight op, the range of its data."""

    def __init__(self, sites: Sequence[WeightSite]):
        self.sites, self.here = sites, Addresses(sites).here

    def transfer(
        self, at: Address, eqn: JaxprEqn, values: list[Bounded], note: Note[tuple[int, Range]]
    ) -> list[Bounded]:
        self._note_data(at, values, note)
        return super().transfer(at, eqn, values, note)

    def leave(
        self, at: Address, eqn: JaxprEqn, values: list[Bounded], outs: list[Bounded], note: Note[tuple[int, Range]]
    ) -> list[Bounded]:
        self._note_data(at, values, note)
        return super().leave(at, eqn, values, outs, note)

    def _note_data(self, at: Address, values: list[Bounded], note: Note[tuple[int, Range]]) -> None:
        for j in self.here.get(at, ()):
            data = [values[i].range for i in self.sites[j].rule.varying(self.sites[j].call)]
            note((j, join(data) if data else ANY))


@memoised
def is_steep(facts: Facts) -> bool:
    """Whether a derivative of the step may be infinite where states, inputs and parameters are finite.

    Read off the derivative of the step by the states that a parameter reaches: slopes are what cotangents are
    multiplied by.
    """
    step = facts.step
    reached = (i for i, leaf in enumerate(facts.states) if i not in facts.unreached and is_inexact(leaf.aval))
    moving = [step.first_state + i for i in reached]
    if not moving:
        return False
    numbers = [n for n, v in enumerate(step.jaxpr.outvars) if is_inexact(v.aval)]

    def pull(leaves: list[Array], cotangents: list[Array]) -> list[Array]:
        def run(some: list[Array]) -> list[Array]:
            values = dict(enumerate(leaves)) | dict(zip(moving, some, strict=True))
            outs = step.run(list(values.values()))
            return [outs[n] for n in numbers]

        return jax.vjp(run, [leaves[k] for k in moving])[1](cotangents)[0]

    cotangents = [step.jaxpr.outvars[n].aval for n in numbers]
    closed = jax.make_jaxpr(pull)([leaf.aval for leaf in step.ins], cotangents)
    return _may_be_infinite(closed, [*(leaf.role is Role.PARAM for leaf in step.ins), *(False for _ in cotangents)])


def is_steep_by_row(rows: Rows) -> bool:
    """Whether a function of rows may have an infinite slope at a row that nobody reads, where its gradient is zero."""
    pull, (row, free, bars) = rows.pull_back()
    fixed = [False] * len(row) + [True] * len(free) + [False] * len(bars)
    return _may_be_infinite(jax.make_jaxpr(pull)(row, free, bars), fixed)


def _may_be_infinite(closed: Any, fixed: Sequence[bool]) -> bool:
    """Whether a program may make an infinity of finite numbers, given which of these are made of parameters only."""
    jaxpr, consts = open_jaxpr(closed)
    solver = Solver(_Infinities())
    solver.run(without_dead_code(jaxpr), consts, [Bounded(ANY, f) for f in fixed])
    return bool(solver.notes)


class _Infinities(Bounds[JaxprEqn]):
    """Notes equations that may give an infinity for finite operands.

    Made of parameters and constants alone, it is no matter of the states; and where the operand cannot be at a pole (a
    variance and a small number, 1 + exp), it is not made. What has no record may have poles anywhere.
    """

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Bounded], note: Note[JaxprEqn]) -> list[Bounded]:
        record = record_of(eqn.primitive.name)
        unknown = record.pattern is None and record.bounds is None
        poles = anywhere if unknown else record.poles
        for operand, pole in poles(eqn).items() if poles else ():
            value = values[operand]
            if not value.fixed and (isnan(pole) or value.range.lo <= pole <= value.range.hi):
                note(eqn)
        return super().transfer(at, eqn, values, note)
