"""Products of the blocks D of a group over a window, where blocks are narrow or do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._machine import machine
from ._blocks import Block, block_product
from ._layout import Layout
from ._structure import Evens, products
from ._suffix import real_dtype

# What the products of blocks that do not change are called in a compiled program.
POWERS = "powers_of_blocks"


def narrowed(a: Array, along: Sequence[bool]) -> Array:
    """One element along axes that are even."""
    return a[tuple(slice(0, 1) if even else slice(None) for even in along)]


def shortened(shape: Sequence[int], along: Sequence[bool]) -> tuple[int, ...]:
    """A shape with axes of one where they are even."""
    return tuple(1 if even else n for n, even in zip(shape, along, strict=True))


class Products:
    """Products of the blocks of one group over a window. Entries are given by group and place in the block."""

    def __init__(self, layout: Layout, known: Evens, group: int, fixed: Mapping, changing: Mapping,
                 steep: bool):  # fmt: skip
        self.n, self.known, self.steep = layout.size, known, steep
        self.kind = np.result_type(*(real_dtype(layout.avals[i].dtype) for i in layout.group.leaves))
        self.shapes = [
            [None if e is None else shortened(layout.shape, e.along) for e in line]
            for line in products(known, len(layout.shape))
        ]
        self.fixed = {(s, t): a for (g, s, t), a in fixed.items() if g == group}
        self.changing = {(s, t): a for (g, s, t), a in changing.items() if g == group}

    def _fitted(self, block: Block, lead: tuple[int, ...] = ()) -> Block:
        """A block in the shapes and type of products, so that a loop can carry it."""

        def fit(a: Array | None, shape: tuple[int, ...] | None) -> Array | None:
            if shape is None:
                return None
            shape = (*lead, *shape)
            return jnp.zeros(shape, self.kind) if a is None else jnp.broadcast_to(a, shape).astype(self.kind)

        pairs = zip(block, self.shapes, strict=True)
        return [[fit(a, shape) for a, shape in zip(line, shapes, strict=True)] for line, shapes in pairs]

    def _eye(self) -> Block:
        one = jnp.ones((), self.kind)
        return self._fitted([[one if s == t else None for t in range(self.n)] for s in range(self.n)])

    def _block(self, entries: Mapping[tuple[int, int], Array]) -> Block:
        return [[entries.get((s, t)) for t in range(self.n)] for s in range(self.n)]

    def suffixes(self, steps: int) -> tuple[Block, Block]:
        """D_K ··· D_1, and D_K ··· D_{k+1} stacked over k."""

        def body(suffix: Block, step: Mapping[tuple[int, int], Array]) -> tuple[Block, Block]:
            return self._fitted(block_product(suffix, self._block({**self.fixed, **step}), self.steep)), suffix

        return lax.scan(body, self._eye(), self.changing, steps, reverse=True)

    @partial(jax.named_call, name=POWERS)
    def powers(self, steps: int) -> tuple[Block, Block]:
        """D^K, and D^(K−k) stacked over k: each round doubles how many there are.

        They are those of every window: the compiler takes them out of the loop over windows, which a test holds it to.
        """
        if self.n > machine().unrolled_power_states:
            return self._stacked_powers(steps)
        block, count = self._block(self.fixed), 1
        found = [[None if a is None else a[None] for a in line] for line in self._eye()]
        square = block
        while count < steps:
            more = self._fitted(block_product(found, square), (count,))
            found = [
                [None if a is None or b is None else jnp.concatenate([a, b]) for a, b in zip(p, q, strict=True)]
                for p, q in zip(found, more, strict=True)
            ]
            square, count = block_product(square, square), 2 * count
        last = [[None if a is None else a[steps - 1] for a in line] for line in found]
        return block_product(last, block), [[None if a is None else a[steps - 1 :: -1] for a in line] for line in found]

    def _stacked_powers(self, steps: int) -> tuple[Block, Block]:
        """The same of blocks as whole arrays (s, t, positions): as many operations, however many states there are."""
        shape = np.broadcast_shapes(*(known for line in self.shapes for known in line if known is not None))
        n, zero = self.n, jnp.zeros((), self.kind)
        block = [[self.fixed.get((s, t), zero) for t in range(n)] for s in range(n)]
        square = jnp.stack([jnp.stack([jnp.broadcast_to(a, shape).astype(self.kind) for a in row]) for row in block])
        found = jnp.broadcast_to(jnp.eye(n, dtype=self.kind).reshape(n, n, *(1 for _ in shape)), (1, n, n, *shape))
        while found.shape[0] <= steps:
            found = jnp.concatenate([found, jnp.sum(found[:, :, :, None] * square, 2)])
            square = jnp.sum(square[:, :, None] * square, 1)

        def entry(powers: Array, s: int, t: int) -> Array | None:
            narrow = self.shapes[s][t]
            return None if narrow is None else narrowed(powers[:, s, t], (False, *(size == 1 for size in narrow)))

        def entries(powers: Array) -> Block:
            return [[entry(powers, s, t) for t in range(n)] for s in range(n)]

        whole = [[None if a is None else a[0] for a in line] for line in entries(found[steps : steps + 1])]
        return whole, entries(found[steps - 1 :: -1])
