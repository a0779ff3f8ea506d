"""Value numbering: which results of a jaxpr are equal whatever it is given, because they are computed alike."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ..._compat import JaxprEqn, is_concrete, open_jaxpr
from ..ir import Address
from ..primitives import NOTHING, ONE, Name, record_of, settings_of
from ._solver import Domain, Note, Solver


def number_outputs(closed: Any) -> list[Name]:
    """A name per output of a closed jaxpr; outputs with equal names have equal values."""
    jaxpr, consts = open_jaxpr(closed)
    return Solver(Numbering()).run(jaxpr, consts, [(1, ("arg", i)) for i in range(len(jaxpr.invars))])


class Numbering(Domain[Name, None]):
    """Names of values. A loop, a branch or a call with a derivative rule is one computation, which is not entered."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def constant(self, value: object) -> Name:
        """Constants of one number are equal if it is; others only equal themselves."""
        is_number = is_concrete(value) and getattr(value, "dtype", np.dtype(float)).kind in "biufc"
        a = np.asarray(value) if is_number else None
        if a is None or not a.size or not (a == a.flat[0]).all():
            return 1, ("constant", id(value))
        number = a.flat[0].item()
        if a.dtype.kind not in "fc":
            return 1, ("fill", a.shape, str(a.dtype), number)
        if number == 0:
            return NOTHING
        size = abs(number)
        unit = complex(number / size)
        if unit not in (1, -1, 1j, -1j):
            return 1, ("fill", a.shape, str(a.dtype), number)
        return (unit, (ONE, a.shape, str(a.dtype))) if size == 1 else (unit, ("fill", a.shape, str(a.dtype), size))

    def enters(self, at: Address, eqn: JaxprEqn, values: list[Name]) -> bool:
        return False

    def transfer(self, at: Address, eqn: JaxprEqn, values: list[Name], note: Note[None]) -> list[Name]:
        name = eqn.primitive.name
        rule = record_of(name).name
        named = None if rule is None else rule(eqn, values)
        unit, key = (1, ("new", name, settings_of(eqn), *values)) if named is None else named
        if not (isinstance(key, tuple) and key[0] == "new"):
            return [(unit, key)]
        # A number stands for what computes a value: keys stay short however long the way to it.
        number = self.numbers.setdefault(key, len(self.numbers))
        return [(unit, ("value", number, i)) for i in range(len(eqn.outvars))]
