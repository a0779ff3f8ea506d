"""The layers of a module, for reports: paths, and the classes whose methods they run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from ..compiler.ir import Layer, Path
from ._brainstate import is_brainstate_module, load_brainstate
from ._equinox import is_equinox_module
from ._flax import is_nnx_module


def layers_of(model: Any) -> tuple[Layer, ...]:
    """The modules inside of a model of brainstate, NNX or Equinox, itself first."""
    if is_brainstate_module(model):
        found = load_brainstate().graph.nodes(model).items()
    elif is_nnx_module(model):
        from flax import nnx

        found = nnx.iter_modules(model)
    elif is_equinox_module(model):
        found = _inside(model, ())
    else:
        return ()
    nodes = sorted(((tuple(path), type(node)) for path, node in found), key=lambda entry: len(entry[0]))
    return tuple(layer for path, kind in nodes for layer in _classes(path, kind))


def _inside(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Equinox modules are trees of plain fields."""
    if is_equinox_module(value) and dataclasses.is_dataclass(value):
        yield path, value
        parts = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    elif isinstance(value, dict):
        parts = list(value.items())
    else:
        parts = list(enumerate(value)) if isinstance(value, list | tuple) else []
    for key, part in parts:
        yield from _inside(part, (*path, key))


def _classes(path: Path, kind: type) -> Iterator[Layer]:
    for one in kind.__mro__[:-1]:
        yield Layer(path, getattr(sys.modules.get(one.__module__), "__file__", None), one.__qualname__)
