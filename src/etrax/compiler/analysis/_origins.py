"""What the values of a step are made of: which groups of states meet in a product, and which rescale another.

Told by names and primitives, not by derivatives: it decides which traces are better left out, never what is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..._compat import CUSTOM, INLINED, Jaxpr, JaxprEqn, Literal, Var, cond_branches, inner_jaxpr, scan_parts
from ..ir import Site, interpret
from ..primitives import record_of
from ._facts import Facts

# The groups that a value is made of.
Origins: TypeAlias = frozenset[int]
_NONE: Origins = frozenset()


def factors_of(facts: Facts) -> tuple[list[Origins], set[frozenset[int]]]:
    """For each group, the groups of which a step makes its new states; and pairs of groups that meet as factors.

    A pair does not count where each factor is made of both: x · σ(x) is no product of what x is made of.
    """
    step, factors = facts.step, set()
    own = {i: frozenset((g,)) for i, g in facts.group_of_leaf.items()}
    new = {step.jaxpr.outvars[i]: origin for i, origin in own.items() if not isinstance(step.jaxpr.outvars[i], Literal)}

    def handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Origins]:
        operands = [v if isinstance(v, frozenset) else _NONE for v in values]
        if record_of(eqn.primitive.name).product:
            a, b = operands[:2]
            factors.update(frozenset((i, j)) for i in a for j in b if i != j and (j not in a or i not in b))
        return [o | new.get(v, _NONE) for v, o in zip(eqn.outvars, _outputs(eqn, operands, handle), strict=True)]

    values = [*step.consts, *(own.get(i - step.first_state, _NONE) for i in range(len(step.ins)))]
    outs = interpret(step.jaxpr, [], values, handle)
    return [_NONE.union(*(o for i in g.leaves if isinstance(o := outs[i], frozenset))) for g in facts.groups], factors


def rescaled_groups(facts: Facts) -> set[tuple[int, int]]:
    """Pairs (M, C) of groups: a step multiplies what C was with something made of both the old and the new M.

    In exp(m - m')·c, and in c·m / m', C is taken from the units of the old M to those of the new one.
    """
    step, count = facts.step, len(facts.groups)
    own = {i: frozenset((g,)) for i, g in facts.group_of_leaf.items()}
    # The number of a group stands for its old states, and that number less `count` for its new ones.
    new: dict[Var, Origins] = {}
    for i, (g,) in own.items():
        _name(new, step.jaxpr, step.jaxpr.outvars[i], frozenset((g - count,)))
    found: set[tuple[int, int]] = set()

    def handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Origins]:
        operands = [v if isinstance(v, frozenset) else _NONE for v in values]
        if record_of(eqn.primitive.name).product:
            a, b = operands[:2]
            both = {g for g in a | b if g >= 0 and g - count in a | b}
            found.update((m, c) for m in both for c in a | b if c >= 0 and c != m and a and b)
        inner = _inner_names(eqn, new)
        new.update(inner)
        outs = _outputs(eqn, operands, handle)
        for var in inner:
            del new[var]
        return [new.get(v, o) for v, o in zip(eqn.outvars, outs, strict=True)]

    values = [*step.consts, *(own.get(i - step.first_state, _NONE) for i in range(len(step.ins)))]
    interpret(step.jaxpr, [], values, handle)
    return found


# What may stand between a new state as the step computes it and as it returns it.
_RESHAPING = frozenset(
    {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "copy", "convert_element_type"}
)


def _name(names: dict[Var, Origins], jaxpr: Jaxpr, var: Any, origins: Origins) -> None:
    """Note the origins of a variable, and of those that it is a reshaped copy of."""
    while not isinstance(var, Literal) and var not in jaxpr.invars:
        names[var] = origins
        makers = [eqn for eqn in jaxpr.eqns if var in eqn.outvars]
        if not makers or makers[0].primitive.name not in _RESHAPING:
            return
        var = makers[0].invars[0]


def _inner_names(eqn: JaxprEqn, names: dict[Var, Origins]) -> dict[Var, Origins]:
    """Names of the outputs of an inlined function, by its own variables."""
    inner: dict[Var, Origins] = {}
    if eqn.primitive.name in INLINED:
        body = inner_jaxpr(eqn)[0]
        for outer, var in zip(eqn.outvars, body.outvars, strict=True):
            if outer in names:
                _name(inner, body, var, names[outer])
    return inner


def _outputs(eqn: JaxprEqn, operands: list[Origins], handle: Any) -> list[Origins]:
    """What the outputs of an equation are made of: of all that it reads, unless a body can be followed."""

    def inside(body: tuple[Jaxpr, Sequence[Any]], given: Sequence[Origins]) -> list[Origins]:
        return [o if isinstance(o, frozenset) else _NONE for o in interpret(*body, given, handle)]

    name = eqn.primitive.name
    if name in INLINED or name in CUSTOM:
        return inside(inner_jaxpr(eqn), operands)
    if name == "cond":
        branches = [inside(body, operands[1:]) for body in cond_branches(eqn)]
        return [_NONE.union(*each) for each in zip(*branches, strict=True)]
    if name == "scan":
        scan = scan_parts(eqn)
        n, m = scan.num_consts, scan.num_consts + scan.num_carry
        while True:
            outs = inside((scan.jaxpr, scan.consts), operands)
            carry = [a | b for a, b in zip(operands[n:m], outs[: m - n], strict=True)]
            if carry == operands[n:m]:
                return outs
            operands = [*operands[:n], *carry, *operands[m:]]
    return [_NONE.union(*operands)] * len(eqn.outvars)
