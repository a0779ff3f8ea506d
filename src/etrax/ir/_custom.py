"""Calls with a derivative rule of the user's: the rule as jaxprs, and a call made of such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jax import Array

from .._compat import Jaxpr, JaxprEqn, inner_jaxpr, is_inexact, open_jaxpr, run_equation, shape_struct
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
        given = list(values)
        for i, v in zip(moving, some, strict=True):
            given[i] = v
        return run_equation(eqn, given)

    return run


def rule_by_cotangents(eqn: JaxprEqn, structs: Sequence[Any], moving: Sequence[int]) -> tuple[Body, Body]:
    """The derivative rule of a call, backwards: (operands → outputs, residuals), (residuals, bars → bars)."""
    tree: list[Any] = []

    def forward(*values: Array) -> list[Array]:
        outs, pull = jax.vjp(_moved(eqn, values, moving), *(values[i] for i in moving))
        held, structure = jax.tree.flatten(pull)
        tree[:] = [structure, [shape_struct(h) for h in held]]
        return [*outs, *held]

    whole = open_jaxpr(jax.make_jaxpr(forward)(*structs))
    structure, held = tree

    def backward(*values: Array) -> Sequence[Array]:
        pull: Callable[..., Any] = jax.tree.unflatten(structure, values[: len(held)])
        return pull(list(values[len(held) :]))

    outs = [shape_struct(v.aval) for v in eqn.outvars]
    return whole, open_jaxpr(jax.make_jaxpr(backward)(*held, *outs))


def rule_by_tangents(eqn: JaxprEqn, structs: Sequence[Any], moving: Sequence[int]) -> tuple[Body]:
    """The derivative rule of a call, forwards: (operands, tangents) → (outputs, tangents)."""

    def forward(values: Sequence[Array], tangents: Sequence[Array]) -> Any:
        return jax.jvp(_moved(eqn, values, moving), [values[i] for i in moving], tangents)

    return (open_jaxpr(jax.make_jaxpr(forward)(list(structs), [structs[i] for i in moving])),)


def call_by_cotangents(eqn: JaxprEqn, rule: Sequence[Body], moving: Sequence[int]) -> Call:
    """The call with this rule in the place of its own."""
    whole, back = rule
    n, count = len(eqn.outvars), len(eqn.invars)
    call = jax.custom_vjp(lambda *values: run_body(inner_jaxpr(eqn), values))

    def forward(*values: Array) -> tuple[list[Array], list[Array]]:
        outs = run_body(whole, values)
        return outs[:n], outs[n:]

    def backward(held: list[Array], bars: list[Array]) -> tuple[Array | None, ...]:
        found = dict(zip(moving, run_body(back, [*held, *bars]), strict=True))
        return tuple(found.get(i) for i in range(count))

    call.defvjp(forward, backward)
    return call


def call_by_tangents(eqn: JaxprEqn, rule: Sequence[Body], moving: Sequence[int]) -> Call:
    """The call with this rule in the place of its own."""
    n = len(eqn.outvars)
    call = jax.custom_jvp(lambda *values: run_body(inner_jaxpr(eqn), values))

    @call.defjvp
    def push(values: Sequence[Array], tangents: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        outs = run_body(rule[0], [*values, *(tangents[i] for i in moving)])
        return outs[:n], outs[n:]

    return call
