"""What is known of values before anything runs: whether they change in time, and along which axes they are equal.

Read off the jaxpr that computes them. A value is *fixed* if it is made of parameters and constants only, whatever the
states, inputs and outputs of ops. It is *even* along an axis if all of its elements along that axis are equal, whatever
the numbers: a broadcast is, a parameter with that axis never is. What is not followed is neither. Cotangents of states
that are not asked for are zero, and whatever is multiplied by zero does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..._compat import CUSTOM, INLINED, Jaxpr, JaxprEqn, inner_jaxpr, is_concrete, open_jaxpr, run_equation
from ..ir import Site, interpret
from ..primitives import record_of


class Even(NamedTuple):
    """`fixed`: made of parameters and constants only; `along[a]`: whether all elements along axis a are equal.

    `zero`: all elements are zero, so that both hold.
    """

    fixed: bool
    along: tuple[bool, ...]
    zero: bool = False

    def both(self, other: Even) -> Even:
        """What holds of two values of one shape."""
        return Even(self.fixed and other.fixed, tuple(a and b for a, b in zip(self.along, other.along, strict=True)))


def evenness(closed: Any, fixed: Sequence[bool]) -> list[Even]:
    """Of every output of a closed jaxpr, given which of its inputs are fixed."""
    jaxpr, consts = open_jaxpr(closed)
    args = [Even(f, _short(v.aval.shape)) for f, v in zip(fixed, jaxpr.invars, strict=True)]
    return _walk(jaxpr, consts, args)


def _walk(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Even]) -> list[Even]:
    outs = interpret(jaxpr, [_of_constant(c) for c in consts], args, _handle)
    return [_read(o) for o in outs]


def _read(value: Any) -> Even:
    return value if isinstance(value, Even) else _of_constant(value)


def _short(shape: Sequence[int]) -> tuple[bool, ...]:
    """Axes along which there is nothing to differ."""
    return tuple(n <= 1 for n in shape)


def _of_constant(value: Any) -> Even:
    shape = np.shape(value)
    if not _is_number(value):
        return Even(True, _short(shape))
    a = np.asarray(value)
    along = tuple(bool((a == a.take([0], i)).all()) if n > 1 else True for i, n in enumerate(shape))
    return Even(True, along, _is_zero(value))


def _is_number(value: Any) -> bool:
    return is_concrete(value) and getattr(value, "dtype", np.dtype(float)).kind in "biufc"


def _is_zero(value: Any) -> bool:
    return _is_number(value) and not np.asarray(value).any()


def _handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Even] | None:
    name = eqn.primitive.name
    if name in INLINED:
        return None
    operands = [_read(v) for v in values]
    if _vanishes(eqn, [e.zero for e in operands]):
        return [Even(True, (True,) * len(v.aval.shape), True) for v in eqn.outvars]
    if name in _SUMS:
        operands = [e for e in operands if not e.zero] or operands
    fixed = all(e.fixed for e in operands) and not eqn.effects
    if name in CUSTOM:
        body, consts = inner_jaxpr(eqn)
        return _walk(body, consts, operands)
    rule = _RULES.get(name) or (_pointwise if record_of(name).elementwise else _uneven)
    found = rule(eqn, operands)
    return [
        Even(fixed, tuple(a or b for a, b in zip(along, _short(v.aval.shape), strict=True)))
        for along, v in zip(found, eqn.outvars, strict=True)
    ]


def _vanishes(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    """Whether the results of an equation are zero, given which of its operands are."""
    name = eqn.primitive.name
    vanishes = record_of(name).zero
    return vanishes is not None and name != "integer_pow" and vanishes(eqn, zeros)


class _Nil(NamedTuple):
    """A value that is zero whatever the numbers."""

    aval: Any


def without_zeros(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, in which what is multiplied by zero is not computed.

    A value that is fixed is then the same whatever stands for states and inputs: zero times a slope that is infinite
    where they are zero would be no number.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    jaxpr, consts = open_jaxpr(traced)
    outs = interpret(jaxpr, consts, jax.tree.leaves(args), _computed)
    return jax.tree.unflatten(jax.tree.structure(shapes), [_number(v) for v in outs])


def _computed(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Any] | None:
    if eqn.primitive.name in INLINED:
        return None
    if _vanishes(eqn, [isinstance(v, _Nil) or _is_zero(v) for v in values]):
        return [_Nil(v.aval) for v in eqn.outvars]
    return list(run_equation(eqn, [_number(v) for v in values]))


def _number(value: Any) -> Any:
    return jnp.zeros(value.aval.shape, value.aval.dtype) if isinstance(value, _Nil) else value


Along: TypeAlias = tuple[bool, ...]
# Axes along which each output is even, given the same of the operands.
Rule: TypeAlias = Callable[[JaxprEqn, Sequence[Even]], list[Along]]


def _uneven(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    """The careful answer, for whatever has no rule."""
    return [(False,) * len(v.aval.shape) for v in eqn.outvars]


def _pointwise(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    rank = len(eqn.outvars[0].aval.shape)
    full = [e.along for e in operands if len(e.along) == rank]  # a scalar is the same everywhere
    found = tuple(all(each) for each in zip(*full, strict=True)) if full else (True,) * rank
    return [found] * len(eqn.outvars)


def _broadcast(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    along = [True] * len(eqn.params["shape"])
    shape = eqn.invars[0].aval.shape
    for i, axis in enumerate(eqn.params["broadcast_dimensions"]):
        along[axis] = operands[0].along[i] or shape[i] == 1
    return [tuple(along)]


def _reshape(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    """Runs of axes with one product on both sides: even where all axes of the run were."""
    if eqn.params.get("dimensions") is not None:
        return _uneven(eqn, operands)
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if 0 in old:
        return [(True,) * len(new)]
    along, i, j = [True] * len(new), 0, 0
    while i < len(old) or j < len(new):
        a, b, first, start = 1, 1, i, j
        while a != b or (a == 1 and i < len(old) and j < len(new) and first == i):
            if a <= b and i < len(old):
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        if first == i and start == j:  # axes of one that are left over
            break
        for axis in range(start, j):
            along[axis] = all(operands[0].along[first:i])
    return [tuple(along)]


def _transpose(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    return [tuple(operands[0].along[i] for i in eqn.params["permutation"])]


def _without(eqn: JaxprEqn, operands: Sequence[Even], gone: Sequence[int]) -> list[Along]:
    return [tuple(a for i, a in enumerate(operands[0].along) if i not in gone)] * len(eqn.outvars)


def _reduce(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    return _without(eqn, operands, eqn.params["axes"])


def _squeeze(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    rank = len(operands[0].along)
    return _without(eqn, operands, [d % rank for d in eqn.params["dimensions"]])


def _part(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    """A part of an array, or the array in another order, axis by axis."""
    return [operands[0].along] * len(eqn.outvars)


def _concatenate(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    found = [all(each) for each in zip(*(e.along for e in operands), strict=True)]
    found[eqn.params["dimension"]] = False
    return [tuple(found)]


def _pad(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    config = eqn.params["padding_config"]
    return [tuple(a and set(c) == {0} for a, c in zip(operands[0].along, config, strict=True))]


def _dot(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    (contracted, (batch_left, batch_right)) = eqn.params["dimension_numbers"]
    left, right = operands[0].along, operands[1].along
    shared = [left[i] and right[j] for i, j in zip(batch_left, batch_right, strict=True)]
    free = [
        along[i]
        for along, summed, batch in zip((left, right), contracted, (batch_left, batch_right), strict=True)
        for i in range(len(along))
        if i not in summed and i not in batch
    ]
    return [(*shared, *free)]


def _iota(eqn: JaxprEqn, operands: Sequence[Even]) -> list[Along]:
    return [tuple(i != eqn.params["dimension"] for i in range(len(eqn.params["shape"])))]


_SUMS = ("add", "add_any", "sub")
_RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "concatenate": _concatenate,
    "pad": _pad,
    "dot_general": _dot,
    "iota": _iota,
    "optimization_barrier": lambda eqn, operands: [e.along for e in operands],
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"), _reduce),
    **dict.fromkeys(("slice", "rev", "copy", "copy_p", "stop_gradient"), _part),
}
