"""What a plan reads of D and F: at each step what changes, once before a window what is made of parameters only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..compiler.dataflow import Uniform, without_zeros
from ._readers import Reader
from ._structure import Along, Structure
from ._transport import WindowData
from .blocks import Block, Entry, Sparse, Step, Vector, narrowed


class FixedParts(NamedTuple):
    """Entries of D and F that are made of parameters only, and gains that were taken out of F."""

    blocks: Mapping[int, Block]
    rows: Mapping[int, Vector]
    gains: Mapping[int, Array]


@dataclass(frozen=True, eq=False)
class Recorder:
    """Reads what a structure does not know of D and F.

    `even_along` has, per relation to a group of many states, the axes of y along which its trace is equal.
    """

    reader: Reader
    structure: Structure
    even_along: Sequence[Along | None]

    @cached_property
    def _changing(self) -> tuple[list[int], Reader]:
        """The relations of which something changes from step to step, and their reader."""
        structure = self.structure
        read = [
            k
            for k, r in enumerate(self.reader.relations)
            if k not in structure.shared and not structure.is_known(k, r.group)
        ]
        every = len(read) == len(self.reader.relations)
        return read, self.reader if every else self.reader.of([self.reader.relations[k] for k in read])

    def record(self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Step:
        """The entries of D and F that change from step to step."""
        read, reader = self._changing
        if not read:
            return Step({}, {})
        blocks, rows = reader(leaves, weights, ys)
        groups = {self.reader.relations[k].group for k in read}
        return self._parts({g: blocks[g] for g in groups}, dict(zip(read, rows, strict=True)), fixed=False)

    def _parts(self, blocks: Mapping[int, Block], rows: Mapping[int, Vector], fixed: bool) -> Step:
        """Keep the entries that are fixed, or those that are not, with axes of one along which all is equal."""

        def part(a: Entry, even: Uniform | None) -> Entry:
            return None if a is None or even is None or even.fixed is not fixed else narrowed(a, even.along)

        structure = self.structure
        some_blocks: dict[int, Block] = {}
        some_rows: dict[int, Vector] = {}
        for g, d in blocks.items():
            evens = structure.blocks.get(g)
            if evens is not None:
                pairs = zip(d, evens, strict=True)
                d = [[part(a, e) for a, e in zip(line, even, strict=True)] for line, even in pairs]
            if evens is not None or not fixed:
                some_blocks[g] = d
        for k, f in rows.items():
            if k in structure.rows:
                f = [part(a, e) for a, e in zip(f, structure.rows[k], strict=True)]
            if k in structure.rows or not fixed:
                some_rows[k] = f
        return (
            Step(*self._even_parts(some_blocks, some_rows)) if structure.even_blocks else Step(some_blocks, some_rows)
        )

    def _even_parts(
        self, blocks: Mapping[int, Block], rows: Mapping[int, Vector]
    ) -> tuple[dict[int, Block], dict[int, Vector]]:
        """Blocks and rows of groups with many states, with axes of one where all along them is equal."""
        even, alongs = self.structure.even_blocks, self.even_along
        narrow = {
            g: Sparse(narrowed(d.values, (False, *even[g])), d.pattern) if g in even else d for g, d in blocks.items()
        }
        return narrow, {k: f if (a := alongs[k]) is None else narrowed(f, (False, *a)) for k, f in rows.items()}

    def fixed(self, window: WindowData) -> FixedParts:
        """The entries of D and F that are made of parameters only, read with nothing in place of states."""
        structure = self.structure
        if not structure.blocks:
            return FixedParts({}, {}, {})
        leaves, _, ys = self.reader.stand_ins()
        first, last = self.reader.facts.step.first_state, len(leaves) - len(window.steady)
        nothing = [jnp.zeros(a.shape, a.dtype) for a in leaves[first:last]]  # no entry that is taken reads them
        none = {j: jnp.zeros(y.shape, y.dtype) for j, y in ys.items()}
        narrow = list(structure.rows)
        reader = self.reader.of([self.reader.relations[k] for k in narrow])
        leaves = [*window.params, *nothing, *window.steady]

        # A plain function, for JAX prints what it traces; an entry that is a constant comes as a number.
        def read_step(
            leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
        ) -> tuple[list[Block], list[Vector]]:
            return reader(leaves, weights, ys)

        read_all = without_zeros(read_step, leaves, list(window.weights), none)
        blocks, read = jax.tree.map(jnp.asarray, read_all)
        rows = dict(zip(narrow, read, strict=True))
        # F = f · c: the gain c is multiplied with the credit, and f, which is one here, makes the trace.
        gains = {k: narrowed(rows[k][s], c.along) for k, (s, c) in structure.gains.items()}
        for k, (gained, _) in structure.gains.items():
            rows[k] = [jnp.ones_like(f) if s == gained else f for s, f in enumerate(rows[k])]
        parts = self._parts({g: blocks[g] for g in structure.blocks}, rows, fixed=True)
        return FixedParts(parts.blocks, parts.rows, gains)

    def read(self, fixed: FixedParts, record: Step) -> Step:
        """Put the fixed entries of D and F together with those that a step recorded."""
        unshared = [k for k in range(len(self.reader.relations)) if k not in self.structure.shared]
        groups = sorted({r.group for r in self.reader.relations})
        blocks = {g: self._block(fixed, record, g) for g in groups}
        return Step(blocks, {k: self._row(fixed, record, k) for k in unshared})

    def _block(self, fixed: FixedParts, record: Step, g: int) -> Block:
        # A block that is fixed throughout, or changes throughout, stands in one of the two alone.
        if g not in fixed.blocks or g not in record.blocks:
            return record.blocks.get(g, fixed.blocks.get(g))
        pairs = zip(fixed.blocks[g], record.blocks[g], strict=True)
        return [[a if a is not None else b for a, b in zip(one, two, strict=True)] for one, two in pairs]

    def _row(self, fixed: FixedParts, record: Step, k: int) -> Vector:
        if k not in fixed.rows or k not in record.rows:
            return record.rows.get(k, fixed.rows.get(k))
        return [a if a is not None else b for a, b in zip(fixed.rows[k], record.rows[k], strict=True)]
