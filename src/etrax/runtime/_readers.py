"""What a plan reads at each step: D and F in a view of the states, or what a rule puts in their place.

`Probes` read the true blocks. `Filtered` adds a low-pass copy of slots, `Leaky` takes one leak for every recurrence.
All of them are called with a step and give D per group and F per relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import common_dtype
from ..compiler.analysis import Facts, Relation
from ._layout import Layout, closure
from ._probes import Probes
from ._view import View
from .blocks import Algebra, Block, Stacked, Unrolled, Vector


class Reader(Protocol):
    """Reads D per group and F per relation off a step; `layouts` has the slots of every group.

    `copies(group)` are slots that are low-pass copies of another: that one, and κ.
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

    def copies(self, group: int) -> Mapping[int, tuple[int, float]]: ...

    def stand_ins(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], dict]: ...

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]: ...


def plain_algebra(layout: Layout, steep: bool) -> Algebra:
    """The algebra of a group's blocks of which nothing more is known than which slots act on which."""
    if layout.stacked:
        return Stacked(layout.size, layout.shape, steep)
    return Unrolled([[layout.shape if acts else None for acts in line] for line in closure(layout.links)], steep)


@dataclass(frozen=True)
class Copied:
    """The slots of a group that are kept as they are, and those that have a low-pass copy."""

    plain: tuple[int, ...]
    copied: tuple[int, ...]

    @property
    def slots(self) -> tuple[int, ...]:
        return (*self.plain, *self.copied)


@dataclass(frozen=True, eq=False)
class Filtered:
    """Blocks [[D, 0], [D, κ I]] and [F; F]: of some slots a copy x̄ ← κ x̄ + x' is carried, behind the others."""

    probes: Probes
    kappa: float
    copied: tuple[Copied, ...]

    @property
    def facts(self) -> Facts:
        return self.probes.facts

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.probes.relations

    @property
    def view(self) -> View:
        return self.probes.view

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return self._layouts

    @cached_property
    def _layouts(self) -> tuple[Layout, ...]:
        return tuple(self._wider(layout, c) for layout, c in zip(self.probes.layouts, self.copied, strict=True))

    def _wider(self, layout: Layout, c: Copied) -> Layout:
        if not layout.slots:
            return layout
        known, n = np.zeros((len(c.slots), len(c.slots)), bool), len(c.plain)
        known[:, :n] = layout.links[np.ix_(c.slots, c.plain)]
        known[np.arange(n, len(c.slots)), np.arange(n, len(c.slots))] = True
        slots = tuple(layout.slots[s] for s in c.slots)
        return replace(layout, slots=slots, known=known, stacked_as=layout.stacked)

    def of(self, relations: Sequence[Relation]) -> Filtered:
        return replace(self, probes=self.probes.of(relations))

    def copies(self, group: int) -> Mapping[int, tuple[int, float]]:
        c = self.copied[group]
        both = ((len(c.plain) + n, s) for n, s in enumerate(c.copied) if s in c.plain)
        return {n: (c.plain.index(s), self.kappa) for n, s in both}

    def drives(self, k: int) -> np.ndarray:
        return self.probes.drives(k)[list(self.copied[self.relations[k].group].slots)]

    def stand_ins(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], dict]:
        return self.probes.stand_ins()

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]:
        blocks, rows = self.probes(leaves, weights, ys)
        algebras = [plain_algebra(layout, False) for layout in self.probes.layouts]
        wider = [
            a.with_copies(d, c.plain, c.copied, self.kappa) if layout.slots else d
            for a, d, c, layout in zip(algebras, blocks, self.copied, self.probes.layouts, strict=True)
        ]
        acts = [self.probes.drives(k) for k in range(len(rows))]
        groups = [r.group for r in self.relations]
        return wider, [
            algebras[g].chosen(f, act, self.copied[g].slots) for g, f, act in zip(groups, rows, acts, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Leaky:
    """λ in place of D, and F, for the slots that some op drives within its step: no other ever has a trace."""

    probes: Probes
    decay: float
    driven: tuple[tuple[int, ...], ...]

    @property
    def facts(self) -> Facts:
        return self.probes.facts

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.probes.relations

    @property
    def view(self) -> View:
        return self.probes.view

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return self._layouts

    @cached_property
    def _layouts(self) -> tuple[Layout, ...]:
        pairs = zip(self.probes.layouts, self.driven, strict=True)
        return tuple(self._of_driven(layout, driven) if layout.slots else layout for layout, driven in pairs)

    def _of_driven(self, layout: Layout, driven: Sequence[int]) -> Layout:
        slots, alone = tuple(layout.slots[s] for s in driven), np.eye(len(driven), dtype=bool)
        return replace(layout, slots=slots, known=alone, stacked_as=False)

    def of(self, relations: Sequence[Relation]) -> Leaky:
        return replace(self, probes=self.probes.of(relations))

    def drives(self, k: int) -> np.ndarray:
        return self.probes.drives(k)[list(self.driven[self.relations[k].group])]

    def copies(self, group: int) -> Mapping[int, tuple[int, float]]:
        return {}

    def stand_ins(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], dict]:
        return self.probes.stand_ins()

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]:
        _, rows = self.probes(leaves, weights, ys)
        blocks = [self._block(layout) for layout in self.layouts]
        return blocks, [self._row(k, f) for k, f in enumerate(rows)]

    def _block(self, layout: Layout) -> Block:
        wide = common_dtype(*(jnp.finfo(a.dtype).dtype for a in layout.avals.values()), jnp.float32)
        leak, n = jnp.full((1,) * len(layout.shape), self.decay, wide), layout.size
        return [[leak if s == t else None for t in range(n)] for s in range(n)]

    def _row(self, k: int, f: Vector) -> Vector:
        group = self.relations[k].group
        acts = self.probes.drives(k)
        values = dict(plain_algebra(self.probes.layouts[group], False).driven(f, acts))
        return [values.get(s) for s in self.driven[group]]


def leaky_reader(probes: Probes, decay: float) -> Leaky:
    """One leak for every recurrence, for the relations of some probes."""
    driven = [np.zeros(layout.size, bool) for layout in probes.layouts]
    for k, r in enumerate(probes.relations):
        driven[r.group] = driven[r.group] | probes.drives(k)
    return Leaky(probes, decay, tuple(tuple(np.flatnonzero(d).tolist()) for d in driven))
