"""Write the calls of a traced program out, by putting the equations of their bodies in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ..._compat import (
    INLINED,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    build_jaxpr,
    inner_jaxpr,
    is_call,
    is_unread,
    new_variable,
    open_jaxpr,
    renamed,
    shape_struct,
    with_source,
    within,
)
from ._walk import inline


def without_calls(jaxpr: Jaxpr, consts: Sequence[Any]) -> tuple[Jaxpr, tuple[Any, ...]]:
    """A jaxpr without calls and constvars, whose first inputs are the constants that are given with it."""
    body = _Body()
    if not body.add(jaxpr.eqns):
        return _traced(jaxpr, consts)
    invars = [*body.consts, *jaxpr.constvars, *jaxpr.invars]
    outvars = [body.name(v) for v in jaxpr.outvars]
    return build_jaxpr(invars, outvars, body.eqns, jaxpr), (*body.consts.values(), *consts)


class _Body:
    """The equations so far, the names that variables have in them, and constants of calls by variable."""

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.names: dict[Var, Any] = {}
        self.consts: dict[Var, Any] = {}

    def name(self, v: Any) -> Any:
        return v if isinstance(v, Literal) else self.names.get(v, v)

    def add(self, eqns: Sequence[JaxprEqn], inside: bool = False) -> bool:
        """Add equations, those of calls in the place of the calls; False if one must be traced to be written out.

        JAX traces a function once for all of its calls, so what a call computes gets new variables.
        """
        for eqn in eqns:
            if eqn.primitive.name in INLINED:
                body, consts = inner_jaxpr(eqn)
                self.consts.update(zip(body.constvars, consts, strict=True))
                operands = [self.name(v) for v in eqn.invars]
                self.names.update(zip(body.invars, operands, strict=True))
                with within(eqn):
                    if not self.add(body.eqns, inside=True):
                        return False
                self.names.update(zip(eqn.outvars, [self.name(v) for v in body.outvars], strict=True))
            elif is_call(eqn):
                return False
            elif inside:
                self.names.update((v, new_variable(v.aval)) for v in eqn.outvars if not is_unread(v))
                self.eqns.append(renamed(with_source(eqn), self.names))
            else:
                changes = any(not isinstance(v, Literal) and v in self.names for v in eqn.invars)
                self.eqns.append(renamed(eqn, self.names) if changes else eqn)
        return True


def _traced(jaxpr: Jaxpr, consts: Sequence[Any]) -> tuple[Jaxpr, tuple[Any, ...]]:
    """By tracing: operations that stand for several are functions, which JAX has to run."""
    args = [shape_struct(c) for c in consts], [shape_struct(v.aval) for v in jaxpr.invars]
    flat, closed_over = open_jaxpr(jax.make_jaxpr(lambda c, x: inline(jaxpr, c, x))(*args))
    if closed_over:  # arrays that jitted helpers close over, which only inlining brings to light
        flat = build_jaxpr([*flat.constvars, *flat.invars], flat.outvars, flat.eqns, flat)
    return flat, (*closed_over, *consts)
