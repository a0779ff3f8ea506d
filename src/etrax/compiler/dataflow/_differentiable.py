"""Which values of a step can have a derivative in what moves, as JAX sees it before it transposes anything.

JAX leaves out of reverse mode what no derivative passes: a loop that only reads `stop_gradient(h)` is never transposed.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..._compat import Jaxpr, JaxprEqn, Var, is_complex, is_inexact
from ..ir import Address
from ..primitives import record_of
from ._solver import Domain, Note, Solver


def moving_variables(jaxpr: Jaxpr, moving: set[Var], sites: Iterable[Address]) -> set[Var]:
    """Variables that move, and those that follow from them; results of weight ops, by address, move as well."""
    variables = Solver(Moving(sites)).variables(jaxpr, (), [v in moving for v in jaxpr.invars])
    return {v for v, moves in variables.items() if moves}


class Moving(Domain[bool, None]):
    """Whether a value moves. JAX differentiates a call with a derivative rule as one."""

    def __init__(self, sites: Iterable[Address]):
        self.sites = frozenset(sites)
        self.around = {site[:n] for site in self.sites for n in range(1, len(site))}

    def constant(self, value: object) -> bool:
        return False

    def join(self, a: bool, b: bool) -> bool:
        return a or b

    def enters(self, at: Address, eqn: JaxprEqn, values: list[bool]) -> bool:
        return eqn.primitive.name in ("cond", "scan", "while") and (any(values) or at in self.around)

    def leave(self, at: Address, eqn: JaxprEqn, values: list[bool], outs: list[bool], note: Note[None]) -> list[bool]:
        return [is_inexact(v.aval) and (out or at in self.sites) for out, v in zip(outs, eqn.outvars, strict=True)]

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[bool], note: Note[None]) -> list[bool]:
        slope = record_of(eqn.primitive.name).differentiable or is_complex(eqn.invars[0].aval)
        moves = at in self.sites or (any(values) and slope)
        return [moves and is_inexact(v.aval) for v in eqn.outvars]
