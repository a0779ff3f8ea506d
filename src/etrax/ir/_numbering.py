"""Value numbering: which results of a jaxpr are equal whatever it is given, because they are computed alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from .._compat import INLINED, Jaxpr, Literal, inner_jaxpr, open_jaxpr


def number_outputs(closed: Any) -> list[Hashable]:
    """A key per output of a closed jaxpr; outputs with equal keys have equal values."""
    jaxpr, consts = open_jaxpr(closed)
    numbers: dict[Hashable, int] = {}
    args = [("arg", i) for i in range(len(jaxpr.invars))]
    return _walk(jaxpr, [_constant(c) for c in consts], args, numbers)


def _walk(jaxpr: Jaxpr, consts: Sequence[Hashable], args: Sequence[Hashable], numbers: dict) -> list[Hashable]:
    keys: dict[Any, Hashable] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(v: Any) -> Hashable:
        return _constant(v.val) if isinstance(v, Literal) else keys[v]

    for eqn in jaxpr.eqns:
        ins = [read(v) for v in eqn.invars]
        if eqn.primitive.name in INLINED:
            body, inner = inner_jaxpr(eqn)
            outs = _walk(body, [_constant(c) for c in inner], ins, numbers)
        else:
            # A number stands for what computes a value: keys stay short however long the way to it.
            key = (eqn.primitive.name, _settings(eqn.params), tuple(ins))
            number = numbers.setdefault(key, len(numbers))
            outs = [("value", number, i) for i in range(len(eqn.outvars))]
        keys.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _settings(params: dict[str, Any]) -> Hashable:
    """Parameters of an equation by what they are; those that hold code only equal themselves."""
    return tuple((k, repr(v)) if _plain(v) else (k, id(v)) for k, v in sorted(params.items()))


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(v) for v in value)
    return isinstance(value, str | int | float | bool | np.dtype | type(None))


def _constant(value: Any) -> Hashable:
    """Constants of one number are equal if it is; others only equal themselves."""
    a = np.asarray(value) if getattr(value, "dtype", np.dtype(float)).kind in "biufc" else None
    if a is None or not a.size or not (a == a.flat[0]).all():
        return ("constant", id(value))
    return ("fill", a.shape, str(a.dtype), a.flat[0].item())
