"""Products with influences in a steep step (`compiler/analysis/_steep.py`): 0 · ∞ is 0 there.

A state that has just been set to zero, or that a sequence starts from, owes nothing to a parameter: its influence is
exactly zero. The slope of a root of it is infinite all the same. Factors are masked before they are multiplied, and
only where they are not finite, so that derivatives of such products are those of plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .._compat import JaxprEqn, cond_branches, open_jaxpr, scan_parts
from ..compiler.ir import Address, interpret


def times(a: Array, b: Array, steep: bool) -> Array:
    """a · b; in a steep step 0 · ∞ and 0 · NaN are 0."""
    return finite_unless(a, b != 0) * finite_unless(b, a != 0) if steep else a * b


def finite_unless(a: Array, acts: Array) -> Array:
    """a, with 0 for what is not finite wherever nothing acts."""
    return jnp.where(jnp.isfinite(a) | acts, a, 0)


def with_masked_products(linear: Callable[..., Any], *args: Any) -> Any:
    """`linear(*args)`, a program that moves tangents, in which zero times what is not finite is zero."""
    traced, shapes = jax.make_jaxpr(linear, return_shape=True)(*args)
    outs = interpret(*open_jaxpr(traced), jax.tree.leaves(args), _masked)
    return jax.tree.unflatten(jax.tree.structure(shapes), outs)


def _masked(at: Address, eqn: JaxprEqn, values: list[Any]) -> Sequence[Any] | None:
    name = eqn.primitive.name
    if name == "mul":
        return [times(values[0], values[1], steep=True)]
    if name == "div":
        nothing = values[0] == 0
        return [jnp.where(nothing, 0, values[0] / jnp.where(nothing, 1, values[1]))]
    if name == "cond":
        branches = [
            lambda *operands, body=body, consts=consts: interpret(body, consts, operands, _masked)
            for body, consts in cond_branches(eqn)
        ]
        return lax.switch(values[0], branches, *values[1:])
    if name != "scan":
        return None
    loop = scan_parts(eqn)
    n, m = loop.num_consts, loop.num_consts + loop.num_carry

    def body(carry: list[Array], xs: list[Array]) -> tuple[list[Array], list[Array]]:
        outs = interpret(loop.jaxpr, loop.consts, [*values[:n], *carry, *xs], _masked)
        return outs[: loop.num_carry], outs[loop.num_carry :]

    ends, outs = lax.scan(body, values[n:m], values[m:], loop.length, loop.reverse)
    return [*ends, *outs]
