"""Which values of a step can have a derivative in what moves, as JAX sees it before it transposes anything.

JAX leaves out of reverse mode what no derivative passes: a loop that only reads `stop_gradient(h)` is never transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..._compat import (
    INLINED,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    cond_branches,
    inner_jaxpr,
    is_complex,
    is_inexact,
    scan_parts,
    while_parts,
)
from ..ir import Site

# Primitives of real numbers whose derivative is zero everywhere.
WITHOUT_DERIVATIVE = frozenset({"stop_gradient", "floor", "ceil", "round", "sign", "bitcast_convert_type"})


def mark_moving(jaxpr: Jaxpr, moving: set[Var], sites: frozenset[Site], at: Site = ()) -> None:
    """Add to the variables that move those that follow from them; results of weight ops, by address, move as well."""
    for k, eqn in enumerate(jaxpr.eqns):
        here = (*at, k)
        moves = [not isinstance(v, Literal) and v in moving for v in eqn.invars]
        if any(moves) or any(site[: len(here)] == here for site in sites):
            outs = [here in sites or out for out in _outputs(eqn, moves, sites, here)]
            moving.update(v for v, out in zip(eqn.outvars, outs, strict=True) if out and is_inexact(v.aval))


def _outputs(eqn: JaxprEqn, moves: Sequence[bool], sites: frozenset[Site], at: Site) -> list[bool]:
    name = eqn.primitive.name
    if name == "scan":
        scan = scan_parts(eqn)
        n, m = scan.num_consts, scan.num_consts + scan.num_carry
        return _loop(scan.jaxpr, moves[:n], moves[n:m], moves[m:], sites, at)
    if name == "while":
        parts = while_parts(eqn)
        n, m = parts.cond_consts, parts.cond_consts + parts.body_consts
        return _loop(parts.body[0], moves[n:m], moves[m:], (), sites, at)
    if name == "cond":
        branches = [_through(body, moves[1:], sites, (*at, b)) for b, (body, _) in enumerate(cond_branches(eqn))]
        return [any(each) for each in zip(*branches, strict=True)]
    if name in INLINED:
        return _through(inner_jaxpr(eqn)[0], moves, sites, at)
    if name in WITHOUT_DERIVATIVE and not is_complex(eqn.invars[0].aval):
        return [False] * len(eqn.outvars)
    return [any(moves)] * len(eqn.outvars)


def _loop(
    body: Jaxpr, fixed: Sequence[bool], carry: Sequence[bool], slices: Sequence[bool], sites: frozenset[Site], at: Site
) -> list[bool]:
    carry = list(carry)
    while True:
        outs = _through(body, [*fixed, *carry, *slices], sites, at)
        new = [a or b for a, b in zip(carry, outs, strict=False)]
        if new == carry:
            return [*carry, *outs[len(carry) :]]
        carry = new


def _through(body: Jaxpr, moves: Sequence[bool], sites: frozenset[Site], at: Site) -> list[bool]:
    moving = {v for v, moves in zip(body.invars, moves, strict=True) if moves}
    mark_moving(body, moving, sites, at)
    return [not isinstance(v, Literal) and v in moving for v in body.outvars]
