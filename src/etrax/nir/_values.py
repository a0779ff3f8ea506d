"""The numbers of a node, checked: finite, time constants above zero, counts that are whole."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import short
from .._errors import ArgumentError
from ._nodes import KINDS, Shape, Values

# Fields that divide a step's length.
TIME_CONSTANTS = frozenset({"tau", "tau_syn", "tau_mem"})
# Fields that count, with the least that they may be.
COUNTS = {"stride": 1, "dilation": 1, "groups": 1, "kernel_size": 1, "padding": 0}
WORDS = ("same", "valid", b"same", b"valid")  # of a padding
# Numbers in one array of a network, and in all of its states; more is a mistake in a shape.
MOST = 2**26


def numbers_of(node: object, dtype: jnp.dtype) -> Values:
    """What may be trained in a node, by field."""
    numbers: dict[str, jax.Array] = {}
    for field in KINDS[type(node).__name__].numbers:
        value = getattr(node, field, None)
        if value is None and field == "bias":
            continue
        array = _real(field, value)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            array = array.astype(dtype)
        if not np.isfinite(array).all():
            raise ArgumentError(f"its `{field}` holds numbers that are not finite in {dtype}: {short(value)}.")
        if field in TIME_CONSTANTS and not (array > 0).all():
            raise ArgumentError(
                f"its `{field}` holds time constants that are not above zero in {dtype}: {short(value)}."
            )
        numbers[field] = jnp.asarray(array)
    return numbers


def check_settings(node: object) -> None:
    """What says how a node works: counts and delays."""
    for field, least in COUNTS.items():
        value = getattr(node, field, None)
        if value is None or (isinstance(value, str | bytes) and field == "padding" and value in WORDS):
            continue
        array = _real(field, value)
        if array.ndim > 1 or not (np.isfinite(array).all() and (array == np.rint(array)).all()):
            raise ArgumentError(f"its `{field}` is {short(value)}; expected a whole number, or one for each axis.")
        if not ((array >= least) & (array < 2**31)).all():
            raise ArgumentError(f"its `{field}` is {short(value)}; expected at least {least}.")
    if type(node).__name__ == "Delay":
        array = _real("delay", getattr(node, "delay", None))
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise ArgumentError(f"its `delay` holds numbers that are negative or not finite: {short(array.tolist())}.")


def _real(field: str, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ArgumentError(f"its `{field}` is {short(value)}; expected real numbers.")
    return array


def check_shape(what: str, shape: Iterable[object]) -> Shape:
    """Whole numbers, none of them below zero, of an array that fits into memory."""
    listed = list(shape)
    are_whole = all(
        isinstance(n, int | np.integer) or (isinstance(n, float | np.floating) and n == n // 1) for n in listed
    )
    sizes = tuple(int(n) for n in listed) if are_whole else ()  # type: ignore[call-overload]
    if not are_whole or any(n < 0 for n in sizes) or int(np.prod(sizes, dtype=object)) > MOST:
        raise ArgumentError(
            f"{what} has the shape {short(listed)}; expected whole numbers, and no more than {MOST:,} elements."
        )
    return sizes
