"""Value numbering: which results of a jaxpr are equal whatever it is given, because they are computed alike.

A name is a unit (1, −1, i, −i; 0 for what is zero) and a key: values of one key are equal up to their units. Real and
imaginary parts of i·z are those of z, so that the four entries of a rotation have two keys, and two of them one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from .._compat import (
    INLINED,
    Jaxpr,
    JaxprEqn,
    Literal,
    inner_jaxpr,
    is_complex,
    is_concrete,
    is_inexact,
    open_jaxpr,
)

Name: TypeAlias = tuple[complex, Hashable]
ZERO: Name = (0, None)
_ONE = "one"


def number_outputs(closed: Any) -> list[Name]:
    """A name per output of a closed jaxpr; outputs with equal names have equal values."""
    jaxpr, consts = open_jaxpr(closed)
    numbers: dict[Hashable, int] = {}
    args: list[Name] = [(1, ("arg", i)) for i in range(len(jaxpr.invars))]
    return _walk(jaxpr, [_constant(c) for c in consts], args, numbers)


def _walk(jaxpr: Jaxpr, consts: Sequence[Name], args: Sequence[Name], numbers: dict) -> list[Name]:
    names: dict[Any, Name] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(v: Any) -> Name:
        return _constant(v.val) if isinstance(v, Literal) else names[v]

    for eqn in jaxpr.eqns:
        ins, name = [read(v) for v in eqn.invars], eqn.primitive.name
        if name in INLINED:
            body, inner = inner_jaxpr(eqn)
            outs = _walk(body, [_constant(c) for c in inner], ins, numbers)
        else:
            rule = _RULES.get(name)
            found = rule(eqn, ins) if rule is not None else None
            unit, key = (1, ("new", name, _settings(eqn.params), *ins)) if found is None else found
            outs: list[Name] = [(unit, key)]
            if isinstance(key, tuple) and key[0] == "new":
                # A number stands for what computes a value: keys stay short however long the way to it.
                number = numbers.setdefault(key, len(numbers))
                outs = [(unit, ("value", number, i)) for i in range(len(eqn.outvars))]
        names.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


# The name of an equation's result, with a key that begins with "new" if it is no other value's; None: nothing is known.
_Rule: TypeAlias = Callable[[JaxprEqn, list[Name]], "Name | None"]


def _same(eqn: JaxprEqn, ins: list[Name]) -> Name:
    return ins[0]


def _linear(eqn: JaxprEqn, ins: list[Name]) -> Name | None:
    """The unit passes, unless a cast drops a sign; one to a real type takes the real part."""
    (unit, key), *rest = ins
    old, new = eqn.invars[0].aval, eqn.outvars[0].aval
    if rest or not (is_inexact(old) and is_inexact(new)):
        return None
    if is_complex(old) and not is_complex(new):
        return _part(unit, key) if old.dtype.itemsize == 2 * new.dtype.itemsize else None
    return ZERO if unit == 0 else (unit, ("new", eqn.primitive.name, _settings(eqn.params), key))


def _neg(eqn: JaxprEqn, ins: list[Name]) -> Name:
    return -ins[0][0], ins[0][1]


def _mul(eqn: JaxprEqn, ins: list[Name]) -> Name:
    (a, left), (b, right) = ins
    if a * b == 0:
        return ZERO
    for one, other, v in ((left, right, eqn.invars[1]), (right, left, eqn.invars[0])):
        if isinstance(one, tuple) and one[0] == _ONE and v.aval.shape == eqn.outvars[0].aval.shape:
            return a * b, other
    return a * b, ("new", "mul", *sorted((left, right), key=repr))


def _sum(eqn: JaxprEqn, ins: list[Name]) -> Name:
    """Zeros are left out; the unit of the first term is that of the sum."""
    (a, left), (b, right) = ins
    b = -b if eqn.primitive.name == "sub" else b
    terms = sorted(((u, k) for u, k in ((a, left), (b, right)) if u != 0), key=lambda t: repr(t[1]))
    if len(terms) < 2:
        return terms[0] if terms else ZERO
    first = terms[0][0]
    return first, ("new", "sum", *((u / first, k) for u, k in terms))


def _real(eqn: JaxprEqn, ins: list[Name]) -> Name:
    unit, key = ins[0]
    return _part(unit, key)


def _imag(eqn: JaxprEqn, ins: list[Name]) -> Name:
    unit, key = ins[0]
    return _part(unit * -1j, key)  # Im z = Re(−i z)


def _part(unit: complex, key: Hashable) -> Name:
    """The real part of unit · z: ± that of z, or ± its imaginary part."""
    if unit == 0:
        return ZERO
    return (unit.real, ("real part", key)) if unit.imag == 0 else (-unit.imag, ("imaginary part", key))


_RULES: dict[str, _Rule] = {
    "stop_gradient": _same, "detach": _same, "copy": _same, "neg": _neg, "mul": _mul, "add": _sum, "add_any": _sum,
    "sub": _sum,
    "real": _real, "imag": _imag,
    **dict.fromkeys(("broadcast_in_dim", "reshape", "transpose", "squeeze", "slice", "convert_element_type",
                     "reduce_sum", "rev"), _linear),
}  # fmt: skip


def _settings(params: dict[str, Any]) -> Hashable:
    """Parameters of an equation by what they are; those that hold code only equal themselves."""
    return tuple((k, repr(v)) if _plain(v) else (k, id(v)) for k, v in sorted(params.items()))


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(v) for v in value)
    return isinstance(value, str | int | float | bool | np.dtype | type(None))


def _constant(value: Any) -> Name:
    """Constants of one number are equal if it is; others only equal themselves."""
    is_number = is_concrete(value) and getattr(value, "dtype", np.dtype(float)).kind in "biufc"
    a = np.asarray(value) if is_number else None
    if a is None or not a.size or not (a == a.flat[0]).all():
        return 1, ("constant", id(value))
    number = a.flat[0].item()
    if a.dtype.kind not in "fc":
        return 1, ("fill", a.shape, str(a.dtype), number)
    if number == 0:
        return ZERO
    size = abs(number)
    unit = complex(number / size)
    if unit not in (1, -1, 1j, -1j):
        return 1, ("fill", a.shape, str(a.dtype), number)
    return (unit, (_ONE, a.shape, str(a.dtype))) if size == 1 else (unit, ("fill", a.shape, str(a.dtype), size))
