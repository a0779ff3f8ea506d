"""Whether the derivative of an equation is linear in the gradient that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .._compat import CUSTOM, JaxprEqn, bind, bodies_of, is_inexact, open_jaxpr
from ..ir import equations
from ._propagate import propagate


def is_linear_backwards(eqn: JaxprEqn) -> bool:
    """False where a derivative rule of the model's own (a clipped gradient) is not linear, or not known to be.

    Gradients of many steps may then not be summed before they pass it. What JAX derives by itself is linear.
    """
    if eqn.primitive.name not in CUSTOM and not any(
        inner.primitive.name in CUSTOM for body in bodies_of(eqn) for inner in equations(body)
    ):
        return True
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    moving = [i for i, aval in enumerate(avals) if is_inexact(aval)]
    kept = [k for k, v in enumerate(eqn.outvars) if is_inexact(v.aval)]
    if not moving or not kept:
        return True

    def run(some: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        given = list(values)
        for i, v in zip(moving, some, strict=True):
            given[i] = v
        outs = bind(eqn, given)
        return [outs[k] for k in kept]

    def pull(values: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        return jax.vjp(lambda some: run(some, values), [values[i] for i in moving])[1](list(cotangents))

    structs = [jax.ShapeDtypeStruct(eqn.outvars[k].aval.shape, eqn.outvars[k].aval.dtype) for k in kept]
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pull)(avals, structs))
    _, problems = propagate(jaxpr, consts, {len(avals) + k: k for k in range(len(kept))}, {})
    return not problems
