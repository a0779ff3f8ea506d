"""Arithmetic on indices by numpy: JAX would compile a program for every equation of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._compat import JaxprEqn


def _broadcast(eqn: JaxprEqn, a: np.ndarray) -> np.ndarray:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    held = [a.shape[axes.index(i)] if i in axes else 1 for i in range(len(shape))]
    return np.broadcast_to(a.reshape(held), shape)


def _iota(eqn: JaxprEqn) -> np.ndarray:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    along = [shape[axis] if i == axis else 1 for i in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis]).reshape(along), shape)


_BY_NUMPY: dict[str, Callable[..., Any]] = {
    "add": lambda eqn, a, b: a + b,
    "sub": lambda eqn, a, b: a - b,
    "mul": lambda eqn, a, b: a * b,
    "eq": lambda eqn, a, b: a == b,
    "ne": lambda eqn, a, b: a != b,
    "lt": lambda eqn, a, b: a < b,
    "le": lambda eqn, a, b: a <= b,
    "gt": lambda eqn, a, b: a > b,
    "ge": lambda eqn, a, b: a >= b,
    "max": lambda eqn, a, b: np.maximum(a, b),
    "min": lambda eqn, a, b: np.minimum(a, b),
    "and": lambda eqn, a, b: a & b,
    "or": lambda eqn, a, b: a | b,
    "select_n": lambda eqn, which, *cases: np.select([which == i for i in range(len(cases))], cases),
    "convert_element_type": lambda eqn, a: a,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda eqn, a: a.reshape(eqn.params["new_sizes"]),
    "squeeze": lambda eqn, a: a.reshape(eqn.outvars[0].aval.shape),
    "concatenate": lambda eqn, *parts: np.concatenate(parts, eqn.params["dimension"]),
    "iota": _iota,
}


def whole_numbers(eqn: JaxprEqn, values: Sequence[Any]) -> np.ndarray | None:
    """The result of an equation on whole numbers or truth values; None if it is another."""
    made, out = _BY_NUMPY.get(eqn.primitive.name), eqn.outvars[0].aval
    plain = all(isinstance(a, np.ndarray) and a.dtype.kind in "biu" for a in values)
    if made is None or not plain or getattr(out.dtype, "kind", "") not in "biu":
        return None
    with np.errstate(over="ignore"):  # they wrap around, as JAX's do
        return np.broadcast_to(np.asarray(made(eqn, *values)), out.shape).astype(out.dtype)
