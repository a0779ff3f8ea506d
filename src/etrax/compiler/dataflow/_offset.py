"""Constants added to a gradient: a program that is linear gives zero for zero.

A derivative rule of the model may return `ct + 0.1`. It is then affine, and no Jacobian stands for it. This analysis
follows what is zero when all sources are zero; a value that comes from a source and is not is a problem.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..._compat import Jaxpr, JaxprEqn, is_concrete, is_extended, is_inexact
from ..ir import Address, source_of_eqn
from ..primitives import Cause, record_of
from ._dependence import Problem
from ._solver import Domain, Note, Solver


class Mark(NamedTuple):
    """Whether a value is zero where all sources are, and the sources that it comes from."""

    zero: bool
    sources: frozenset[Hashable] = frozenset()


DATA = Mark(False)


def sum_of_marks(marks: Sequence[Mark]) -> Mark:
    """The mark of a sum."""
    return Mark(all(m.zero for m in marks), frozenset().union(*(m.sources for m in marks)))


def find_offsets(jaxpr: Jaxpr, consts: Sequence[object], sources: Mapping[int, Hashable]) -> list[Problem]:
    """The equations that add something else to what comes from a source."""
    solver = Solver(Offset())
    args = [Mark(True, frozenset({sources[i]})) if i in sources else DATA for i in range(len(jaxpr.invars))]
    solver.run(jaxpr, consts, args)
    return solver.notes


class Offset(Domain[Mark, Problem]):
    """Marks; what is noted are equations that add something else to what comes from a source."""

    def constant(self, value: object) -> Mark:
        return Mark(is_concrete(value) and not is_extended(value) and not np.any(np.asarray(value)))

    def join(self, a: Mark, b: Mark) -> Mark:
        return sum_of_marks([a, b])

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Mark], note: Note[Problem]) -> list[Mark]:
        sources = frozenset().union(*(m.sources for m in values))
        vanishes = record_of(eqn.primitive.name).zero
        # What has no such rule is not linear or not known, and has been noted for that.
        zero = bool(sources) if vanishes is None else vanishes(eqn, [m.zero for m in values])
        gradient = any(is_inexact(v.aval) for v in eqn.outvars)
        if sources and not zero and gradient and all(m.zero for m in values if m.sources):
            note(_problem(eqn, sources))
        return [Mark(zero, sources) for _ in eqn.outvars]

    def leave(
        self, at: Address, eqn: JaxprEqn, values: list[Mark], outs: list[Mark], note: Note[Problem]
    ) -> list[Mark]:
        """Where paths meet, one that comes from a source must not meet one that is not zero."""
        if eqn.primitive.name in ("cond", "scan", "while"):
            for mark in outs:
                if mark.sources and not mark.zero:
                    note(_problem(eqn, mark.sources))
        return outs


def _problem(eqn: JaxprEqn, sources: frozenset[Hashable]) -> Problem:
    cause = Cause(eqn.primitive.name, source_of_eqn(eqn))
    return Problem(cause, "adds something else to a gradient", sources)
