"""Which layer of a module an equation was written in, by the functions that were running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ._paths import Path, format_path
from ._source import Source


class Layer(NamedTuple):
    """A module inside of a model: its path, and a class whose methods it runs, by file (None if unknown) and name."""

    path: Path
    file: str | None
    name: str


# More layers of one class than this are counted.
MOST = 3


def layer_of(layers: Sequence[Layer], source: Source | None) -> str:
    """The layer that a line of code ran in, in words; nothing where it is the model itself, or not known.

    Layers of one class run the same lines: they are told apart by the layers that called them, and else all named.

    >>> source = Source("net.py", 7, "Cell.update", (("net.py", "Cell.update"), ("net.py", "Net.update")))
    >>> layers = [Layer((), "net.py", "Net"), Layer(("a",), "net.py", "Cell"), Layer(("b",), "net.py", "Other")]
    >>> layer_of(layers, source)
    "in layer 'a'"
    >>> layer_of([*layers, Layer(("c",), "net.py", "Cell")], source)
    "in layer 'a' or 'c'"
    """
    met: list[list[Path]] = []
    for file, function in () if source is None else source.frames:
        matches = [x.path for x in layers if function.startswith(f"{x.name}.") and x.file in (None, file)]
        met += [matches] if matches else []
    if not met:
        return ""
    inner = met[0]
    for outer in met[1:]:
        inner = [path for path in inner if any(path[: len(o)] == o for o in outer)] or inner
    paths = [path for path in dict.fromkeys(inner) if path]
    if not paths:
        return ""
    if len(paths) > MOST:
        return f"in one of {len(paths)} layers, {format_path(paths[0])} to {format_path(paths[-1])}"
    return "in layer " + " or ".join(map(format_path, paths))
