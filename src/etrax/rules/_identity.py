"""What makes two rules the same rule: equal options, and functions of equal code over equal values."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np

from .._compat import is_concrete, is_extended


class _Itself:
    """Stands for an object that is equal to nothing else."""

    def __init__(self, value: Any):
        self.value = value  # held, so that its number is not given to another

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def identity(value: Any, within: tuple[int, ...] = ()) -> Hashable:
    """A hashable that is equal for values that do the same.

    Arrays and random keys are compared by their numbers. A function made anew by each call of another one is compared
    by its code and by what it has closed over, so that two rules of equal options are equal, and two with different
    ones are not, whether or not their author has listed the difference.

    >>> make = lambda n: lambda x: x + n
    >>> identity(make(1)) == identity(make(1)), identity(make(1)) == identity(make(2))
    (True, False)
    """
    if id(value) in within:  # a function that refers to itself
        return "itself", len(within) - within.index(id(value))
    inner = (*within, id(value))
    if isinstance(value, types.FunctionType):
        cells = tuple(identity(c.cell_contents, inner) for c in value.__closure__ or ())
        defaults = identity((value.__defaults__, value.__kwdefaults__), inner)
        return value.__code__, id(value.__globals__), cells, defaults
    if isinstance(value, types.MethodType):
        return identity(value.__func__, inner), identity(value.__self__, inner)
    if isinstance(value, functools.partial):
        return "partial", identity((value.func, value.args, value.keywords), inner)
    if isinstance(value, Mapping):
        return "mapping", tuple((identity(k, inner), identity(v, inner)) for k, v in value.items())
    if isinstance(value, tuple | list):
        return type(value), tuple(identity(v, inner) for v in value)
    if isinstance(value, np.ndarray | np.generic | jax.Array) and is_concrete(value):
        if isinstance(value, jax.Array) and is_extended(value):
            value = jax.random.key_data(value)
        numbers = np.asarray(value)
        return str(value.dtype), numbers.shape, numbers.tobytes()
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return type(value) is bool, value  # True is not the number 1
