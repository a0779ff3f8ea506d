"""Who reads a group's new states within the step that makes them: weight ops and outputs, for the picture.

The analysis speaks of states before a step. In h' = tanh(W x + U h), o = V h' the old state reaches V through U only;
people say that V reads the state.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._compat import Var
from ..compiler.analysis import Facts
from ..compiler.ir import Role


@dataclass(frozen=True)
class Reads:
    """Per group, the weight ops and the outputs that its new states reach with no weight op between."""

    ops: tuple[frozenset[int], ...]
    outputs: tuple[frozenset[int], ...]


def find_reads(facts: Facts) -> Reads:
    """Follow each group's new states through the rest of the step."""
    cut: dict[int, list[int]] = {}
    for j in sorted(facts.cut):
        cut.setdefault(facts.sites[j].at[0], []).append(j)
    found = [_follow(facts, [facts.step.jaxpr.outvars[i] for i in g.leaves], cut) for g in facts.groups]
    return Reads(tuple(ops for ops, _ in found), tuple(outputs for _, outputs in found))


def _follow(facts: Facts, start: list[Var], cut: dict[int, list[int]]) -> tuple[frozenset[int], frozenset[int]]:
    jaxpr, ops = facts.step.jaxpr, set()
    seen = {v for v in start if isinstance(v, Var)} - set(jaxpr.invars)
    for n, eqn in enumerate(jaxpr.eqns):
        if any(isinstance(v, Var) and v in seen for v in eqn.invars):
            ops.update(cut.get(n, ()))
            if n not in cut:
                seen.update(eqn.outvars)
    outs = facts.step.outvars(Role.OUTPUT)
    return frozenset(ops), frozenset(k for k, v in enumerate(outs) if isinstance(v, Var) and v in seen)
