"""What the values of a step are made of: which groups of states meet in a product, and which rescale another.

Told by names and primitives, not by derivatives: it decides which traces are better left out, never what is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from ..._compat import CUSTOM, Jaxpr, JaxprEqn, Literal, Var
from ..dataflow import Domain, Note, Solver
from ..ir import Address
from ..primitives import record_of
from ._facts import Facts

# The groups that a value is made of.
Origins: TypeAlias = frozenset[int]
Pair: TypeAlias = tuple[int, int]
_NONE: Origins = frozenset()


class _Origins(Domain[Origins, Pair]):
    """Notes pairs of groups, which `factors` makes of what the two factors of a product are made of.

    `new` are the origins that the new states of the step have, beside or instead of what they are computed from.
    """

    def __init__(
        self, new: Mapping[Var, Origins], instead: bool, factors: Callable[[Origins, Origins], Iterable[Pair]]
    ):
        self.new, self.instead, self.factors = new, instead, factors

    def constant(self, value: object) -> Origins:
        return _NONE

    def join(self, a: Origins, b: Origins) -> Origins:
        return a | b

    def enters(self, at: Address, eqn: JaxprEqn, values: list[Origins]) -> bool:
        return eqn.primitive.name in ("cond", "scan", *CUSTOM)

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Origins], note: Note[Pair]) -> list[Origins]:
        if record_of(eqn.primitive.name).product:
            for pair in self.factors(values[0], values[1]):
                note(pair)
        return self.leave(at, eqn, values, [_NONE.union(*values)] * len(eqn.outvars), note)

    def leave(
        self, at: Address, eqn: JaxprEqn, values: list[Origins], outs: list[Origins], note: Note[Pair]
    ) -> list[Origins]:
        if self.instead:
            return [self.new.get(v, o) for v, o in zip(eqn.outvars, outs, strict=True)]
        return [o | self.new.get(v, _NONE) for v, o in zip(eqn.outvars, outs, strict=True)]


def _solved(facts: Facts, domain: _Origins) -> tuple[list[Origins], set[Pair]]:
    step, solver = facts.step, Solver(domain)
    groups = {step.first_state + i: frozenset((g,)) for i, g in facts.group_of_leaf.items()}
    leaves = [groups.get(k, _NONE) for k in range(len(step.ins))]
    outs = solver.run(step.jaxpr, (), [*(_NONE for _ in step.consts), *leaves])
    return outs, set(solver.notes)


def factors_of(facts: Facts) -> tuple[list[Origins], set[frozenset[int]]]:
    """For each group, the groups of which a step makes its new states; and pairs of groups that meet as factors.

    A pair does not count where each factor is made of both: x · σ(x) is no product of what x is made of.
    """
    outvars = facts.step.jaxpr.outvars
    new = {outvars[i]: frozenset((g,)) for i, g in facts.group_of_leaf.items() if not isinstance(outvars[i], Literal)}

    def factors(a: Origins, b: Origins) -> Iterable[Pair]:
        return ((i, j) for i in a for j in b if i != j and (j not in a or i not in b))

    outs, pairs = _solved(facts, _Origins(new, False, factors))
    return [_NONE.union(*(outs[i] for i in g.leaves)) for g in facts.groups], set(map(frozenset, pairs))


def rescaled_groups(facts: Facts) -> set[Pair]:
    """Pairs (M, C) of groups: a step multiplies what C was with something made of both the old and the new M.

    In exp(m - m')·c, and in c·m / m', C is taken from the units of the old M to those of the new one.
    """
    jaxpr, count = facts.step.jaxpr, len(facts.groups)
    # The number of a group stands for its old states, and that number less `count` for its new ones.
    new: dict[Var, Origins] = {}
    for i, g in facts.group_of_leaf.items():
        new.update(dict.fromkeys(_copies(jaxpr, jaxpr.outvars[i]), frozenset((g - count,))))

    def factors(a: Origins, b: Origins) -> Iterable[Pair]:
        both = {g for g in a | b if g >= 0 and g - count in a | b}
        return ((m, c) for m in both for c in a | b if c >= 0 and c != m and a and b)

    return _solved(facts, _Origins(new, True, factors))[1]


def _copies(jaxpr: Jaxpr, var: Var) -> list[Var]:
    """A variable, and those that it is a reshaped copy of: a new state as the step computes it and as it returns it."""
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    copies = []
    while not isinstance(var, Literal) and var in makers:
        copies.append(var)
        if not record_of(makers[var].primitive.name).reshapes:
            break
        var = makers[var].invars[0]
    return copies
