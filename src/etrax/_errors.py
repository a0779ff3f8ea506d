"""What Etrax raises. Each message names what was found, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EtraxError(Exception):
    """Base of every error that Etrax raises on purpose."""


class CompilationError(EtraxError, ValueError):
    """A model or call that cannot be compiled: bad structure, shape, dtype or use."""


class ArgumentError(EtraxError, ValueError):
    """An argument whose type, structure, shape, dtype or length does not fit."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument that is another kind of thing than is asked for."""


class MissingPackageError(EtraxError, ImportError):
    """An optional package that is not installed."""


class NotSupportedError(EtraxError, NotImplementedError):
    """A model that is well formed but outside what the compiler or a rule can serve."""


def meant(word: str, known: Iterable[str]) -> str:
    """A question to end a message with, if a known name is near; else nothing.

    >>> meant("hiden", ["hidden", "params"])
    ' Did you mean `hidden`?'
    """
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, 1)
    return f" Did you mean `{by_lower[near[0]]}`?" if near else ""
