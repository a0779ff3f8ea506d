"""What Etrax raises. Each message names what was found, where, and what to do."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable
from types import ModuleType

from ._install import install_advice

# What a terminal obeys or a reader cannot see: control characters but line ends and tabs, halves of characters, marks
# that turn the direction of text around, separators and tags that take no room.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: object) -> str:
    r"""A text that may hold foreign names, with what a terminal would obey written out.

    >>> print(visible("w\x1b[2J and \u202e"))
    w\x1b[2J and \u202e
    """
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), str(text))


# Names of types stand behind an article in messages: "is an int".
_BEFORE_A_VOWEL = re.compile(r"\ba (?=(?:int|object|array|Array|ArrayImpl|Exception|Online|OnlineResult|Epoch)\b)")


class EtraxError(Exception):
    """Base of every error that Etrax raises on purpose. Names from a model or a file in it are made visible.

    >>> str(EtraxError("`model` is a int"))
    '`model` is an int'
    """

    def __str__(self) -> str:
        return _BEFORE_A_VOWEL.sub("an ", visible(super().__str__()))


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


class ArtifactError(EtraxError, ValueError):
    """A file that is no artifact, was cut short or changed, or is of another version."""


def need(package: str, what: str, extra: str) -> ModuleType:
    """Import an optional package for `what`, or say which extra brings it.

    >>> need("absent", "`etrax.nir`", "nir")
    Traceback (most recent call last):
    etrax._errors.MissingPackageError: `etrax.nir` needs absent, which is not installed: ...
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:  # the package is there, and lacks something else
            raise
        raise MissingPackageError(
            f"{what} needs {error.name}, which is not installed: {install_advice(extra)}."
        ) from error


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """A question to end a message with, if a known name is near; else nothing.

    >>> did_you_mean("hiden", ["hidden", "params"])
    ' Did you mean `hidden`?'
    """
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(word.lower(), by_lower, 1)
    return f" Did you mean `{by_lower[near[0]]}`?" if near else ""
