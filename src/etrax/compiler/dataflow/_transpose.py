"""What reaches what through a function, read off its transpose: the derivative program itself decides.

Also whether a derivative rule of the model's own is linear in the gradient that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import jax
from jax import Array

from ..._compat import CUSTOM, Jaxpr, JaxprEqn, bodies_of, is_inexact, open_jaxpr, run_equation, shape_struct
from ..._errors import CompilationError, NotSupportedError
from ..ir import equations
from ..primitives import Dep, identity
from ._dependence import Dependence, Key, Problem, Value
from ._offset import find_offsets
from ._solver import Solver

Shapes: TypeAlias = Sequence[jax.ShapeDtypeStruct]

NO_REVERSE = "which has no reverse mode in JAX, so neither BPTT nor Etrax can train it"
TRAINABLE = "use `lax.scan` or a `fori_loop` with constant bounds, or `stop_gradient` its inputs, to train it."


def reach_through(
    run: Callable[[list[Array], list[Array]], list[Array]], moving: Shapes, fixed: Shapes, targets: Sequence[Key]
) -> tuple[list[dict[Key, Dep]], list[Problem[Key]]]:
    """How elements of each moving array reach elements of the outputs of `run(moving, fixed)`, which `targets` name.

    Also the places where the way back is not linear in what it is given, or not known.
    """
    first = len(moving) + len(fixed)
    closed = pulled_back(run, moving, fixed)
    return propagate(*open_jaxpr(closed), {first + k: target for k, target in enumerate(targets)})


def propagate(
    jaxpr: Jaxpr, consts: Sequence[object], sources: Mapping[int, Key]
) -> tuple[list[dict[Key, Dep]], list[Problem[Key]]]:
    """Dependence of each output on the inputs numbered in `sources`; `consts` are constants of the model."""
    solver = Solver(Dependence())
    inputs = [Value({sources[i]: identity(v.aval.shape)} if i in sources else {}) for i, v in enumerate(jaxpr.invars)]
    rows = [cast("dict[Key, Dep]", value.deps) for value in solver.run(jaxpr, consts, inputs)]
    problems = [*solver.notes, *find_offsets(jaxpr, consts, sources)]
    return rows, cast("list[Problem[Key]]", list(dict.fromkeys(problems)))


def pulled_back(run: Callable[[list[Array], list[Array]], list[Array]], moving: Shapes, fixed: Shapes) -> Any:
    """The jaxpr from moving and fixed arrays and cotangents of the outputs of `run` to cotangents of what moves."""

    def pull(moving: list[Array], fixed: list[Array], cotangents: list[Array]) -> list[Array]:
        return jax.vjp(lambda some: run(some, fixed), moving)[1](cotangents)[0]

    try:
        return jax.make_jaxpr(pull)(list(moving), list(fixed), jax.eval_shape(run, list(moving), list(fixed)))
    except (ValueError, NotImplementedError) as error:
        refuse_while(error)
        raise CompilationError(
            "the step cannot be differentiated in reverse mode, so neither BPTT nor Etrax can train it. Replace the "
            f"operation, give it a rule by `jax.custom_vjp`, or `stop_gradient` its inputs.\nJAX says: {error}"
        ) from error


def is_linear_backwards(eqn: JaxprEqn) -> bool:
    """False where a derivative rule of the model's own (a clipped gradient) is not linear, or not known to be.

    Gradients of many steps may then not be summed before they pass it. What JAX derives by itself is linear.
    """
    if eqn.primitive.name not in CUSTOM and not any(
        inner.primitive.name in CUSTOM for body in bodies_of(eqn) for inner in equations(body)
    ):
        return True
    avals = [shape_struct(v.aval) for v in eqn.invars]
    moving = [i for i, aval in enumerate(avals) if is_inexact(aval)]
    results = [k for k, v in enumerate(eqn.outvars) if is_inexact(v.aval)]
    if not moving or not results:
        return True

    def run(some: Sequence[Array], values: Sequence[Array]) -> list[Array]:
        operands = dict(enumerate(values)) | dict(zip(moving, some, strict=True))
        # `operands` is ordered by number: its keys were all there before the moving ones were put in.
        outs = run_equation(eqn, list(operands.values()))
        return [outs[k] for k in results]

    _, problems = reach_through(run, [avals[i] for i in moving], avals, results)
    return not problems


def refuse_while(error: Exception) -> None:
    """Say what to do if JAX could not differentiate because of a loop without reverse mode."""
    if "while_loop" in str(error):
        raise NotSupportedError(
            "the step differentiates through a `while_loop` (or a `fori_loop` whose bounds are not constants), "
            f"{NO_REVERSE}; {TRAINABLE}\nJAX says: {error}"
        ) from error
