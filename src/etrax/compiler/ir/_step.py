"""The seam between every front end and the core: one frozen record of one traced step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import jax

from ..._compat import Jaxpr, Var
from ._layers import Layer
from ._paths import Path
from ._walk import Handler, interpret


class Role(StrEnum):
    """What a leaf of the step's signature is."""

    PARAM = "parameter"
    HIDDEN = "hidden state"
    OTHER = "other state"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True)
class Leaf:
    """One array of the step's signature.

    `handle` is the front end's own object for it (a brainstate `State`), `state_axis` says that the last axis
    counts states at a position rather than positions.
    """

    role: Role
    path: Path
    aval: jax.ShapeDtypeStruct
    handle: Any = field(default=None, compare=False)
    state_axis: bool = False


@dataclass(frozen=True, eq=False)
class Step:
    """h', other', o = step(θ, h, other, x) as a flat jaxpr.

    `jaxpr` has no constvars: its inputs are the `consts`, then one variable per leaf of `ins` (parameters, hidden,
    other, inputs); its outputs one per leaf of `outs` (hidden, other, output). `trees` holds the pytree structure
    of each role. `layers` are the modules that the model was made of, if it was.
    """

    jaxpr: Jaxpr
    consts: tuple[Any, ...]
    ins: tuple[Leaf, ...]
    outs: tuple[Leaf, ...]
    trees: dict[Role, Any]
    layers: tuple[Layer, ...] = ()

    def select(self, role: Role) -> tuple[Leaf, ...]:
        """Input leaves of a role (output leaves for `Role.OUTPUT`), in order."""
        return self._by_role[role]

    @cached_property
    def _by_role(self) -> dict[Role, tuple[Leaf, ...]]:
        leaves = [*self.ins, *(leaf for leaf in self.outs if leaf.role is Role.OUTPUT)]
        return {role: tuple(leaf for leaf in leaves if leaf.role is role) for role in Role}

    def invars(self, role: Role) -> list[Var]:
        leaf_vars = self.jaxpr.invars[len(self.consts) :]
        return [v for v, leaf in zip(leaf_vars, self.ins, strict=True) if leaf.role is role]

    def outvars(self, role: Role) -> list[Any]:
        return [v for v, leaf in zip(self.jaxpr.outvars, self.outs, strict=True) if leaf.role is role]

    @property
    def constvars(self) -> list[Var]:
        return list(self.jaxpr.invars[: len(self.consts)])

    @property
    def first_state(self) -> int:
        """The number of the first state among the input leaves."""
        return len(self.select(Role.PARAM))

    @property
    def states(self) -> list[Leaf]:
        """Hidden, then other state leaves: states are numbered in this order."""
        return [*self.select(Role.HIDDEN), *self.select(Role.OTHER)]

    def states_of(self, leaves: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """The states among the input leaves."""
        return leaves[self.first_state : self.first_state + len(self.states)]

    def with_states(self, leaves: Sequence[jax.Array], states: Mapping[int, jax.Array]) -> list[jax.Array]:
        """Input leaves with some states, by their number, replaced."""
        replaced, first = list(leaves), self.first_state
        for i, value in states.items():
            replaced[first + i] = value
        return replaced

    def run(self, leaves: Sequence[Any], handle: Handler = lambda *_: None) -> list[Any]:
        """Evaluate on input leaves (all roles, in order); see `interpret` for the handler."""
        return interpret(self.jaxpr, (), [*self.consts, *leaves], handle)
