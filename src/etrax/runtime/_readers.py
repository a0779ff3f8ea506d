"""What a plan reads at each step: D and F in a view of the states, or what a rule puts in their place.

`Probes` read the true blocks. Readers of a rule read through probes (`rules/_filtered.py`: low-pass copies of slots;
`rules/_rflo.py`: one leak for every recurrence). Each is called with a step and gives D per group and F per relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import jax
import numpy as np
from jax import Array

from ..compiler.analysis import Facts, Relation
from ._layout import Layout, closure
from ._probes import Probes
from ._view import View
from .blocks import Algebra, Block, Stacked, Unrolled, Vector


class Reader(Protocol):
    """Reads D per group and F per relation off a step; `layouts` has the slots of every group.

    `low_pass(group)` are slots that are low-pass copies of another: that one, and κ.
    """

    @property
    def facts(self) -> Facts: ...
    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    @property
    def relations(self) -> tuple[Relation, ...]: ...
    @property
    def view(self) -> View: ...

    def of(self, relations: Sequence[Relation]) -> Reader: ...

    def drives(self, k: int) -> np.ndarray: ...

    def low_pass(self, group: int) -> Mapping[int, tuple[int, float]]: ...

    def stand_ins(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], dict]: ...

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]: ...


def plain_algebra(layout: Layout, steep: bool) -> Algebra:
    """The algebra of a group's blocks of which nothing more is known than which slots act on which."""
    if layout.stacked:
        return Stacked(layout.size, layout.shape, steep)
    return Unrolled([[layout.shape if acts else None for acts in line] for line in closure(layout.links)], steep)


@dataclass(frozen=True, eq=False)
class OverProbes:
    """What a reader takes from the probes that it reads through."""

    probes: Probes

    @property
    def facts(self) -> Facts:
        return self.probes.facts

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.probes.relations

    @property
    def view(self) -> View:
        return self.probes.view

    def of(self, relations: Sequence[Relation]) -> Self:
        return replace(self, probes=self.probes.of(relations))

    def stand_ins(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], dict]:
        return self.probes.stand_ins()
