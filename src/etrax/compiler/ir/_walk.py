"""The one walker over jaxprs: environment, read, write, loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from ..._compat import INLINED, Jaxpr, JaxprEqn, Literal, bodies_of, expanded, inner_jaxpr, run_equation, within

# Address of an equation: its index, then those of the equations inside it. A branch number follows a `cond`'s index.
Address: TypeAlias = tuple[int, ...]
# Returns the equation's outputs, or None to have it run as it is.
Handler: TypeAlias = Callable[[Address, JaxprEqn, list[Any]], Sequence[Any] | None]


def interpret(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    handle: Handler,
    at: Address = (),
    literal: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
    """Evaluate a jaxpr, letting `handle` stand in for any equation.

    Run under `jax.make_jaxpr` it is a jaxpr-to-jaxpr pass; run on other values, of which `literal` makes one of a
    number in the program, it is an abstract interpreter (`dataflow/_solver.py`). Inlinable calls (`jit`, `checkpoint`,
    …) are entered; every other equation is the handler's, or is bound.
    """
    env: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return literal(atom.val) if isinstance(atom, Literal) else env[atom]

    env.update(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    for i, eqn in enumerate(jaxpr.eqns):
        values, site = [read(v) for v in eqn.invars], (*at, i)
        with within(eqn):
            outs = handle(site, eqn, values)
            if outs is None and eqn.primitive.name in INLINED:
                body, body_consts = inner_jaxpr(eqn)
                outs = interpret(body, body_consts, values, handle, site)
        if outs is None:
            outs = run_equation(eqn, values)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """All equations, also those inside calls, branches and loops."""
    for eqn in jaxpr.eqns:
        yield eqn
        for body in bodies_of(eqn):
            yield from equations(body)


def inline(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate with inlinable calls entered and operations that stand for several written out."""
    return interpret(jaxpr, consts, args, lambda _, eqn, values: expanded(eqn, values))
