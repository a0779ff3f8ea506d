"""Whether a step is steep: whether a slope of it may be infinite, or no number, at values that are finite.

The root of a state that is zero has such a slope. It meets influences: traces, and gradients of later losses. Where an
influence is exactly zero the product has to be zero, and 0 · ∞ is not. The engine masks such products in a steep step,
and in no other.

Read off the derivative of the step by its states: slopes are what cotangents are multiplied by. Only a few primitives
make an infinity of finite numbers. Made of parameters and constants alone, it is no matter of the states; and where the
operand cannot be zero (a variance and a small number, 1 + exp), it is not made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array

from ..._compat import (
    CUSTOM,
    INLINED,
    JaxprEqn,
    Literal,
    bodies_of,
    inner_jaxpr,
    is_inexact,
    open_jaxpr,
    without_dead_code,
)
from ..ir import Role, Site, equations, interpret
from ..primitives import ANY, Range, record_of
from ._facts import Facts
from ._memo import memoised
from ._ranges import bounds_of, range_of


@memoised
def is_steep(facts: Facts) -> bool:
    """Whether a derivative of the step may be infinite where states, inputs and parameters are finite.

    Only derivatives by states that a parameter reaches are asked for.
    """
    step, found = facts.step, False
    reached = (i for i, leaf in enumerate(facts.states) if i not in facts.unreached and is_inexact(leaf.aval))
    moving = [step.first_state + i for i in reached]
    if not moving:
        return False
    kept = [n for n, v in enumerate(step.jaxpr.outvars) if is_inexact(v.aval)]

    def pull(leaves: list[Array], cotangents: list[Array]) -> list[Array]:
        def run(some: list[Array]) -> list[Array]:
            values = dict(enumerate(leaves)) | dict(zip(moving, some, strict=True))
            outs = interpret(step.jaxpr, [], [*step.consts, *values.values()], lambda *_: None)
            return [outs[n] for n in kept]

        return jax.vjp(run, [leaves[k] for k in moving])[1](cotangents)[0]

    def handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[_Value] | None:
        nonlocal found
        if eqn.primitive.name in INLINED:
            return None
        operands = [_of(v) for v in values]
        if eqn.primitive.name in CUSTOM:
            body, body_consts = inner_jaxpr(eqn)
            return [_of(v) for v in interpret(body, body_consts, operands, handle, at)]
        found = found or _makes_infinity(eqn, operands)
        fixed = all(v.fixed for v in operands)
        ranges = bounds_of(eqn, [v.range for v in operands])
        return [_Value(fixed, r) for r in ranges]

    cotangents = [step.jaxpr.outvars[n].aval for n in kept]
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pull)([leaf.aval for leaf in step.ins], cotangents))
    inputs = [_Value(leaf.role is Role.PARAM, ANY) for leaf in step.ins]
    interpret(without_dead_code(jaxpr), list(consts), [*inputs, *(_Value(False, ANY) for _ in cotangents)], handle)
    return found


class _Value(NamedTuple):
    """Whether a value is made of parameters and constants only, and its bounds."""

    fixed: bool
    range: Range


def _of(value: Any) -> _Value:
    return value if isinstance(value, _Value) else _Value(True, range_of(value))


# The operand that must not be zero, by primitive.
_DIVISORS: Mapping[str, int] = {"div": 1, "rem": 1, "rsqrt": 0, "log": 0, "log2": 0, "pow": 0}
# Functions with poles elsewhere, and solvers, whose matrix may have no inverse.
_OTHERS = frozenset(
    {
        "cholesky", "custom_linear_solve", "digamma", "eig", "eigh", "householder_product", "lgamma", "lu", "polygamma",
        "qr", "svd", "triangular_solve", "tridiagonal_solve", "zeta",
    }
)  # fmt: skip


def _makes_infinity(eqn: JaxprEqn, operands: Sequence[_Value]) -> bool:
    """Whether an equation may give an infinity for finite operands that are not made of parameters only."""
    name = eqn.primitive.name
    if name == "integer_pow":
        return eqn.params["y"] < 0 and _may_vanish(operands[0])
    if name == "log1p":
        return not operands[0].fixed and operands[0].range.lo <= -1
    if name in _DIVISORS:
        return _may_vanish(operands[_DIVISORS[name]])
    if all(v.fixed for v in operands):
        return False
    bodies = bodies_of(eqn)
    if bodies:  # nothing is known of what a loop or a branch is given
        return any(_makes_infinity(e, [_inside(v) for v in e.invars]) for body in bodies for e in equations(body))
    return name in _OTHERS or (record_of(name).pattern is None and record_of(name).bounds is None)


def _inside(atom: Any) -> _Value:
    return _of(atom.val) if isinstance(atom, Literal) else _Value(False, ANY)


def _may_vanish(value: _Value) -> bool:
    return not value.fixed and value.range.lo <= 0 <= value.range.hi
