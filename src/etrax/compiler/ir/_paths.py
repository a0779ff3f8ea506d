"""Paths: the tuple of keys, attribute names and indices from the root of a pytree to a leaf."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from ..._errors import visible
from ._types import PyTree

Path: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Notation:
    """How the values and names of a modelling library are read. Its front end hands it over.

    `wraps` says whether a value is a tree around one array, whose path is then that of the value. `unit` gives the
    physical unit of a value, or None. `shorten` writes a key that is a whole description in short, or still shorter if
    its second argument asks for that.
    """

    wraps: Callable[[object], bool] = lambda value: False
    unit: Callable[[Any], object] = lambda value: None
    shorten: Callable[[str, bool], str] = lambda key, briefly: key


_NOTATIONS: list[Notation] = []


def use_notation(notation: Notation) -> None:
    """Read trees of a library in its notation from now on."""
    _NOTATIONS.append(notation)


# What trees are mostly made of, and no library's wrapper: asked first, since every node of every tree is looked at.
_NO_WRAPPERS = frozenset({dict, list, tuple, type(None), int, float, np.ndarray, jax.ShapeDtypeStruct})


def _is_wrapper(value: object) -> bool:
    return type(value) not in _NO_WRAPPERS and any(notation.wraps(value) for notation in _NOTATIONS)


def _unit(value: object) -> object:
    return next((u for notation in _NOTATIONS if (u := notation.unit(value)) is not None), None)


def _key(entry: Any) -> tuple[Any, ...]:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            value = getattr(entry, attribute)
            return value if isinstance(value, tuple) else (value,)
    return (str(entry),)


def leaves_with_paths(tree: PyTree) -> list[tuple[Path, PyTree]]:
    """Leaves in flattening order, each with its path; a bare array has path `()`.

    A dictionary key that is itself a tuple (as in brainstate's flat state dictionaries) is spliced in. A value that
    wraps an array, in the notation of a library, has the path of the array.

    >>> leaves_with_paths({"rnn": {"w": 1.0}, "b": [2.0]})
    [(('b', 0), 2.0), (('rnn', 'w'), 1.0)]
    """
    entries, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree and _is_wrapper(x))
    first = int(_is_wrapper(tree))  # the key under which a wrapper holds its value is no part of the path
    out = []
    for path, leaf in entries:
        keys = sum((_key(entry) for entry in path[first:]), ())
        inside = leaves_with_paths(leaf) if leaf is not tree and _is_wrapper(leaf) else [((), leaf)]
        out += [((*keys, *rest), value) for rest, value in inside]
    return out


def units_of(tree: PyTree) -> list[str]:
    """Per leaf, its unit in words (" in mV"), or nothing where it has none."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: _unit(x) is not None)
    return ["" if (unit := _unit(leaf)) is None else f" in {unit}" for leaf in leaves]


LONG = 60


def _shown(key: Any) -> str:
    """A key as it is, or in short if it is a whole description; what is cut off is told apart by four digits."""

    def in_short(briefly: bool) -> str:
        text = str(key)
        for notation in _NOTATIONS:
            text = notation.shorten(text, briefly)
        return visible(text)

    text = in_short(briefly=False)
    if len(text) <= LONG:
        return text
    return f"{in_short(briefly=True)[: LONG - 6]}…{zlib.crc32(str(key).encode('utf-8', 'surrogatepass')) % 10**4:04d}"


class NamedPath(tuple[Any, ...]):
    """A path, and a shorter one that leads to the same leaf and by which people call it.

    Libraries that share a module between others find it by the first of its ways, which may be the longest. It equals
    the plain path and is a key like it.

    >>> path = NamedPath(("e2e", "post", "V"), ("exc", "V"))
    >>> path == ("e2e", "post", "V"), format_path(path)
    (True, "'exc.V'")
    """

    short: Path

    def __new__(cls, path: Path, short: Path) -> NamedPath:
        self = super().__new__(cls, path)
        self.short = short
        return self

    def __getnewargs__(self) -> tuple[Path, Path]:
        return tuple(self), self.short


def short_path(path: Path) -> Path:
    """The path by which people call a leaf."""
    return path.short if isinstance(path, NamedPath) else path


def format_path(path: Path, root: str = "(bare array)") -> str:
    """A path as people write it; `root` names the whole tree.

    >>> format_path(("rnn", "w")), format_path((), "hidden"), format_path(("layers", 0, "w"))
    ("'rnn.w'", "'hidden'", "'layers[0].w'")

    A key that is a whole description (libraries make such) is said in short, and no two of them alike.
    """
    text = ""
    for key in short_path(path):
        shown = _shown(key)
        text += f"[{key}]" if isinstance(key, int) else (f".{shown}" if text else shown)
    return f"'{text or root}'" if not text.startswith("[") else f"'{root}{text}'"


def is_at(path: Path, asked: object) -> bool:
    """Whether a path is the one asked for: by a tuple of keys, by its only key, or by its name as reports write it.

    A path with a shorter one answers to both.

    >>> is_at(("rnn", "w"), "rnn.w"), is_at(("rnn", "w"), ("rnn", "w")), is_at(("rnn", "w"), "w")
    (True, True, False)
    """
    paths = dict.fromkeys((tuple(path), short_path(path)))
    if isinstance(asked, str):
        return any(p == (asked,) or (p != () and format_path(p)[1:-1] == asked) for p in paths)
    return isinstance(asked, tuple) and any(p == asked for p in paths)


def lies_under(path: Path, asked: str | Path) -> bool:
    """Whether a path begins with the one asked for, which is given as `is_at` takes it.

    >>> lies_under(("net", "rnn", "w"), "net.rnn"), lies_under(("net", "rnn", "w"), "net.r")
    (True, False)
    """
    paths = dict.fromkeys((tuple(path), short_path(path)))
    if isinstance(asked, tuple):
        return any(p[: len(asked)] == asked for p in paths)
    return any(is_at(p[:n], asked) for p in paths for n in range(1, len(p) + 1))
