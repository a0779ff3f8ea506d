"""What every front end hands over: a model bound to its example arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ._paths import Path
from ._step import Role, Step
from ._types import PyTree


@dataclass(frozen=True)
class BoundState:
    """One state of the model: path, role, the front end's own object, and the numbers of the step's leaves for it."""

    path: Path
    role: Role
    handle: Any
    leaves: tuple[int, ...]


_ROOTS = {Role.PARAM: "params", Role.HIDDEN: "hidden", Role.OTHER: "other"}


def keys_of(states: Sequence[BoundState]) -> tuple[Path, ...]:
    """A key for each state that no other has: its path, behind the name of its tree where two states share a path.

    >>> keys_of([BoundState(("w",), Role.PARAM, None, (0,)), BoundState(("h",), Role.HIDDEN, None, (1,))])
    (('w',), ('h',))
    >>> keys_of([BoundState((), Role.PARAM, None, (0,)), BoundState((), Role.HIDDEN, None, (1,))])
    (('params',), ('hidden',))
    """
    uses = Counter(s.path for s in states)
    return tuple(s.path if uses[s.path] == 1 else (_ROOTS[s.role], *s.path) for s in states)


def merged(hidden: PyTree, other: PyTree) -> PyTree:
    """Hidden and other states as one tree: dictionaries are merged by key."""
    if other is None or other == {}:
        return hidden
    if hidden is None or hidden == {}:
        return other
    return {
        k: merged(hidden.get(k), other.get(k)) if k in hidden and k in other else hidden.get(k, other.get(k))
        for k in {**hidden, **other}
    }


@dataclass(frozen=True, eq=False)
class Bound:
    """A model as a pure step, with its values and the way between its own arguments and those of the step.

    The step takes and gives plain arrays: no physical units, no objects of a modelling library. `read()` gives (params,
    hidden, other) as they are now; the record itself holds no values, so that one made inside `jit` keeps nothing of
    that trace. `join(hidden, other)` makes them the one tree of states that users see. `states` are parameters, hidden
    and other states, each in the model's own order (for a module: as its step meets them); `known` holds every state of
    the model by `keys_of`, whether the step touches it or not. `model` is the function that was given, if it was one.

    | piece | from | to |
    |---|---|---|
    | `encode(args, kwargs, lead)` | the model's own arguments, behind `lead` axes | the tuple of the step's inputs |
    | `decode_output(tree)` | the step's output | what the model returns |
    | `encode_state(path, value)` | a state's value | its leaves |
    | `decode_state(path, leaves)` | its leaves | a state's value |
    """

    step: Step
    states: tuple[BoundState, ...]
    known: Mapping[Path, PyTree]
    read: Callable[[], tuple[PyTree, PyTree, PyTree]]
    encode: Callable[..., tuple[PyTree, ...]]
    decode_output: Callable[[PyTree], PyTree]
    encode_state: Callable[[Path, PyTree], Sequence[jax.Array]]
    decode_state: Callable[[Path, Sequence[jax.Array | None]], PyTree]
    join: Callable[[PyTree, PyTree], PyTree] = merged
    model: object = None

    @property
    def keys(self) -> tuple[Path, ...]:
        """The key of each of `states`, see `keys_of`."""
        return keys_of(self.states)
