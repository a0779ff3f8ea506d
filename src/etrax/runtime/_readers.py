"""What a plan reads at each step: D and F in a view of the states, or what a rule puts in their place.

`Probes` read the true blocks; `OfLeaks` those of slots that stand for several, with a first axis of leaks. Readers of a
rule read through probes (`rules/_filtered.py`: low-pass copies of slots; `rules/_rflo.py`: one leak for every
recurrence). Each is called with a step and gives D per group and F per relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..compiler.analysis import Facts, LeakyStates, Relation
from . import _site_math as site_math
from ._layout import Layout, closure, gather_of
from ._probes import Probes
from ._view import View
from .blocks import Algebra, Block, Entry, Stacked, Unrolled, Vector


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
    shapes = [(*lead, *layout.shape) for lead in layout.leads]
    links = zip(closure(layout.links), shapes, strict=True)
    return Unrolled([[shape if acts else None for acts in line] for line, shape in links], steep)


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


class OfLeaks(OverProbes):
    """The blocks of slots that stand for several, by one pull for all: of filtered data r̃_j' = κ_j r̃_j + f_j u

        D_j = [f_j ∂u/∂h, κ_j]        F_j = f_j ∂u/∂y        with a first axis of leaks j

    The probes read ∂u/∂h and ∂u/∂y, of a step with f = 1.
    """

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return self.probes.layouts

    def drives(self, k: int) -> np.ndarray:
        return self.probes.drives(k)

    def low_pass(self, group: int) -> Mapping[int, tuple[int, float]]:
        return {}

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]:
        with_ones = list(leaves)
        for leaky in self.facts.leaky:
            with_ones[leaky.factors] = jnp.ones_like(leaves[leaky.factors])
        blocks, rows = self.probes(with_ones, weights, ys)
        blocks = [
            self._block(layout, block, leaves) if layout.counts else block
            for layout, block in zip(self.layouts, blocks, strict=True)
        ]
        return blocks, [
            self._row(r, row, leaves) if self.layouts[r.group].counts else row
            for r, row in zip(self.relations, rows, strict=True)
        ]

    def _leaky(self, layout: Layout, s: int) -> tuple[LeakyStates, int] | None:
        """The states that a slot is of, and its number among them; None of a slot that stands for itself."""
        leaf = layout.slots[s].leaf
        return next(((leaky, leaky.states.index(leaf)) for leaky in self.facts.leaky if leaf in leaky.states), None)

    def _block(self, layout: Layout, block: Block, leaves: Sequence[Array]) -> Block:
        def entry(s: int, t: int, a: Entry) -> Entry:
            one, other = self._leaky(layout, s), self._leaky(layout, t)
            if a is None or one is None:
                return None if a is None else a[None]
            leaky, i = one
            if other is None:
                return _at_positions(layout, s, leaves[leaky.factors][i]) * a[None]
            alike = other[0] is leaky and _same_elements(layout, s, t)
            return _at_positions(layout, s, leaves[leaky.leaks][i, other[1]]) if alike else None

        return [[entry(s, t, a) for t, a in enumerate(line)] for s, line in enumerate(block)]

    def _row(self, r: Relation, row: Vector, leaves: Sequence[Array]) -> Vector:
        layout, site, group = self.layouts[r.group], self.facts.sites[r.site], self.facts.group(r.group)
        gather = gather_of(r.places, group.varshape, group.num_positions)

        def at_y(s: int, f: Array) -> Array:
            one = self._leaky(layout, s)
            if one is None:
                return f[None]
            leaky, i = one
            factor = _at_positions(layout, s, leaves[leaky.factors][i])
            if factor.size > factor.shape[0]:
                site_of_y = site if r.copies is None else r.copies.site
                return site_math.beside_loops(site_of_y, layout.at_y(gather, factor), 1) * f[None]
            return factor.reshape(-1, *[1] * f.ndim) * f[None]

        return [None if f is None else at_y(s, f) for s, f in enumerate(row)]


def _at_positions(layout: Layout, s: int, rates: Array) -> Array:
    """Rates (leaks, …) along the axes of a leaf, at the positions of slot s, with axes of one if they are equal."""
    if rates.size == rates.shape[0]:
        return rates.reshape(-1, *[1] * len(layout.shape))
    slot = layout.slots[s]
    every = jnp.broadcast_to(rates, (rates.shape[0], *layout.avals[slot.leaf].shape))
    return jax.vmap(lambda a: slot.take(a).reshape(layout.shape))(every)


def _same_elements(layout: Layout, s: int, t: int) -> bool:
    """Whether two slots are the same elements of their leaves."""
    one, other = layout.slots[s].index, layout.slots[t].index
    return one is other or (one is not None and other is not None and np.array_equal(one, other))
