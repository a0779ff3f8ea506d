"""Calls with a derivative rule of the user's: the rule as jaxprs, and a call made of such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax import Array

from ..._compat import Jaxpr, JaxprEqn, Literal, inner_jaxpr, is_in, is_inexact, open_jaxpr, run_equation, shape_struct
from ._walk import interpret

Body: TypeAlias = tuple[Jaxpr, Sequence[Any]]
Call: TypeAlias = Callable[..., list[Array]]


def run_body(body: Body, values: Sequence[Array]) -> list[Array]:
    return interpret(*body, values, lambda *_: None)


def moving_operands(eqn: JaxprEqn) -> list[int]:
    """The operands that the rule has a derivative in: not those that the function closes over, which come first."""
    closed_over = eqn.params.get("num_consts", 0)
    return [i for i, v in enumerate(eqn.invars) if i >= closed_over and is_inexact(v.aval)]


def _moved(eqn: JaxprEqn, values: Sequence[Array], moving: Sequence[int]) -> Call:
    """The call as a function of the operands that have derivatives."""

    def run(*some: Array) -> list[Array]:
        operands = list(values)
        for i, v in zip(moving, some, strict=True):
            operands[i] = v
        return run_equation(eqn, operands)

    return run


def rule_of(eqn: JaxprEqn, structs: Sequence[Any], moving: Sequence[int]) -> tuple[Body, Body]:
    """The derivative rule of a call, backwards: (operands → outputs, residuals), (residuals, bars → bars)."""
    tree: list[Any] = []

    def forward(*values: Array) -> list[Array]:
        outs, pull = jax.vjp(_moved(eqn, values, moving), *(values[i] for i in moving))
        residuals, structure = jax.tree.flatten(pull)
        # The pull-back is a pytree of its residuals: its structure leaves the trace by this list, its arrays as
        # outputs.
        tree[:] = [structure, [shape_struct(h) for h in residuals]]
        return [*outs, *residuals]

    forward_body = open_jaxpr(jax.make_jaxpr(forward)(*structs))
    structure, residual_structs = tree

    def backward(*values: Array) -> Sequence[Array]:
        pull: Callable[..., Any] = jax.tree.unflatten(structure, values[: len(residual_structs)])
        return pull(list(values[len(residual_structs) :]))

    outs = [shape_struct(v.aval) for v in eqn.outvars]
    return forward_body, open_jaxpr(jax.make_jaxpr(backward)(*residual_structs, *outs))


def is_rule_of_jax(eqn: JaxprEqn) -> bool:
    """Whether a call with a derivative rule is of a function of JAX's own."""
    return is_in(inner_jaxpr(eqn)[0].debug_info.func_filename or "", ("jax",))


def has_rule_of_jax(eqn: JaxprEqn) -> bool:
    """Whether the rule of a call is JAX's own and closes over nothing, so that no caller can change what it reads."""
    closes_over = eqn.params.get("num_consts", 0) or inner_jaxpr(eqn)[1]
    return eqn.primitive.name == "custom_jvp_call" and not closes_over and is_rule_of_jax(eqn)


def keeps_rule(eqn: JaxprEqn, forward: Body) -> bool:
    """Whether who differentiates a gradient of the call finds the rule again, in what the call gives.

    A gradient runs the rule in place of the call, and most rules of surrogate spikes give a plain threshold, whose
    derivative is zero; one that calls the function itself has the rule in turn. JAX drops a `custom_jvp` rule once a
    loop around it is differentiated. For functions of JAX's own that is no loss: their rules are true derivatives.
    """
    if eqn.primitive.name == "custom_jvp_call":
        return is_rule_of_jax(eqn)
    jaxpr, _ = forward
    makers = {v: e.primitive for e in jaxpr.eqns for v in e.outvars}
    values = jaxpr.outvars[: len(eqn.outvars)]
    return all(not isinstance(v, Literal) and makers.get(v) is eqn.primitive for v in values)


def call_with_rule(eqn: JaxprEqn, rule: Sequence[Body], moving: Sequence[int]) -> Call:
    """The call with this rule in place of its own; its value in the rule is that of a call (`keeps_rule`)."""
    front, back = rule
    n, count = len(eqn.outvars), len(eqn.invars)
    call = jax.custom_vjp(lambda *values: run_body(inner_jaxpr(eqn), values))

    def forward(*values: Array) -> tuple[list[Array], list[Array]]:
        # The value is that of a call, whose rule a second derivative finds again; the rule gives the residuals alone.
        return call(*values), run_body(front, values)[n:]

    def backward(residuals: list[Array], bars: list[Array]) -> tuple[Array | None, ...]:
        cotangents = dict(zip(moving, run_body(back, [*residuals, *bars]), strict=True))
        return tuple(cotangents.get(i) for i in range(count))

    call.defvjp(forward, backward)
    return call
