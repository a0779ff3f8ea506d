"""The names of states as the module's own attributes spell them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..compiler.ir import Path
from ._borrow import Module, State


def short_paths(model: Module, of_module: Mapping[Path, State]) -> dict[int, tuple[Path, Path]]:
    """By `id` of a state, its path and the shortest one by public attributes and items, where that one is shorter.

    brainstate has one path for each state, the first that it finds: neurons that a projection acts on are found inside
    the projection, and their shared synapses in a dictionary of descriptions.
    """
    full = {id(state): path for path, state in of_module.items()}
    shorter: dict[int, tuple[Path, Path]] = {}
    visited, level = {id(model)}, [((), model)]
    while level:
        deeper = []
        for path, thing in level:
            for key, value in _parts(thing):
                if id(value) not in visited:
                    visited.add(id(value))
                    deeper.append(((*path, key), value))
        for path, thing in deeper:
            if id(thing) in full and len(path) < len(full[id(thing)]):
                shorter[id(thing)] = full[id(thing)], path
        level = [(path, thing) for path, thing in deeper if id(thing) not in full]
    return shorter


def _parts(thing: object) -> list[tuple[Any, object]]:
    """What a module or container holds under a public name: modules, states, and containers of them."""
    if isinstance(thing, (list, tuple)):
        items: list[tuple[Any, object]] = list(enumerate(thing))
    elif isinstance(thing, dict):
        items = list(thing.items())
    elif type(thing).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy", "builtins", "brainunit", "saiunit"):
        items = []
    else:
        items = list(getattr(thing, "__dict__", {}).items())
    public = lambda key: isinstance(key, int) or (isinstance(key, str) and key.isidentifier() and key[0] != "_")  # noqa: E731
    return [(key, value) for key, value in items if public(key)]
