"""States that are functions of other new states of their group, and of nothing else: z' = g(v', a').

A spike flag z' = Θ(v' − a') is one. Its trace follows from theirs, ε_z = ∂g/∂v ε_v + ∂g/∂a ε_a, so that it needs none
of its own. Found by following equations back from z' to the outputs v' and a'; a way to an old state, an input or a
parameter rules it out. So does a slope without bound (log v', 1 / v'): before the first step z need not be made of v,
and a slope that is infinite at the values that a sequence starts from would meet a trace of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax import Array

from ..._compat import CUSTOM, Jaxpr, JaxprEqn, Literal, Var, bodies_of, build_jaxpr, is_inexact
from ..ir import interpret
from ..primitives import record_of
from ._facts import Facts
from ._memo import memoised
from ._nodes import StateNode
from ._positions import Group
from ._tags import Tag


@dataclass(frozen=True, eq=False)
class Derived:
    """Leaves of a group that follow from the others; `jaxpr` takes the step's constants, then the `kept` leaves.

    `sources` are the kept leaves that each one is made of.
    """

    gone: tuple[int, ...]
    kept: tuple[int, ...]
    sources: Mapping[int, frozenset[int]]
    jaxpr: Jaxpr
    consts: tuple[Array, ...]

    def __call__(self, values: Mapping[int, Array]) -> dict[int, Array]:
        """The derived states at given values of the others."""
        args = [*self.consts, *(values[i] for i in self.kept)]
        return dict(zip(self.gone, interpret(self.jaxpr, [], args, lambda *_: None), strict=True))


@memoised
def derived_states(facts: Facts) -> dict[int, Derived]:
    """The states of each group that follow from its other states; a group without any is missing."""
    if facts.nonlinear:
        return {}
    by_group = {g.index: _of_group(facts, g) for g in facts.groups if facts.tags[g.index] in (Tag.DIAGONAL, Tag.BLOCK)}
    return {index: d for index, d in by_group.items() if d is not None}


def _of_group(facts: Facts, group: Group) -> Derived | None:
    jaxpr = facts.step.jaxpr
    # A state that nobody reads has no trace to follow from.
    live = [i for i in group.leaves if StateNode(i) in facts.live]
    outs = {i: jaxpr.outvars[i] for i in live if is_inexact(facts.states[i].aval)}
    made_by = {v: n for n, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    fixed = {v for v, _ in zip(jaxpr.invars, facts.step.consts, strict=False)}
    sources_left, gone = [i for i, v in outs.items() if not isinstance(v, Literal)], []
    for i in list(sources_left):
        others = [k for k in sources_left if k != i]
        if others and _slice(jaxpr.eqns, made_by, fixed, outs[i], {outs[k] for k in others}) is not None:
            sources_left, gone = others, [*gone, i]
    if not gone:
        return None
    slices = {i: _slice(jaxpr.eqns, made_by, fixed, outs[i], {outs[k] for k in sources_left}) or _NOTHING for i in gone}
    sources = {i: frozenset(k for k in sources_left if outs[k] in met) for i, (_, met) in slices.items()}
    eqns = [jaxpr.eqns[n] for n in sorted(set().union(*(used for used, _ in slices.values())))]
    body = build_jaxpr([*_consts(facts), *(outs[k] for k in sources_left)], [outs[i] for i in gone], eqns, jaxpr)
    return Derived(tuple(gone), tuple(sources_left), sources, body, tuple(facts.step.consts))


_NOTHING: tuple[set[int], set[Var]] = (set(), set())


def _consts(facts: Facts) -> Sequence[Var]:
    """The variables of the step's constants, which stand first."""
    return facts.step.jaxpr.invars[: len(facts.step.consts)]


def _slice(
    eqns: Sequence[JaxprEqn], made_by: Mapping[Var, int], fixed: set[Var], start: Var, stops: set[Var]
) -> tuple[set[int], set[Var]] | None:
    """Equations between a variable and `stops`, and the stops met; None if they read anything else, or met none."""
    used: set[int] = set()
    met: set[Var] = set()
    todo = [start]
    while todo:
        var = todo.pop()
        if isinstance(var, Literal) or var in fixed:
            continue
        if var in stops:
            met.add(var)
            continue
        if var not in made_by:
            return None
        n = made_by[var]
        if n not in used:
            used.add(n)
            if eqns[n].effects or _is_steep(eqns[n], fixed):
                return None
            todo += list(eqns[n].invars)
    return (used, met) if met else None


def _is_steep(eqn: JaxprEqn, fixed: set[Var]) -> bool:
    """Whether a slope of an equation may have no bound; a function with a derivative rule of its own has a safe one."""
    if eqn.primitive.name in CUSTOM:
        return False
    steep = record_of(eqn.primitive.name).steep
    operands = [eqn.invars[i] for i in steep(eqn)] if steep else []
    return any(not isinstance(v, Literal) and v not in fixed for v in operands) or any(
        _is_steep(inner, set()) for body in bodies_of(eqn) for inner in body.eqns
    )
