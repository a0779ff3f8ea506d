"""Write the calls of a traced program out, by putting the equations of their bodies in their place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax

from ..._compat import (
    INLINED,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    build_jaxpr,
    expanded,
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
from ._custom import Body


def without_calls(jaxpr: Jaxpr, consts: Sequence[Any]) -> tuple[Jaxpr, tuple[Any, ...]]:
    """A jaxpr without calls and constvars, whose first inputs are the constants that are given with it."""
    program = _Program()
    program.add(jaxpr.eqns)
    invars = [*program.consts, *jaxpr.constvars, *jaxpr.invars]
    outvars = [program.name(v) for v in jaxpr.outvars]
    return build_jaxpr(invars, outvars, program.eqns, jaxpr), (*program.consts.values(), *consts)


class _Program:
    """The equations so far, the names that variables have in them, and constants of calls by variable."""

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.names: dict[Var, Any] = {}
        self.consts: dict[Var, Any] = {}
        self.expansions: dict[Hashable, Body] = {}

    def name(self, v: Any) -> Any:
        return v if isinstance(v, Literal) else self.names.get(v, v)

    def add(self, eqns: Sequence[JaxprEqn], inside: bool = False, operation: JaxprEqn | None = None) -> None:
        """Add equations, those of calls in place of the calls.

        JAX traces a function once for all of its calls, so what a call computes gets new variables. What an `operation`
        stands for has the line of the operation.
        """
        for eqn in eqns:
            if is_call(eqn):
                is_function = eqn.primitive.name in INLINED
                body, consts = inner_jaxpr(eqn) if is_function else self.expansion(eqn)
                self.consts.update(zip(body.constvars, consts, strict=True))
                operands = [self.name(v) for v in eqn.invars]
                self.names.update(zip(body.invars, operands, strict=True))
                with within(eqn):
                    self.add(body.eqns, True, operation if is_function else operation or eqn)
                self.names.update(zip(eqn.outvars, [self.name(v) for v in body.outvars], strict=True))
            elif inside:
                self.names.update((v, new_variable(v.aval)) for v in eqn.outvars if not is_unread(v))
                source = with_source(operation or eqn).source_info
                self.eqns.append(renamed(eqn.replace(source_info=source), self.names))
            else:
                changes = any(not isinstance(v, Literal) and v in self.names for v in eqn.invars)
                self.eqns.append(renamed(eqn, self.names) if changes else eqn)

    def expansion(self, eqn: JaxprEqn) -> Body:
        """What an operation that stands for several does: JAX runs it once for all equations of its kind."""
        kind = (eqn.primitive, tuple(eqn.params.items()), tuple(v.aval for v in eqn.invars))
        try:
            if kind in self.expansions:
                return self.expansions[kind]
        except TypeError:  # a parameter that cannot be compared
            return _expansion(eqn)
        self.expansions[kind] = _expansion(eqn)
        return self.expansions[kind]


def _expansion(eqn: JaxprEqn) -> Body:
    closed = jax.make_jaxpr(lambda *values: expanded(eqn, values))(*(shape_struct(v.aval) for v in eqn.invars))
    return open_jaxpr(closed)
