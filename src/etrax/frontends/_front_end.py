"""What Etrax knows of the models of a library: one record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from .._errors import ArgumentError, CompilationError
from ..compiler.ir import Bound, Notation, Path, PyTree, Step, format_path, leaves_with_paths


@dataclass(frozen=True, eq=False)
class Values:
    """What a user passes to `etrax.compile` besides a model, a rule and example inputs.

    `call(module, hidden, *inputs) -> (hidden, output)` says how a module is called. `keywords` are arguments of the
    model's own, for front ends that take them.
    """

    params: PyTree = None
    hidden: PyTree = None
    batch_size: int | None = None
    call: Callable[..., Any] | None = None
    keywords: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FrontEnd:
    """How models of a library become a `Bound`, and back. To add a library: its file with such a record, and a line in
    `registered.py`.

    | field | says |
    |---|---|
    | `name`, `library`, `kind` | what messages call these models, their library, and one of them |
    | `matches(model)` | whether a model is one of them, without importing the library |
    | `bind(model, inputs, values)` | the model bound to example inputs; None if it is used as a function |
    | `layers(model)` | the modules inside of it by path, itself included: reports name them |
    | `write_back(model, params, hidden)` | the model with trained values; None where it holds no values |
    | `makes_states` | whether the model makes its own states, and may do so for another batch size |
    | `takes_call` | whether a user may say how the model is called |
    | `takes_keywords` | whether keywords of the compiler API are arguments of the model |
    | `check(step, replaced)` | raises where operations of the library cannot run here; others stand for `replaced` |
    | `notation` | how its values and names are read |
    """

    name: str
    library: str
    kind: str
    matches: Callable[[object], bool]
    bind: Callable[[Any, tuple[object, ...], Values], Bound | None]
    layers: Callable[[Any], Iterable[tuple[Path, object]]] = lambda model: ()
    write_back: Callable[[Any, PyTree, PyTree], Any] | None = None
    makes_states: bool = False
    takes_call: bool = True
    takes_keywords: bool = False
    check: Callable[[Step, Container[str]], None] = lambda step, replaced: None
    notation: Notation = field(default_factory=Notation)


def is_of(model: object, module: str, name: str = "Module") -> bool:
    """Whether a model is of a class of another library, which is never imported for the question."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(model, kind)


def refuse(value: object, name: str, why: str) -> None:
    """Raise if an option was passed to a kind of model that has no use for it."""
    if value is not None:
        raise CompilationError(f"`{name}=` was given for {why}.")


def check_places(what: str, values: PyTree, places: PyTree, root: Path = ()) -> None:
    """Every value that is to be written back has a place of its shape in the module."""
    by_path = dict(leaves_with_paths(places))
    for path, value in leaves_with_paths(values):
        if path not in by_path:
            raise ArgumentError(f"`{what}` has {format_path((*root, *path))}, but the module has nothing there.")
        if jax.numpy.shape(value) != jax.numpy.shape(by_path[path]):
            raise ArgumentError(
                f"`{what}` has {format_path((*root, *path))} of shape {list(jax.numpy.shape(value))}, but the module's "
                f"is {list(jax.numpy.shape(by_path[path]))}."
            )
