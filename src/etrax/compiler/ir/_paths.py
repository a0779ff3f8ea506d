"""Paths: the tuple of keys, attribute names and indices from the root of a pytree to a leaf."""

from __future__ import annotations

import re
import sys
import zlib
from typing import Any, TypeAlias

import jax

from ..._errors import visible
from ._types import PyTree

Path: TypeAlias = tuple[Any, ...]


def _key(entry: Any) -> tuple[Any, ...]:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            value = getattr(entry, attribute)
            return value if isinstance(value, tuple) else (value,)
    return (str(entry),)


def leaves_with_paths(tree: PyTree) -> list[tuple[Path, PyTree]]:
    """Leaves in flattening order, each with its path; a bare array has path `()`.

    A dictionary key that is itself a tuple (as in brainstate's flat state dictionaries) is spliced in. A variable of
    Flax has the path of the number that it holds.

    >>> leaves_with_paths({"rnn": {"w": 1.0}, "b": [2.0]})
    [(('b', 0), 2.0), (('rnn', 'w'), 1.0)]
    """
    entries, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_has_unit)
    holders = _variables(tree)
    out = []
    for path, leaf in entries:
        depth = next((n for n in range(len(path)) if path[:n] in holders), len(path))
        keys = path[:depth] + path[depth + 1 :]
        out.append((sum((_key(e) for e in keys), ()), getattr(leaf, "mantissa", leaf)))
    return out


def units_of(tree: PyTree) -> list[str]:
    """Of each leaf, in the same order: " in mV", or nothing where it is without a unit."""
    return [f" in {x.unit}" if _has_unit(x) else "" for x in jax.tree.leaves(tree, is_leaf=_has_unit)]


def _variables(tree: PyTree) -> set[tuple[Any, ...]]:
    """Where the variables of Flax are in a tree."""
    if "flax.nnx" not in sys.modules:
        return set()
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_variable)
    return {path for path, leaf in found if _is_variable(leaf)}


def _has_unit(x: Any) -> bool:
    """A quantity with a physical unit: its path is that of the number that it holds."""
    return type(x).__name__ == "Quantity" and hasattr(x, "mantissa")


def _is_variable(x: Any) -> bool:
    """A `flax.nnx.Variable`, which is a tree around one value."""
    return any(c.__name__ == "Variable" and c.__module__.startswith("flax.nnx") for c in type(x).__mro__)


# What brainpy.state calls a part that it makes from a description: class, arguments, options.
_MADE = re.compile(r"\(<class '(?:\w+\.)*(\w+)'>, \([^()]*\), \{(.*?)\}\)")
_OPTION = re.compile(r"'(\w+)': (?:'([^']*)'|([^,]+))")
LONG = 60


def _shown(key: Any) -> str:
    """A key as it is, or in short if it is a whole description; what is cut off is told apart by four digits.

    Options that are objects (initialisers) are the first to be left out.
    """

    def made(found: re.Match[str], objects: bool = True) -> str:
        options = [(name, text or value) for name, text, value in _OPTION.findall(found[2])]
        return f"{found[1]}({', '.join(f'{n}={v}' for n, v in options if objects or '(' not in v)})"

    text = visible(_MADE.sub(made, str(key)))
    if len(text) <= LONG:
        return text
    text = visible(_MADE.sub(lambda found: made(found, objects=False), str(key)))
    return f"{text[: LONG - 6]}…{zlib.crc32(str(key).encode('utf-8', 'surrogatepass')) % 10**4:04d}"


def format_path(path: Path, root: str = "(bare array)") -> str:
    """A path as people write it; `root` names the whole tree.

    >>> format_path(("rnn", "w")), format_path((), "hidden"), format_path(("layers", 0, "w"))
    ("'rnn.w'", "'hidden'", "'layers[0].w'")

    A key that is a whole description (libraries make such) is said in short, and no two of them alike:

    >>> format_path(("post", "(<class 'brainpy.state.Expon'>, (100,), {'tau': '10 ms'})", "g"))
    "'post.Expon(tau=10 ms).g'"
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
