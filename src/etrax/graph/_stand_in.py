"""Loops without reverse mode, for analysis only: what they do is read off a loop that has it.

JAX cannot transpose a `while_loop`, so no rule can train a model whose gradient passes through one. Its structure can
be shown all the same: which element reaches which does not depend on how often the body runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .._compat import JaxprEqn, bodies_of, is_inexact, run_equation, while_parts
from .._errors import NotSupportedError
from ..compiler.analysis import Facts, analyse
from ..compiler.ir import Address, Step, equations, interpret
from ._slices import retraced


def inspect(step: Step, as_written: bool = False) -> Facts:
    """The facts of a step, also of one that cannot be trained: those are read off `with_stand_ins(step)`."""
    try:
        return analyse(step, as_written)
    except NotSupportedError:
        inspected = with_stand_ins(step)
        if inspected is step:
            raise
        return analyse(inspected, as_written)


def loops(step: Step) -> Iterator[JaxprEqn]:
    """Equations of the step that are, or hold, a loop without reverse mode."""
    for eqn in step.jaxpr.eqns:
        if _holds_while(eqn):
            yield eqn


def _holds_while(eqn: JaxprEqn) -> bool:
    inner = (e for body in bodies_of(eqn) for e in equations(body))
    return any(e.primitive.name == "while" for e in (eqn, *inner))


def with_stand_ins(step: Step) -> Step:
    """Give every loop of a step that has no derivative one, equation by equation.

    The rule gives the right pattern and no right numbers: the result is to be analysed, never to be trained.
    """
    if not any(loops(step)):
        return step

    def handle(site: Address, eqn: JaxprEqn, values: list[jax.Array]) -> Sequence[jax.Array] | None:
        return _stand_in(eqn, values) if _holds_while(eqn) else None

    return retraced(step, lambda args: interpret(step.jaxpr, (), args, handle), "standing in for a loop")


def _stand_in(eqn: JaxprEqn, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Run the loop as it is, with the derivative of another function of its operands."""
    moving = [i for i, v in enumerate(values) if is_inexact(jax.typeof(v))]
    moving_outs = [k for k, v in enumerate(eqn.outvars) if is_inexact(v.aval)]
    pattern = _repeated if eqn.primitive.name == "while" and not _nested(eqn) else _mixed

    def backward(args: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        def run(operands: dict[int, jax.Array]) -> list[jax.Array]:
            outs = pattern(eqn, [operands.get(i, a) for i, a in enumerate(args)])
            return [outs[k] for k in moving_outs]

        (grads,) = jax.vjp(run, {i: args[i] for i in moving})[1]([cotangents[k] for k in moving_outs])
        return tuple(grads.get(i) for i in range(len(args)))

    call = jax.custom_vjp(lambda *args: tuple(run_equation(eqn, args)))
    call.defvjp(lambda *args: (tuple(run_equation(eqn, args)), args), backward)
    return list(call(*values))


def _nested(eqn: JaxprEqn) -> bool:
    return any(e.primitive.name == "while" for e in equations(while_parts(eqn).body[0]))


def _repeated(eqn: JaxprEqn, values: Sequence[jax.Array]) -> list[jax.Array]:
    """What a loop gives after no round, or after several."""
    parts = while_parts(eqn)
    first = parts.cond_consts + parts.body_consts
    fixed, start = values[parts.cond_consts : first], list(values[first:])
    body, consts = parts.body
    again = lambda carry, _: (interpret(body, consts, [*fixed, *carry], lambda *_: None), None)  # noqa: E731
    # The analysis takes the carry of a loop to its fixed point, so that the number of rounds does not matter to it.
    end, _ = lax.scan(again, start, None, length=2)
    return [a + b if is_inexact(jax.typeof(b)) else b for a, b in zip(start, end, strict=True)]


def _mixed(eqn: JaxprEqn, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Every element of what goes in acts on every element of what comes out."""
    total = sum(jnp.sum(jnp.real(v)).astype(jnp.float32) for v in values if is_inexact(jax.typeof(v)))
    return [jnp.full(v.aval.shape, total).astype(v.aval.dtype) for v in eqn.outvars]
