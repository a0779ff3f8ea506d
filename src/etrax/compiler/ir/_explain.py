"""An exception in a function of the user's, in words: which one, where, and what the function was given."""

from __future__ import annotations

import linecache
import os
import traceback
from collections.abc import Mapping

import jax
import numpy as np

from ..._compat import PLUMBING, is_in, is_installed, shape_struct
from ..._errors import EtraxError, visible
from ._paths import format_path, leaves_with_paths, units_of
from ._source import OWN_FILES, OWN_MODELS
from ._types import PyTree

_FOREIGN = tuple(os.path.dirname(os.path.abspath(m.__file__)) + os.sep for m in (jax, np) if m.__file__)
# More leaves of one argument than this are counted, not listed.
MOST = 8
# A first line below this length may be the beginning of a sentence; a sentence above the other is cut in its middle.
SHORT, LONG = 24, 240


def explain(what: str, error: Exception, arguments: Mapping[str, PyTree]) -> str:
    """`what` raised: the exception, the line of the user's code, the arguments by name.

    >>> def loss(output, target):
    ...     return output - target
    >>> try:
    ...     loss(1.0, None)
    ... except TypeError as error:
    ...     text = explain("`loss_fn`", error, {"output": 1.0, "target": None})
    >>> print(text.splitlines()[0].split(" at ")[0])
    `loss_fn` raised TypeError: unsupported operand type(s) for -: 'float' and 'NoneType'
    """
    shown = "\n".join(f"  {name}: {describe(tree, name)}" for name, tree in arguments.items())
    message = _said(error)
    message = f": {message}" if message else ""
    return f"{what} raised {type(error).__name__}{message}{_where(error)}\nIt was given\n{shown}"


def _said(error: Exception) -> str:
    r"""The first line of an error's text, and the rest where that line only begins a sentence.

    >>> _said(ValueError("Cannot calculate \n3 mV + 2 ms, because units do not match"))
    'Cannot calculate 3 mV + 2 ms, because units do not match'
    """
    first, _, rest = str(error).strip().partition("\n")
    if rest and len(first) < SHORT:
        first = " ".join(f"{first} {rest}".split())
        first = first if len(first) <= LONG else f"{first[: LONG // 2]} … {first[-LONG // 2 :]}"
    first = first.rstrip(".")
    if isinstance(error.__cause__, Exception):  # a library that says where, of an error that says what
        return f"{first}, from {type(error.__cause__).__name__}: {_said(error.__cause__)}"
    return first


def explained(kind: type[EtraxError], error: Exception, text: str) -> EtraxError:
    """An error of ours that is also of the type that the user's function raised: who expects that one, catches it.

    >>> error = explained(EtraxError, KeyError("v"), "the step raised KeyError: 'v'")
    >>> isinstance(error, EtraxError), isinstance(error, KeyError), str(error)
    (True, True, "the step raised KeyError: 'v'")
    """
    if isinstance(error, kind):
        return kind(text)
    methods = {
        "__init__": lambda self, text: Exception.__init__(self, text),
        "__str__": lambda self: visible(self.args[0]),
    }
    try:
        return type(kind.__name__, (kind, type(error)), {**methods, "__module__": kind.__module__})(text)
    except TypeError:  # built-in types of another layout, such as `OSError`
        return kind(text)


def describe(tree: PyTree, root: str) -> str:
    """What a tree holds: its leaves by path, type, shape and unit, or that there are none."""
    leaves = leaves_with_paths(tree)
    if not leaves:
        return "nothing"
    texts = [_leaf(leaf) + unit for (_, leaf), unit in zip(leaves, units_of(tree), strict=True)]
    parts = [f"{format_path(p, root)} {t}" if p else t for (p, _), t in zip(leaves[:MOST], texts, strict=False)]
    return ", ".join(parts) + (f" and {len(leaves) - MOST} more" if len(leaves) > MOST else "")


def _leaf(value: object) -> str:
    try:
        aval = shape_struct(value)
    except (TypeError, ValueError):
        return f"a {type(value).__name__}"
    return f"{aval.dtype}{list(aval.shape)}"


def _where(error: Exception) -> str:
    """The innermost line that is neither JAX's, nor Etrax's, nor (if there is another) a modelling library's."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_FOREIGN)
        and not (frame.filename.startswith(OWN_FILES) and not frame.filename.startswith(OWN_MODELS))
        and not is_in(frame.filename, PLUMBING)
        and not frame.filename.startswith("<frozen")
    ]
    in_model = [f for f in frames if not is_installed(f.filename) and not f.filename.startswith(OWN_MODELS)]
    if not (in_model or frames):
        return ""
    frame = (in_model or frames)[-1]
    line = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    return f" at {os.path.basename(frame.filename)}:{frame.lineno} ({frame.name})" + (f": {line}" if line else "")
