"""What is known of values before anything runs: whether they change in time, and along which axes they are uniform.

A value is *fixed* if it is made of parameters and constants only, whatever the states, inputs and outputs of ops. It is
*uniform* along an axis if all of its elements along that axis are equal, whatever the numbers: a broadcast is, a
parameter with that axis never is. What is not followed is neither. Cotangents of states that are not asked for are
zero, and whatever is multiplied by zero does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import CUSTOM, INLINED, JaxprEqn, Var, is_concrete, open_jaxpr, run_equation, without_dead_code
from ..ir import Address, interpret
from ..primitives import Along, record_of
from ._solver import Domain, Note, Solver

P = ParamSpec("P")
R = TypeVar("R")


class Uniform(NamedTuple):
    """`fixed`: made of parameters and constants only; `along[a]`: whether all elements along axis a are equal.

    `zero`: all elements are zero, so that both hold.
    """

    fixed: bool
    along: Along
    zero: bool = False

    def both(self, other: Uniform) -> Uniform:
        """What holds of two values of one shape together."""
        along = tuple(a and b for a, b in zip(self.along, other.along, strict=True))
        return Uniform(self.fixed and other.fixed, along, self.zero and other.zero)


def uniformity(closed: Any, fixed: Sequence[bool]) -> list[Uniform]:
    """For every output of a closed jaxpr, whether it is fixed and along which axes it is uniform."""
    jaxpr, consts = open_jaxpr(closed)
    args = [Uniform(f, _short(v.aval.shape)) for f, v in zip(fixed, jaxpr.invars, strict=True)]
    return Solver(Uniformity()).run(jaxpr, consts, args)


class Uniformity(Domain[Uniform, None]):
    """Notes nothing."""

    def constant(self, value: object) -> Uniform:
        shape = np.shape(value)  # type: ignore[arg-type]
        if not _is_number(value):
            return Uniform(True, _short(shape))
        a = np.asarray(value)
        along = tuple(bool((a == a.take([0], i)).all()) if n > 1 else True for i, n in enumerate(shape))
        return Uniform(True, along, not a.any())

    def join(self, a: Uniform, b: Uniform) -> Uniform:
        return a.both(b)

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Uniform], note: Note[None]) -> list[Uniform]:
        if _vanishes(eqn, [v.zero for v in values]):
            return [Uniform(True, (True,) * len(v.aval.shape), True) for v in eqn.outvars]
        record = record_of(eqn.primitive.name)
        rule = record.uniform or (_pointwise if record.elementwise else _nowhere)
        fixed = all(v.fixed for v in values) and not eqn.effects
        outs = rule(eqn, [v.along for v in values])
        return [Uniform(fixed, _or_short(along, v)) for along, v in zip(outs, eqn.outvars, strict=True)]

    def leave(
        self, at: Address, eqn: JaxprEqn, values: list[Uniform], outs: list[Uniform], note: Note[None]
    ) -> list[Uniform]:
        """Branches and loops also depend on what chooses them. `without_zeros` runs them as they are, so that what
        is zero inside for a reason that it does not see must not count as zero, or as fixed, behind them.
        """
        if eqn.primitive.name in CUSTOM:
            return outs
        fixed = all(v.fixed for v in values) and not eqn.effects
        return [Uniform(fixed, _or_short(out.along, v)) for out, v in zip(outs, eqn.outvars, strict=True)]

    def sliced(self, at: Address, eqn: JaxprEqn, value: Uniform, i: int | None) -> Uniform:
        return value._replace(along=value.along[1:])

    def stacked(self, values: Sequence[Uniform], var: Var) -> Uniform:
        return values[0]._replace(along=(False, *values[0].along), zero=False)


def _short(shape: Sequence[int]) -> Along:
    """Axes along which there is nothing to differ."""
    return tuple(n <= 1 for n in shape)


def _or_short(along: Along, var: Var) -> Along:
    return tuple(a or b for a, b in zip(along, _short(var.aval.shape), strict=True))


def _nowhere(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    """The careful answer, for whatever has no rule."""
    return [(False,) * len(v.aval.shape) for v in eqn.outvars]


def _pointwise(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    rank = len(eqn.outvars[0].aval.shape)
    arrays = [a for a in along if len(a) == rank]  # a scalar is the same everywhere
    out = tuple(all(each) for each in zip(*arrays, strict=True)) if arrays else (True,) * rank
    return [out] * len(eqn.outvars)


def _is_number(value: object) -> bool:
    return is_concrete(value) and getattr(value, "dtype", np.dtype(float)).kind in "biufc"


def _vanishes(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    """Whether the results of an equation are zero, given which of its operands are."""
    vanishes = record_of(eqn.primitive.name).zero
    return vanishes is not None and vanishes(eqn, zeros)


class _Nil(NamedTuple):
    """A value that is zero whatever the numbers."""

    var: Var


def without_zeros(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`function(*args)`, in which what is multiplied by zero is not computed.

    A value that is fixed is then the same whatever stands for states and inputs: zero times a slope that is infinite
    where they are zero would be no number.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    jaxpr, consts = open_jaxpr(traced)
    outs = interpret(jaxpr, consts, jax.tree.leaves((args, kwargs)), _computed)
    return jax.tree.unflatten(jax.tree.structure(shapes), [_number(v) for v in outs])


def constant_outputs(function: Callable[..., Sequence[Array]], *args: Any) -> list[np.ndarray | None]:
    """The numbers that `function` returns which are made of constants only; None for all others.

    `args` are stand-ins.
    """
    traced = jax.make_jaxpr(function)(*args)
    jaxpr, consts = open_jaxpr(traced)
    constant = [value.fixed for value in uniformity(traced, [False] * len(jaxpr.invars))]
    if not any(constant) or not is_concrete(consts):
        return [None] * len(constant)
    with jax.ensure_compile_time_eval():
        stand_ins = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in jaxpr.invars]
        values = iter(interpret(without_dead_code(jaxpr, constant), consts, stand_ins, _computed))
        return [np.asarray(_number(next(values))) if c else None for c in constant]


def _computed(at: Address, eqn: JaxprEqn, values: list[Array | _Nil]) -> list[Array] | list[_Nil] | None:
    if eqn.primitive.name in INLINED:
        return None
    zeros = [isinstance(v, _Nil) or (_is_number(v) and not np.asarray(v).any()) for v in values]
    if _vanishes(eqn, zeros):
        return [_Nil(v) for v in eqn.outvars]
    return list(run_equation(eqn, [_number(v) for v in values]))


def _number(value: Array | _Nil) -> Array:
    return jnp.zeros(value.var.aval.shape, value.var.aval.dtype) if isinstance(value, _Nil) else value
