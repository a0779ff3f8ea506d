"""What the tasks share: a generator from a key, checked sizes, and the error of missing data."""

from __future__ import annotations

import math
from numbers import Real

import jax
import numpy as np

from .._arguments import MOST, check_key, format_bytes, short
from .._compat import is_extended
from .._errors import EtraxError, MissingPackageError
from ..learn import default_budget

# What a task is drawn from: a whole number, or a key of `jax.random`.
Key = int | np.integer | jax.Array | np.ndarray


class TaskError(EtraxError, ValueError):
    """A size, a rate or an array that no task can be made of."""


class MissingDataError(MissingPackageError):
    """Data of a package that is not installed."""


def generator(what: str, key: Key) -> np.random.Generator:
    """A NumPy generator fixed by the key: the same sequences on every version and precision of JAX."""
    key = check_key(f"`{what}`", key)
    data = jax.random.key_data(key) if is_extended(key) else key
    return np.random.default_rng(np.asarray(data).tolist())


def check_sizes(what: str, least: int = 1, **sizes: int) -> None:
    """Whole numbers, each at least `least`."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MOST:
            end = f" and at most {MOST}" if isinstance(value, int | np.integer) and value > MOST else ""
            raise TaskError(f"`{what}` takes a whole number of at least {least}{end} as `{name}`, got {short(value)}.")


def check_room(what: str, *shape: int) -> None:
    """An array of that shape fits into memory while it is drawn: 12 bytes a number."""
    size = 12 * math.prod(shape)
    if size > default_budget():
        raise TaskError(
            f"`{what}` of {' × '.join(map(str, shape))} numbers takes {format_bytes(size)}, more than half of the "
            "memory here: make it smaller."
        )


def check_probability(what: str, **values: float) -> None:
    """Numbers from 0 to 1."""
    for name, value in values.items():
        if not is_number(value) or not 0 <= value <= 1:
            raise TaskError(f"`{what}` takes a `{name}` from 0 to 1, got {short(value)}.")


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
