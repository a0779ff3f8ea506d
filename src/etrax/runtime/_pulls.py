"""Pulling cotangents of new states back through a step, and reading D and F off what comes back.

One pull reads one state scalar of many positions at once (`Probe`). `_probes.py` says which can be read together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._machine import machine
from ..compiler.analysis import Relation
from ..compiler.ir import mapped
from ._layout import Layout
from ._transport import PullBack
from .blocks import Block, Entry, Pattern, Sparse, Vector


@dataclass(frozen=True, eq=False)
class Probe:
    """Read slot `slot` of group `group`, at the positions where `colour` is true (None: all)."""

    group: int
    slot: int
    colour: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Pack:
    """Slots of a group whose blocks are equal along axes of positions: each is read at another place along them.

    `positions[n, r]` is the position that stands for n at place r, where n numbers what differs (`shape`). `outputs`,
    by site, are such elements of y and the shape of what differs there. One pull reads as many slots as there are r.
    """

    shape: tuple[int, ...]
    positions: np.ndarray
    outputs: Mapping[int, tuple[np.ndarray, tuple[int, ...]]]

    def probes(self, g: int, layout: Layout) -> list[tuple[Probe, ...]]:
        """Pulls of all slots of group g."""
        places = self.positions.shape[1]
        masks = [np.isin(np.arange(self.positions.size), at) for at in self.positions.T]
        every = [Probe(g, s, masks[s % places]) for s in range(layout.size)]
        return [tuple(every[first : first + places]) for first in range(0, layout.size, places)]


@dataclass(frozen=True, eq=False)
class Pulls:
    """Which cotangents to pull back, and where blocks stand in what comes back.

    `layouts` has one entry per group. Each pull is a set of probes that do not disturb each other. `places[k]` is the
    position that each element of relation k's y reaches, `drives[k]` the slots that they act on.
    """

    layouts: tuple[Layout, ...]
    pulls: tuple[tuple[Probe, ...], ...]
    relations: tuple[Relation, ...] = ()
    places: tuple[np.ndarray | None, ...] = ()
    drives: tuple[np.ndarray, ...] = ()
    packs: Mapping[int, Pack] = field(default_factory=dict)

    @property
    def leaves(self) -> list[int]:
        """The states whose cotangents are pulled back."""
        return sorted({slot.leaf for layout in self.layouts for slot in layout.slots})

    def __call__(self, pull: PullBack) -> tuple[list[Block], list[Vector]]:
        """D per group and F per relation, given the pull-back of new states to old states and outputs of ops.

        Of a group that is stacked, D is `Sparse`, and F an array over the slots that the op drives.
        """
        avals = {i: layout.avals[i] for layout in self.layouts for i in layout.avals}
        zeros = {i: np.zeros(avals[i].shape, avals[i].dtype) for i in self.leaves}
        if len(self.pulls) > machine().separate_pulls or any(layout.stacked for layout in self.layouts):
            return self._all_at_once(pull, zeros)
        blocks, rows = self._blank()
        for probes in self.pulls:
            cotangents = dict(zeros)
            # Probes of one pull share a cotangent. No slot and no op acts on two of them, so each finds its own answer
            # in what comes back.
            for p in probes:
                for i, c in self.layouts[p.group].probe(p.slot, p.colour).items():
                    if i in zeros:  # a state that follows from others is not probed
                        cotangents[i] = cotangents[i] + c.astype(avals[i].dtype)
            h_bar, d_bar = pull({i: jnp.asarray(c) for i, c in cotangents.items()})
            for p in probes:
                self._read(p, h_bar, d_bar, blocks, rows)
        return [*blocks], [*rows]

    def _blank(self) -> tuple[list[Block], list[list[Entry]]]:
        rows: list[list[Entry]] = [[None] * self.layouts[r.group].size for r in self.relations]
        return [[[None] * g.size for _ in range(g.size)] for g in self.layouts], rows

    def _all_at_once(self, pull: PullBack, zeros: Mapping[int, np.ndarray]) -> tuple[list[Block], list[Vector]]:
        """Many pulls as one with a leading axis: what each is to read is chosen from the stack."""
        blocks, rows = self._blank()
        stacked = {i: np.zeros((len(self.pulls), *a.shape), a.dtype) for i, a in zeros.items()}
        readers: dict[tuple[int, int], list[int]] = {}
        for n, probes in enumerate(self.pulls):
            for p in probes:
                # A slot may be read by several pulls, one for each colour of its positions.
                readers.setdefault((p.group, p.slot), []).append(n)
                for i, c in self.layouts[p.group].probe(p.slot, p.colour).items():
                    if i in stacked:  # a state that follows from others is not probed
                        stacked[i][n] += c.astype(stacked[i].dtype)
        h_bar, d_bar = mapped(pull, {i: jnp.asarray(c) for i, c in stacked.items()})
        all_blocks: list[Block] = [*blocks]
        arrays: dict[int, Array] = {}
        for g in sorted({g for g, _ in readers if self.layouts[g].stacked}):
            if g in self.packs:
                all_blocks[g] = self._packed_block(g, h_bar, readers)
                reached = [k for k, r in enumerate(self.relations) if r.group == g]
                arrays |= {k: self._packed_rows(k, d_bar, readers) for k in reached}
                continue
            # Pulls that read the same slot at different positions are chosen position by position.
            which = self._readers(g, readers)
            all_blocks[g] = self._stacked_block(g, which, h_bar)
            arrays |= {k: self._stacked_rows(k, which, d_bar) for k, r in enumerate(self.relations) if r.group == g}
        for (g, s), at in readers.items():
            layout = self.layouts[g]
            if layout.stacked:
                continue
            if len(at) == 1:  # one pull reads the slot everywhere
                (n,) = at
                probe = next(p for p in self.pulls[n] if (p.group, p.slot) == (g, s))
                self._read(
                    probe, {i: a[n] for i, a in h_bar.items()}, {j: a[n] for j, a in d_bar.items()}, blocks, rows
                )
                continue
            colours = [next(p.colour for p in self.pulls[n] if (p.group, p.slot) == (g, s)) for n in at]
            # Each position is taken from the pull that had a one there: other pulls hold what other positions sent.
            which = _which(colours, layout.group.num_positions)
            bars_of_group = {i: h_bar[i][np.array(at)] for i in layout.group.leaves if i in h_bar}
            read = jax.vmap(layout.read)(bars_of_group)
            for t in np.flatnonzero(layout.links[s]):
                flat = read[t].reshape(len(at), -1)
                blocks[g][s][t] = jnp.take_along_axis(flat, which[None], 0)[0].reshape(layout.shape)
            for k, r in enumerate(self.relations):
                if r.group == g:
                    value = _chosen(d_bar[r.site][np.array(at)], self.places[k], which)
                    rows[k][s] = value if self.drives[k][s] else jnp.zeros_like(value)
        return all_blocks, [arrays.get(k, row) for k, row in enumerate(rows)]

    def _readers(self, g: int, readers: Mapping[tuple[int, int], list[int]]) -> np.ndarray:
        """(S, positions): the number of the pull that reads a slot."""
        pulls = []
        for s in range(self.layouts[g].size):
            at = readers[g, s]
            masks = [next(p.colour for p in self.pulls[n] if (p.group, p.slot) == (g, s)) for n in at]
            pulls.append(np.array(at)[_which(masks, self.layouts[g].group.num_positions)])
        return np.stack(pulls)

    def _packed_block(self, g: int, h_bar: Mapping[int, Array], readers: Mapping[tuple[int, int], list[int]]) -> Sparse:
        """D of a group, with axes of one, off pulls that each read many slots."""
        layout, pack = self.layouts[g], self.packs[g]
        read = jax.vmap(layout.stack)({i: h_bar[i] for i in layout.group.leaves if i in h_bar})
        pattern = Pattern.of(layout.links)
        rows, cols = pattern.entries
        pulls, at = _packed_places([readers[g, s][0] for s in range(layout.size)], pack.positions)
        values = read.reshape(*read.shape[:2], -1)[pulls[rows, None], cols[:, None], at[rows]]
        return Sparse(values.reshape(-1, *pack.shape), pattern)

    def _packed_rows(self, k: int, d_bar: Mapping[int, Array], readers: Mapping[tuple[int, int], list[int]]) -> Array:
        """F at the slots that relation k drives, with axes of one."""
        r = self.relations[k]
        elements, shape = self.packs[r.group].outputs[r.site]
        pulls, at = _packed_places([readers[r.group, s][0] for s in range(self.layouts[r.group].size)], elements)
        stack = d_bar[r.site]
        values = stack.reshape(stack.shape[0], -1)[pulls[:, None], at]
        return values.reshape(-1, *shape)[_all_or(self.drives[k])]

    def _stacked_block(self, g: int, which: np.ndarray, h_bar: Mapping[int, Array]) -> Sparse:
        layout = self.layouts[g]
        pattern = Pattern.of(layout.links)
        rows, cols = pattern.entries
        read = jax.vmap(layout.stack)({i: h_bar[i] for i in layout.group.leaves if i in h_bar})
        if (which == which[:, :1]).all():
            if rows.size == pattern.size**2:  # all entries in their order: no index hides what is equal along an axis
                return Sparse(_taken(read, which[:, 0]).reshape(-1, *layout.shape), pattern)
            return Sparse(read[which[rows, 0], cols], pattern)
        flat = read.reshape(*read.shape[:2], -1)
        # Entry (s, t) at position p stands at slot t in the pull that read slot s at p.
        values = flat[which[rows], cols[:, None], np.arange(flat.shape[2])]
        return Sparse(values.reshape(-1, *layout.shape), pattern)

    def _stacked_rows(self, k: int, which: np.ndarray, d_bar: Mapping[int, Array]) -> Array:
        """F at the slots that relation k drives."""
        stack, place = d_bar[self.relations[k].site], self.places[k]
        which = which[self.drives[k]]
        if place is None or (which == which[:, :1]).all():
            values = _taken(stack, which[:, 0])
        else:
            at = np.broadcast_to(place, stack.shape[1:])
            values = jnp.take_along_axis(stack, which[:, np.maximum(at, 0)], 0)
        return values if place is None or (place >= 0).all() else jnp.where(place >= 0, values, 0)

    def _read(
        self,
        p: Probe,
        h_bar: Mapping[int, Array],
        d_bar: Mapping[int, Array],
        blocks: list[Block],
        rows: list[list[Entry]],
    ) -> None:
        """Add what one pull gave for a probe."""
        layout = self.layouts[p.group]
        links = layout.links[p.slot]
        for t, value in enumerate(layout.read(h_bar)):
            if links[t]:
                # Outside of the probe's colour stand answers to other probes of the same pull.
                value = value if p.colour is None else jnp.where(p.colour.reshape(layout.shape), value, 0)
                blocks[p.group][p.slot][t] = _plus(blocks[p.group][p.slot][t], value)
        for k, r in enumerate(self.relations):
            if r.group != p.group:
                continue
            value, place = d_bar[r.site], self.places[k]
            if not self.drives[k][p.slot]:
                value = jnp.zeros_like(value)
            if p.colour is not None and place is not None:
                # An element that reaches no position has place −1, which may index nothing: it reads position 0 and is
                # masked.
                value = jnp.where((place >= 0) & p.colour[np.maximum(place, 0)], value, 0)
            rows[k][p.slot] = _plus(rows[k][p.slot], value)


def _packed_places(pulls: Sequence[int], places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per slot the pull that reads it, and where: slots of one pull stand at one place after the other."""
    # Slot s is read at place s modulo the number of places.
    return np.array(pulls), places.T[np.arange(len(pulls)) % places.shape[1]]


def _all_or(mask: np.ndarray) -> np.ndarray | slice:
    return slice(None) if mask.all() else mask


def _taken(stack: Array, which: np.ndarray) -> Array:
    """Elements of a stack, as they stand if all are taken in order."""
    return stack if np.array_equal(which, np.arange(stack.shape[0])) else stack[which]


def _which(colours: Sequence[np.ndarray | None], positions: int) -> np.ndarray:
    """Per position, which of several pulls reads it."""
    numbers = np.zeros(positions, np.int32)
    for n, colour in enumerate(colours):
        numbers[... if colour is None else colour] = n
    return numbers


def _chosen(stack: Array, place: np.ndarray | None, which: np.ndarray) -> Array:
    """Per element of y, what the pull of its position gave."""
    if place is None:
        # Without places, elements of y reach several positions: what all pulls gave adds up.
        return stack.sum(0)
    at = np.broadcast_to(place, stack.shape[1:])
    # Place −1 (no position) reads any pull and is set to zero below.
    values = jnp.take_along_axis(stack, which[np.maximum(at, 0)][None], 0)[0]
    return jnp.where(at >= 0, values, 0) if (at < 0).any() else values


def _plus(a: Entry, b: Array) -> Array:
    return b if a is None else a + b
