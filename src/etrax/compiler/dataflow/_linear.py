"""Whether the derivative of an equation is linear in the gradient that it is given."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import Array

from ..._compat import CUSTOM, JaxprEqn, bodies_of, is_inexact, run_equation
from ..ir import equations
from ._transpose import reach_through


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
    results = [k for k, v in enumerate(eqn.outvars) if is_inexact(v.aval)]
    if not moving or not results:
        return True

    def run(some: Sequence[Array], values: Sequence[Array]) -> list[Array]:
        operands = dict(enumerate(values)) | dict(zip(moving, some, strict=True))
        outs = run_equation(eqn, list(operands.values()))
        return [outs[k] for k in results]

    _, problems = reach_through(run, [avals[i] for i in moving], avals, results)
    return not problems
