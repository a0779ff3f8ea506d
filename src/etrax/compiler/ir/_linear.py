"""Linear functions, the other way: J·v as the transpose of a pull-back c ↦ c·J."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.lax import GatherScatterMode

from ..._compat import JaxprEqn, is_jaxpr, open_jaxpr
from ._walk import equations, interpret


def linear_transpose(function: Callable[..., Any], *like: Any) -> Callable[[Any], Any]:
    """`jax.linear_transpose`, also where a linear function drops what lies out of bounds.

    `w[i]` promises JAX that i is in bounds. If it is not, the nearest element is read and its cotangent is dropped, but
    JAX's transpose of that would read the nearest element again, which is no transpose.
    """
    program, out = jax.make_jaxpr(function, return_shape=True)(*like)
    if not any(map(_is_promise, equations(open_jaxpr(program)[0]))):
        return jax.linear_transpose(function, *like)
    jaxpr, consts = open_jaxpr(_with_drops(program))
    tree = jax.tree.structure(out)

    def run(*values: Any) -> Any:
        return jax.tree.unflatten(tree, interpret(jaxpr, consts, jax.tree.leaves(values), lambda *_: None))

    return jax.linear_transpose(run, *like)


def _is_promise(eqn: JaxprEqn) -> bool:
    """Whether an equation adds to elements that are said to exist."""
    return eqn.primitive.name == "scatter-add" and eqn.params["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS


def _with_drops(program: Any) -> Any:
    """A program whose additions drop what lies out of bounds in so many words, also inside loops and branches."""
    jaxpr, _ = open_jaxpr(program)
    new = jaxpr.replace(eqns=list(map(_dropping, jaxpr.eqns)))
    return new if jaxpr is program else program.replace(jaxpr=new)


def _dropping(eqn: JaxprEqn) -> JaxprEqn:
    params = {key: _in_bodies(value) for key, value in eqn.params.items()}
    if _is_promise(eqn):
        params["mode"] = GatherScatterMode.FILL_OR_DROP
    return eqn.replace(params=params)


def _in_bodies(value: Any) -> Any:
    if is_jaxpr(value):
        return _with_drops(value)
    return tuple(map(_in_bodies, value)) if type(value) is tuple else value
