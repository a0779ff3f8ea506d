"""Who owns a step: the front end's record of the model, or the bare step itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from .._errors import CompilationError
from ..ir import Path, Role, Step


class StateEntry(NamedTuple):
    """One state of the model, and the numbers of the step's input leaves that hold it."""

    path: Path
    role: Role
    handle: Any
    leaves: tuple[int, ...]


class Owner(Protocol):
    """What the graph needs to know of a model beyond its step; every front end's record has it."""

    @property
    def step(self) -> Step: ...
    @property
    def states(self) -> Sequence[Any]: ...
    @property
    def known(self) -> Mapping[Path, Any]: ...
    @property
    def read(self) -> Callable[[], tuple[Any, Any, Any]]: ...
    @property
    def encode(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[Any, ...]]: ...
    @property
    def decode_output(self) -> Callable[[Any], Any]: ...
    @property
    def encode_state(self) -> Callable[[Path, Any], Sequence[Any]]: ...
    @property
    def decode_state(self) -> Callable[[Path, Sequence[Any]], Any]: ...


@dataclass(frozen=True, eq=False)
class StepOwner:
    """A step on its own: every leaf is a state, values are arrays, and there are no current ones."""

    step: Step

    @property
    def states(self) -> tuple[StateEntry, ...]:
        found = [(i, leaf) for i, leaf in enumerate(self.step.ins) if leaf.role is not Role.INPUT]
        return tuple(StateEntry(leaf.path, leaf.role, leaf, (i,)) for i, leaf in found)

    @property
    def known(self) -> dict[Path, Any]:
        return {entry.path: entry.handle for entry in self.states}

    def read(self) -> tuple[Any, Any, Any]:
        raise CompilationError(
            "a bare step has no current values: pass `old_state_vals`, one value per state, in order."
        )

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        return (*args, dict(kwargs)) if kwargs else tuple(args)

    def decode_output(self, output: Any) -> Any:
        return output

    def encode_state(self, path: Path, value: Any) -> list[Any]:
        return jax.tree.leaves(value)

    def decode_state(self, path: Path, leaves: Sequence[Any]) -> Any:
        return leaves[0]


def owner_of(model: Owner | Step) -> Owner:
    return StepOwner(model) if isinstance(model, Step) else model
