"""Names of values, for value numbering, and what primitives make of them.

A name is a unit (1, −1, i, −i; 0 for what is zero) and a key: values of one key are equal up to their units. Real and
imaginary parts of i·z are those of z, so that the four entries of a rotation have two keys, and two of them one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import numpy as np

from ..._compat import JaxprEqn, is_complex, is_inexact

Name: TypeAlias = tuple[complex, Hashable]
# The name of an equation's result, with a key that begins with "new" if it is no other value's; None: nothing is known.
Naming: TypeAlias = Callable[[JaxprEqn, Sequence[Name]], "Name | None"]
NOTHING: Name = (0, None)
ONE = "one"


def name_of_first(eqn: JaxprEqn, names: Sequence[Name]) -> Name:
    """The result is the first operand."""
    return names[0]


def name_of_linear(eqn: JaxprEqn, names: Sequence[Name]) -> Name | None:
    """The unit passes, unless a cast drops a sign; one to a real type takes the real part."""
    (unit, key), *rest = names
    old, new = eqn.invars[0].aval, eqn.outvars[0].aval
    if rest or not (is_inexact(old) and is_inexact(new)):
        return None
    if is_complex(old) and not is_complex(new):
        return _real_part(unit, key) if old.dtype.itemsize == 2 * new.dtype.itemsize else None
    return NOTHING if unit == 0 else (unit, ("new", eqn.primitive.name, settings_of(eqn), key))


def name_of_negative(eqn: JaxprEqn, names: Sequence[Name]) -> Name:
    return -names[0][0], names[0][1]


def name_of_product(eqn: JaxprEqn, names: Sequence[Name]) -> Name:
    """Units multiply; a factor of one leaves the other's name, if it has the shape of the product."""
    (a, left), (b, right) = names
    if a * b == 0:
        return NOTHING
    for one, other, v in ((left, right, eqn.invars[1]), (right, left, eqn.invars[0])):
        if isinstance(one, tuple) and one[0] == ONE and v.aval.shape == eqn.outvars[0].aval.shape:
            return a * b, other
    return a * b, ("new", "mul", *sorted((left, right), key=repr))


def name_of_sum(eqn: JaxprEqn, names: Sequence[Name]) -> Name:
    """Zeros are left out; the unit of the first term is that of the sum."""
    (a, left), (b, right) = names
    b = -b if eqn.primitive.name == "sub" else b
    terms = sorted(((u, k) for u, k in ((a, left), (b, right)) if u != 0), key=lambda t: repr(t[1]))
    if len(terms) < 2:
        return terms[0] if terms else NOTHING
    first = terms[0][0]
    return first, ("new", "sum", *((u / first, k) for u, k in terms))


def name_of_real_part(eqn: JaxprEqn, names: Sequence[Name]) -> Name:
    return _real_part(*names[0])


def name_of_imaginary_part(eqn: JaxprEqn, names: Sequence[Name]) -> Name:
    unit, key = names[0]
    return _real_part(unit * -1j, key)  # Im z = Re(−i z)


def _real_part(unit: complex, key: Hashable) -> Name:
    """The real part of unit · z: ± that of z, or ± its imaginary part."""
    if unit == 0:
        return NOTHING
    return (unit.real, ("real part", key)) if unit.imag == 0 else (-unit.imag, ("imaginary part", key))


def settings_of(eqn: JaxprEqn) -> Hashable:
    """Parameters of an equation by what they are; those that hold code only equal themselves."""
    return tuple((k, repr(v)) if _is_plain(v) else (k, id(v)) for k, v in sorted(eqn.params.items()))


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | bool | np.dtype | type(None))
