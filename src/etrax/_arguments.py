"""Checks of arguments that many functions take: numbers, arrays, keys. Each error names what was found."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path as Path_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._compat import is_concrete, is_inexact, shape_struct
from ._errors import ArgumentError, ArgumentTypeError, visible
from .compiler.ir import Path, PyTree, format_path, leaves_with_paths
from .compiler.ir import Role as Role


def struct_of(what: str, value: object) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array of numbers; `what` names the argument and the place in it."""
    if isinstance(value, jax.ShapeDtypeStruct):
        raise ArgumentError(f"{what} is a shape without values ({value.dtype}{list(value.shape)}): pass an array.")
    if isinstance(value, jax.Array) and is_concrete(value) and value.is_deleted():
        raise ArgumentError(
            f"{what} was donated: a function with `donate=True` (and a stream) overwrites the state that you pass. "
            "Continue with the state that it returned, or pass a copy: `jax.tree.map(jnp.copy, state)`."
        )
    try:
        struct = shape_struct(value)
    except (TypeError, ValueError, OverflowError):
        struct = None
    if struct is None or getattr(struct.dtype, "kind", "key") in tuple("OSUMm"):  # objects, text, dates
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        rows = " Rows of different lengths make objects: pad them, and pass a mask." if "of object" in kind else ""
        raise ArgumentTypeError(f"{what} is {kind}, not an array of numbers.{rows}")
    return struct


def as_numbers(what: str, value: object) -> np.ndarray:
    """A numpy array of numbers or booleans, from whatever numpy takes for one."""
    try:
        numbers = np.asarray(value)
    except Exception:  # numpy, and what it asks the object for, may raise anything
        numbers = np.asarray(None)
    if numbers.dtype.kind not in "biufc" and not (isinstance(value, jax.Array) and is_inexact(value)):
        kind = f"an array of {numbers.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise ArgumentTypeError(f"{what} is {kind}; expected an array of numbers.")
    return numbers


def check_arrays(what: str, tree: PyTree) -> None:
    """Every leaf of an argument is an array that can be read."""
    for path, leaf in leaves_with_paths(tree):
        struct_of(_at(what, path), leaf)


def _at(what: str, path: Path) -> str:
    return f"`{what}` at {format_path(path, what)}" if path else f"`{what}`"


# No axis is longer than this: it can be numbered by 32 bits.
MOST = 2**31 - 1
FOREIGN = 120  # characters of a foreign text in a message


def check_whole(what: str, value: object, unit: str, least: int = 1, most: int | None = MOST) -> int:
    number = _whole(value)
    if number is None or number < least or (most is not None and number > most):
        end = f", at most {most}" if number is not None and number >= least else ""
        kind = ArgumentTypeError if number is None else ArgumentError
        raise kind(f"`{what}` is {short(value)}; expected a whole number of {unit}, at least {least}{end}.")
    return number


def _whole(value: object) -> int | None:
    """A whole number as Python's own; None for anything else, truth values included."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool | np.bool_) else None


def check_flag(what: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"`{what}` is {short(value)}; expected True or False.")
    return bool(value)


def check_function(what: str, value: object, takes: str, arguments: int | None = None) -> Callable[..., Any]:
    """Refuse what cannot be called, and with `arguments` what cannot be called with so many of them by position."""
    if not callable(value):
        raise ArgumentTypeError(f"`{what}` is a {type(value).__name__}; expected a function of {takes}.")
    if arguments is not None and not _accepts(value, arguments):
        raise ArgumentTypeError(f"`{what}` cannot be called with {takes}; expected a function of {takes}.")
    return value


def _accepts(function: Callable[..., object], arguments: int) -> bool:
    if isinstance(function, type):  # a class makes an object of its argument; a hook is called for what it does
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def check_number(rule: str, name: str, value: object, low: float, high: float, text: str, *, ends: str = "[)") -> float:
    """A number between two bounds, as it is; `ends` says which of them are included."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool | np.bool_) else math.nan
    except OverflowError:  # a whole number beyond all floating-point numbers
        number = math.nan
    above = number >= low if ends[0] == "[" else number > low
    below = number <= high if ends[1] == "]" else number < high
    if not (above and below and math.isfinite(number)):
        raise ArgumentError(f"`{rule}` takes a `{name}` {text}, got {short(value)}.")
    return number


def check_decay(rule: str, name: str, value: object, *, closed: bool = False) -> float:
    """A leak from 0 up to 1 (`closed`: 1 itself included)."""
    end = "to 1" if closed else "up to but not including 1"
    return check_number(rule, name, value, 0, 1, f"from 0 {end}", ends="[]" if closed else "[)")


def check_key(what: str, key: Any) -> jax.Array:
    """A `jax.random` key, or a whole number to make one of."""
    number = _whole(key)
    if number is not None and -(2**31) <= number < 2**32:
        return jax.random.key(number)
    array = isinstance(key, jax.Array | np.ndarray)
    typed = array and not isinstance(key.dtype, np.dtype) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    shape = getattr(key, "shape", None)
    if not (typed and shape == ()) and not (array and key.dtype == jnp.uint32 and shape == (2,)):
        raise ArgumentError(
            f"{what} needs `key=`, a whole number of 32 bits or a key such as `jax.random.key(0)`; got {short(key)}."
        )
    return jnp.array(key) if isinstance(key, np.ndarray) else jnp.asarray(key)  # an array of numpy may change


def check_path(what: str, value: object) -> Path_:
    """The name of a file or directory."""
    if not isinstance(value, str | os.PathLike) or isinstance(value, bytes) or "\0" in str(value):
        raise ArgumentTypeError(f"`{what}` is {short(value)}; pass the name of a file or directory.")
    return Path_(value)


def short(value: object) -> str:
    """A value in a message, not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object that cannot even be shown
        return f"a {type(value).__name__}"
    text = visible(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def foreign(value: object) -> str:
    """A value from a file in a message: short, and nothing that a terminal would obey."""
    text = visible(value)
    return text if len(text) <= FOREIGN else f"{text[:FOREIGN]}…"


def format_bytes(n: float) -> str:
    """
    >>> format_bytes(0), format_bytes(1536), format_bytes(2.5e9)
    ('0 B', '1.54 kB', '2.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def parse_bytes(name: str, budget: object) -> float | None:
    """A number of bytes, or a text such as "500 MB".

    >>> parse_bytes("memory", "1.5GB"), parse_bytes("memory", 2048), parse_bytes("memory", None)
    (1500000000.0, 2048.0, None)
    """
    if budget is None:
        return None
    text = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kMGT]?)B\s*", budget) if isinstance(budget, str) else None
    if text is not None and float(text[1]) > 0:
        return float(text[1]) * 1000 ** " kMGT".index(text[2] or " ")
    try:
        number = float(budget) if isinstance(budget, Real) and not isinstance(budget, bool) else math.nan
    except OverflowError:  # a whole number beyond all floating-point numbers
        number = math.inf
    if not 0 < number < math.inf:
        raise ArgumentError(f"`{name}` is {short(budget)}; expected a number of bytes, or a text such as '2 GB'.")
    return number


def shown_by_treescope(
    thing: object, names: Sequence[str], path: str | None, subtree_renderer: Callable[..., object]
) -> object:
    """The rendering of an object by its attributes, for `__treescope_repr__`, which only treescope calls."""
    from treescope import repr_lib

    attributes = {name: getattr(thing, name) for name in names}
    return repr_lib.render_object_constructor(
        object_type=type(thing),
        attributes=attributes,
        path=path,
        subtree_renderer=subtree_renderer,  # type: ignore[arg-type]
    )
