"""Paths: the tuple of keys, attribute names and indices from the root of a pytree to a leaf."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from ..._errors import visible
from ._types import PyTree

Path: TypeAlias = tuple[Any, ...]


class Objects(NamedTuple):
    """What a modelling library puts into trees; its front end hands this over.

    `holds_number(x)`: x is one leaf, an array `x.mantissa` with a unit `x.unit`. `wraps_value(x)`: x is a node around
    one value, which has the path of x; it is asked once `module` is imported. `shorten(text, brief)`: a key that is a
    whole description, in short.
    """

    module: str = ""
    holds_number: Callable[[object], bool] | None = None
    wraps_value: Callable[[object], bool] | None = None
    shorten: Callable[[str, bool], str] | None = None


_LIBRARIES: list[Objects] = []


def add_library(objects: Objects) -> None:
    """Make the objects of a library known to paths."""
    _LIBRARIES.append(objects)


def _key(entry: Any) -> Path:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            value = getattr(entry, attribute)
            return value if isinstance(value, tuple) else (value,)
    return (str(entry),)


def leaves_with_paths(tree: PyTree) -> list[tuple[Path, PyTree]]:
    """Leaves in flattening order, each with its path; a bare array has path `()`.

    A dictionary key that is itself a tuple (as in flat dictionaries of states) is spliced in. A node around one value
    has the path of that value (`Objects`).

    >>> leaves_with_paths({"rnn": {"w": 1.0}, "b": [2.0]})
    [(('b', 0), 2.0), (('rnn', 'w'), 1.0)]
    """
    entries, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_holds_number)
    wrappers, out = _wrappers(tree), []
    for path, leaf in entries:
        # The key behind a wrapper is the wrapper's own name for its value.
        depth = next((n for n in range(len(path)) if path[:n] in wrappers), len(path))
        keys = path[:depth] + path[depth + 1 :]
        out.append((sum((_key(e) for e in keys), ()), getattr(leaf, "mantissa", leaf)))
    return out


def units_of(tree: PyTree) -> list[str]:
    """Of each leaf, in the same order: " in mV", or nothing where it is without a unit."""
    return [f" in {x.unit}" if _holds_number(x) else "" for x in jax.tree.leaves(tree, is_leaf=_holds_number)]


def _holds_number(x: object) -> bool:
    return any(library.holds_number(x) for library in _LIBRARIES if library.holds_number)


def _wrappers(tree: PyTree) -> set[Path]:
    """Where the nodes are that wrap one value. Most programs load no library with such: trees are flattened often."""
    checks = [library.wraps_value for library in _LIBRARIES if library.wraps_value and library.module in sys.modules]
    if not checks:
        return set()
    nodes, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: any(wraps(x) for wraps in checks))
    return {path for path, node in nodes if any(wraps(node) for wraps in checks)}


LONG = 60


def _shown(key: object) -> str:
    """A key as it is, or in short if it is a whole description; what is cut off is told apart by four digits."""
    text = visible(_shortened(str(key), False))
    if len(text) <= LONG:
        return text
    text = visible(_shortened(str(key), True))
    return f"{text[: LONG - 6]}…{zlib.crc32(str(key).encode('utf-8', 'surrogatepass')) % 10**4:04d}"


def _shortened(text: str, brief: bool) -> str:
    for library in _LIBRARIES:
        text = library.shorten(text, brief) if library.shorten else text
    return text


def format_path(path: Path, root: str = "(bare array)") -> str:
    """A path as people write it; `root` names the whole tree.

    >>> format_path(("rnn", "w")), format_path((), "hidden"), format_path(("layers", 0, "w"))
    ("'rnn.w'", "'hidden'", "'layers[0].w'")
    A key that is a whole description (libraries make such) is said in short, and no two of them alike.
    """
    text = ""
    for key in path:
        shown = _shown(key)
        text += f"[{key}]" if isinstance(key, int) else (f".{shown}" if text else shown)
    return f"'{text or root}'" if not text.startswith("[") else f"'{root}{text}'"


def is_at(path: Path, asked: object) -> bool:
    """Whether a path is the one asked for: by a tuple of keys, by its only key, or by its name as reports write it.

    >>> is_at(("rnn", "w"), "rnn.w"), is_at(("rnn", "w"), ("rnn", "w")), is_at(("rnn", "w"), "w")
    (True, True, False)
    """
    if isinstance(asked, str):
        return path == (asked,) or (path != () and format_path(path)[1:-1] == asked)
    return isinstance(asked, tuple) and path == asked


def lies_under(path: Path, asked: str | Path) -> bool:
    """Whether a path begins with the one asked for, which is given as `is_at` takes it.

    >>> lies_under(("net", "rnn", "w"), "net.rnn"), lies_under(("net", "rnn", "w"), "net.r")
    (True, False)
    """
    if isinstance(asked, tuple):
        return path[: len(asked)] == asked
    return any(is_at(path[:n], asked) for n in range(1, len(path) + 1))
