"""A group's states side by side: one array (*varshape, S), with a column per state scalar.

The engine counts real state scalars, so a complex state is two of its slots. Here it is one complex column, and the
real blocks that the engine reads are put together to complex ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .._compat import common_dtype
from ..compiler.analysis import Group
from ..compiler.ir import Leaf
from ..runtime import Layout, layout_with, plain_algebra
from ..runtime.blocks import Block


class StateObject(Protocol):
    """A hidden state of a front end that says itself which of its axes are positions."""

    varshape: Sequence[int]
    value: object


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a group, by the engine's layout of it; `states` are the objects that the layout is of."""

    layout: Layout
    states: tuple[object, ...] = ()

    def are_of(self, states: Sequence[object]) -> bool:
        """Whether the layout was made for these states."""
        return len(states) == len(self.states) and all(a is b for a, b in zip(states, self.states, strict=True))

    @property
    def varshape(self) -> tuple[int, ...]:
        return tuple(self.layout.group.varshape)

    @property
    def num_state(self) -> int:
        return len(self.slots)

    @cached_property
    def slots(self) -> list[tuple[int, int | None]]:
        """Per column, the number of its slot, and of that of its imaginary part if it is complex."""
        slots = self.layout.slots
        real = [n for n, slot in enumerate(slots) if not slot.imaginary]
        # The layout puts the imaginary part of a complex scalar right behind its real part.
        return [(n, n + 1 if n + 1 < len(slots) and slots[n + 1].imaginary else None) for n in real]

    @cached_property
    def orders(self) -> list[np.ndarray | None]:
        """Per state, its flat elements by (position, column); None if they are in that order already."""
        orders: list[np.ndarray | None] = []
        for leaf in self.layout.group.leaves:
            indices = [s.index for s in self.layout.slots if s.leaf == leaf and not s.imaginary]
            # indices[s][p] is the element of column s at position p: stacked last, columns vary fastest.
            order = None if indices[0] is None else np.stack([i for i in indices if i is not None], axis=-1).reshape(-1)
            orders.append(None if order is None or np.array_equal(order, np.arange(order.size)) else order)
        return orders

    @property
    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """Shape and type of each state."""
        return [self.layout.avals[leaf] for leaf in self.layout.group.leaves]

    def _width(self, aval: jax.ShapeDtypeStruct) -> int:
        """The number of columns of a state."""
        return aval.size // max(self.layout.group.num_positions, 1)

    def concat(self, values: Iterable[object]) -> jax.Array:
        """One array from one value per state, behind the same leading axes; units are dropped."""
        arrays = [jnp.asarray(leaf) for value in values for leaf in jax.tree.leaves(value)]
        if len(arrays) != len(self.orders):
            raise ValueError(
                f"this group has {len(self.orders)} hidden states, got {len(arrays)} values; pass one for each."
            )
        lead = _lead(arrays, self.avals)
        columns = []
        for array, aval, order in zip(arrays, self.avals, self.orders, strict=True):
            flat = array.reshape(*lead, aval.size)
            column = flat if order is None else flat[..., order]
            columns.append(column.reshape(*lead, *self.varshape, self._width(aval)))
        dtype = common_dtype(*(c.dtype for c in columns))
        return jnp.concatenate([c.astype(dtype) for c in columns], axis=-1)

    def split(self, array: object) -> list[jax.Array]:
        """The inverse of `concat`, up to units: one value per state, behind the array's leading axes."""
        (joined,) = map(jnp.asarray, jax.tree.leaves(array))
        shape = (*self.varshape, self.num_state)
        if joined.shape[max(joined.ndim - len(shape), 0) :] != shape:
            raise ValueError(
                f"an array of shape {list(joined.shape)} is not of this group: expected {list(shape)}, behind any "
                "leading axes. The last axis counts the states at a position."
            )
        lead, out, at = joined.shape[: joined.ndim - len(shape)], [], 0
        same_type = len({aval.dtype for aval in self.avals}) == 1
        for aval, order in zip(self.avals, self.orders, strict=True):
            end = at + self._width(aval)
            flat = joined[..., at:end].reshape(*lead, aval.size)
            # The inverse of a permutation is its argsort.
            value = (flat if order is None else flat[..., np.argsort(order)]).reshape(*lead, *aval.shape)
            out.append(value if same_type else _cast(value, aval.dtype))
            at = end
        return out

    def blocks(self, block: Block) -> jax.Array:
        """(*varshape, S, S) from the engine's real blocks.

        A complex state's derivative in a complex one is ∂Re h'/∂Re h - i ∂Re h'/∂Im h, which is the derivative itself
        where the step is holomorphic, and what reverse mode gives for the cotangent 1 where it is not.
        """
        entries, rows = [], plain_algebra(self.layout, False).full(block, self.layout.shape)
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


