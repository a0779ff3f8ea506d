"""Paths: the tuple of keys, attribute names and indices from the root of a pytree to a leaf."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax

Path: TypeAlias = tuple[Any, ...]


def _key(entry: Any) -> tuple[Any, ...]:
    for attribute in ("key", "name", "idx"):
        if hasattr(entry, attribute):
            value = getattr(entry, attribute)
            return value if isinstance(value, tuple) else (value,)
    return (str(entry),)


def leaves_with_paths(tree: Any) -> list[tuple[Path, Any]]:
    """Leaves in flattening order, each with its path; a bare array has path `()`.

    A dictionary key that is itself a tuple (as in brainstate's flat state dictionaries) is spliced in.

    >>> leaves_with_paths({"rnn": {"w": 1.0}, "b": [2.0]})
    [(('b', 0), 2.0), (('rnn', 'w'), 1.0)]
    """
    entries, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(sum((_key(e) for e in path), ()), leaf) for path, leaf in entries]


def format_path(path: Path) -> str:
    """A path as people write it.

    >>> format_path(("rnn", "w")), format_path(()), format_path(("layers", 0, "w"))
    ("'rnn.w'", "'(the whole argument)'", "'layers[0].w'")
    """
    if not path:
        return "'(the whole argument)'"
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else (f".{key}" if text else str(key))
    return f"'{text}'"
