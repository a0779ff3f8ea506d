"""A group's states side by side: one array (*varshape, S), with a column per state scalar.

The engine counts real state scalars, so a complex state is two of its slots. Here it is one complex column, and the
real blocks that the engine reads are put together to complex ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import common_dtype
from ..analysis import Group
from ..engine import AnyBlock, Layout, Sparse, full, layout_with
from ..ir import Leaf


class StateObject(Protocol):
    """A hidden state of a front end that says itself which of its axes are positions."""

    varshape: Sequence[int]
    value: object


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a group, by the engine's layout of it."""

    layout: Layout

    @property
    def varshape(self) -> tuple[int, ...]:
        return tuple(self.layout.group.varshape)

    @property
    def num_state(self) -> int:
        return len(self.slots)

    @cached_property
    def slots(self) -> list[tuple[int, int | None]]:
        """Per column, the number of its slot, and of that of its imaginary part if it is complex."""
        found = self.layout.slots
        numbers = [n for n, slot in enumerate(found) if not slot.imaginary]
        return [(n, n + 1 if n + 1 < len(found) and found[n + 1].imaginary else None) for n in numbers]

    @cached_property
    def orders(self) -> list[np.ndarray | None]:
        """Per state, its flat elements by (position, column); None if they are in that order already."""
        found: list[np.ndarray | None] = []
        for leaf in self.layout.group.leaves:
            indices = [s.index for s in self.layout.slots if s.leaf == leaf and not s.imaginary]
            order = None if indices[0] is None else np.stack([i for i in indices if i is not None], axis=-1).reshape(-1)
            found.append(None if order is None or np.array_equal(order, np.arange(order.size)) else order)
        return found

    def concat(self, values: Sequence[object]) -> jax.Array:
        """One array from one value per state; units are dropped."""
        if len(values) != len(self.orders):
            raise ValueError(
                f"this group has {len(self.orders)} hidden states, got {len(values)} values; pass one for each."
            )
        columns = []
        for value, order in zip(values, self.orders, strict=True):
            (array,) = jax.tree.leaves(value)
            flat = jnp.reshape(array, -1)
            columns.append((flat if order is None else flat[order]).reshape(*self.varshape, -1))
        dtype = common_dtype(*(c.dtype for c in columns))
        return jnp.concatenate([c.astype(dtype) for c in columns], axis=-1)

    def split(self, array: jax.Array) -> list[jax.Array]:
        """The inverse of `concat`, up to units."""
        out, at = [], 0
        for leaf, order in zip(self.layout.group.leaves, self.orders, strict=True):
            aval = self.layout.avals[leaf]
            end = at + aval.size // max(self.layout.group.num_positions, 1)
            flat = array[..., at:end].reshape(-1)
            flat = (flat if order is None else flat[np.argsort(order)]).reshape(aval.shape)
            real = jnp.iscomplexobj(flat) and not jnp.issubdtype(aval.dtype, jnp.complexfloating)
            out.append((flat.real if real else flat).astype(aval.dtype))
            at = end
        return out

    def blocks(self, block: AnyBlock) -> jax.Array:
        """(*varshape, S, S) from the engine's real blocks.

        A complex state's derivative in a complex one is ∂Re h'/∂Re h - i ∂Re h'/∂Im h, which is the derivative itself
        where the step is holomorphic, and what reverse mode gives for the cotangent 1 where it is not.
        """
        entries, rows = [], block.full() if isinstance(block, Sparse) else [full(row) for row in block]
        for new, new_imaginary in self.slots:
            for old, old_imaginary in self.slots:
                if old_imaginary is not None:
                    entry = rows[new][old] - 1j * rows[new][old_imaginary]
                else:
                    entry = _complex(rows[new][old], None if new_imaginary is None else rows[new_imaginary][old])
                entries.append(entry.reshape(self.varshape))
        return _stacked(entries).reshape(*self.varshape, self.num_state, self.num_state)

    def rows(self, rows: Sequence[jax.Array]) -> jax.Array:
        """(*shape of y, S) from one array of y's shape per slot."""
        parts = [
            _complex(rows[n], None if im is None or jnp.iscomplexobj(rows[n]) else rows[im]) for n, im in self.slots
        ]
        return _stacked(parts)


def _complex(real: jax.Array, imaginary: jax.Array | None) -> jax.Array:
    return real if imaginary is None else real + 1j * imaginary


def _stacked(parts: Sequence[jax.Array]) -> jax.Array:
    dtype = common_dtype(*(p.dtype for p in parts))
    return jnp.stack([p.astype(dtype) for p in parts], axis=-1)


def columns_of_states(states: Sequence[Leaf | StateObject]) -> Columns:
    """The columns of states that were put together by hand: the last axis of a grouped state counts state scalars."""
    avals, place, slot, first = {}, [], [], 0
    shapes = varshapes(states)
    for i, (state, varshape) in enumerate(zip(states, shapes, strict=True)):
        value = state.aval if isinstance(state, Leaf) else jax.tree.leaves(state.value)[0]
        avals[i] = jax.ShapeDtypeStruct(value.shape, value.dtype)
        positions, n = int(np.prod(varshape)), int(np.prod(value.shape[len(varshape) :]))
        place.append(np.repeat(np.arange(positions), n).reshape(value.shape))
        slot.append(np.tile(np.arange(first, first + n), positions).reshape(value.shape))
        first += n
    size = int(np.prod(shapes[0])) if shapes else 0
    group = Group(0, tuple(avals), size, first, shapes[0] if shapes else (), tuple(place), tuple(slot))
    return Columns(layout_with(group, avals))


def varshapes(states: Sequence[Leaf | StateObject]) -> list[tuple[int, ...]]:
    """The shape of each state's positions, as the state says itself: brainstate's `varshape`, or a leaf's own."""
    return [
        tuple(s.aval.shape[:-1] if s.state_axis else s.aval.shape) if isinstance(s, Leaf) else tuple(s.varshape)
        for s in states
    ]
