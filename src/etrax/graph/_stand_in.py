"""Loops without reverse mode, for analysis only: what they do is read off a loop that has it.

JAX cannot transpose a `while_loop`, so no rule can train a model whose gradient passes through one. Its structure can
be shown all the same: which element reaches which does not depend on how often the body runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .._compat import JaxprEqn, is_inexact, open_jaxpr, run_equation, shape_struct, while_parts
from .._errors import CompilationError, NotSupportedError
from ..compiler.analysis import Facts, analyse
from ..compiler.ir import Site, Step, equations, interpret


def inspect(step: Step) -> Facts:
    """The facts of a step, also of one that cannot be trained: those are read off `with_stand_ins(step)`."""
    try:
        return analyse(step)
    except NotSupportedError:
        shown = with_stand_ins(step)
        if shown is step:
            raise
        return analyse(shown)


def loops(step: Step) -> Iterator[JaxprEqn]:
    """Equations of the step that are, or hold, a loop without reverse mode."""
    for eqn in step.jaxpr.eqns:
        if _holds_while(eqn):
            yield eqn


def _holds_while(eqn: JaxprEqn) -> bool:
    inner = [body for value in eqn.params.values() for body in (value if isinstance(value, tuple | list) else (value,))]
    bodies = [open_jaxpr(body)[0] for body in inner]
    return eqn.primitive.name == "while" or any(
        e.primitive.name == "while" for body in bodies if hasattr(body, "eqns") for e in equations(body)
    )


def with_stand_ins(step: Step) -> Step:
    """The same step, equation by equation, with a derivative rule for every loop that has none.

    The rule gives the right pattern and no right numbers: the result is to be analysed, never to be trained.
    """
    if not any(loops(step)):
        return step

    def handle(site: Site, eqn: JaxprEqn, values: list[jax.Array]) -> Sequence[jax.Array] | None:
        return _stand_in(eqn, values) if _holds_while(eqn) else None

    args = ([shape_struct(c) for c in step.consts], [leaf.aval for leaf in step.ins])
    run = lambda consts, leaves: interpret(step.jaxpr, (), [*consts, *leaves], handle)  # noqa: E731
    jaxpr, captured = open_jaxpr(jax.make_jaxpr(run)(*args))
    if captured or len(jaxpr.eqns) != len(step.jaxpr.eqns):
        raise CompilationError("standing in for a loop changed the equations of the step; please report this model")
    return Step(jaxpr, step.consts, step.ins, step.outs, step.trees)


def _stand_in(eqn: JaxprEqn, values: Sequence[jax.Array]) -> list[jax.Array]:
    moving = [i for i, v in enumerate(values) if is_inexact(jax.typeof(v))]
    kept = [k for k, v in enumerate(eqn.outvars) if is_inexact(v.aval)]
    pattern = _repeated if eqn.primitive.name == "while" and not _nested(eqn) else _mixed

    def backward(args: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> tuple[jax.Array | None, ...]:
        def run(given: list[jax.Array]) -> list[jax.Array]:
            full = list(args)
            for i, value in zip(moving, given, strict=True):
                full[i] = value
            outs = pattern(eqn, full)
            return [outs[k] for k in kept]

        (found,) = jax.vjp(run, [args[i] for i in moving])[1]([cotangents[k] for k in kept])
        return tuple(found[moving.index(i)] if i in moving else None for i in range(len(args)))

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
    end, _ = lax.scan(again, start, None, length=2)
    return [a + b if is_inexact(jax.typeof(b)) else b for a, b in zip(start, end, strict=True)]


def _mixed(eqn: JaxprEqn, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Every element of what goes in acts on every element of what comes out."""
    total = sum(jnp.sum(jnp.real(v)).astype(jnp.float32) for v in values if is_inexact(jax.typeof(v)))
    return [jnp.full(v.aval.shape, total).astype(v.aval.dtype) for v in eqn.outvars]