def _lead(arrays: Sequence[jax.Array], avals: Sequence[jax.ShapeDtypeStruct]) -> tuple[int, ...]:
    """The leading axes that all values have before the axes of their states."""
    leads = {a.shape[: max(a.ndim - len(aval.shape), 0)] for a, aval in zip(arrays, avals, strict=True)}
    lead = next(iter(leads), ())
    if len(leads) > 1 or any(a.shape != (*lead, *aval.shape) for a, aval in zip(arrays, avals, strict=True)):
        raise ValueError(
            f"values of shapes {', '.join(str(list(a.shape)) for a in arrays)} are not of this group: expected "
            f"{', '.join(str(list(aval.shape)) for aval in avals)}, all behind the same leading axes."
        )
    return lead


def _cast(value: jax.Array, dtype: DTypeLike) -> jax.Array:
    """A state's value in its own type, from an array in the common type of several states."""
    real = jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return (value.real if real else value).astype(dtype)


def _complex(real: jax.Array, imaginary: jax.Array | None) -> jax.Array:
    return real if imaginary is None else real + 1j * imaginary


def _stacked(parts: Sequence[jax.Array]) -> jax.Array:
    dtype = common_dtype(*(p.dtype for p in parts))
    return jnp.stack([p.astype(dtype) for p in parts], axis=-1)


# What holds a hidden state: an object of a front end, a leaf of a traced step, or the array itself.
HiddenObject: TypeAlias = Leaf | StateObject | jax.Array


def columns_of_states(states: Sequence[HiddenObject]) -> Columns:
    """The columns of states that were put together by hand: the last axis of a grouped state counts state scalars."""
    avals, place, slot, first = {}, [], [], 0
    shapes = varshapes(states)
    for i, (state, varshape) in enumerate(zip(states, shapes, strict=True)):
        value = state.aval if isinstance(state, Leaf) else jax.tree.leaves(getattr(state, "value", state))[0]
        avals[i] = jax.ShapeDtypeStruct(value.shape, value.dtype)
        # Element (p, s) of a grouped state is at position p, in column first + s.
        positions, n = int(np.prod(varshape)), int(np.prod(value.shape[len(varshape) :]))
        place.append(np.repeat(np.arange(positions), n).reshape(value.shape))
        slot.append(np.tile(np.arange(first, first + n), positions).reshape(value.shape))
        first += n
    size = int(np.prod(shapes[0])) if shapes else 0
    group = Group(0, tuple(avals), size, first, shapes[0] if shapes else (), tuple(place), tuple(slot))
    return Columns(layout_with(group, avals), tuple(states))


def varshapes(states: Sequence[HiddenObject]) -> list[tuple[int, ...]]:
    """The shape of each state's positions: as a state says itself (brainstate's `varshape`), or that of its array."""
    shapes = []
    for state in states:
        if isinstance(state, Leaf):
            shapes.append(tuple(state.aval.shape[:-1] if state.state_axis else state.aval.shape))
        else:
            varshape = getattr(state, "varshape", None)
            shapes.append(np.shape(cast(jax.Array, state)) if varshape is None else tuple(varshape))
    return shapes
