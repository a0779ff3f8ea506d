"""Where the elements of a group's states are in one array with a last state axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._compat import common_dtype
from ..analysis._positions import Group


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions of shape `varshape` with one column per state scalar.

    State i holds `counts[i]` scalars at each position. `orders[i]` lists its flat elements by (position, scalar), or is
    None if they are in that order already. `dtypes[i]` is None where only the value itself can tell.
    """

    varshape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    orders: tuple[np.ndarray | None, ...]
    dtypes: tuple[Any, ...]

    @property
    def num_state(self) -> int:
        return sum(self.counts)

    def concat(self, values: Sequence[Any]) -> jax.Array:
        """One array (*varshape, num_state); units are dropped."""
        if len(values) != len(self.counts):
            raise ValueError(
                f"this group has {len(self.counts)} hidden states, got {len(values)} values; pass one for each."
            )
        columns = []
        for value, n, order in zip(values, self.counts, self.orders, strict=True):
            (array,) = jax.tree.leaves(value)
            flat = jnp.reshape(array, -1)
            columns.append((flat if order is None else flat[order]).reshape(*self.varshape, n))
        return jnp.concatenate(_promoted(columns), axis=-1)

    def split(self, array: Any) -> list[jax.Array]:
        """The inverse of `concat`, up to units."""
        out, at = [], 0
        for shape, n, order, dtype in zip(self.shapes, self.counts, self.orders, self.dtypes, strict=True):
            flat = array[..., at : at + n].reshape(-1)
            if order is not None:
                flat = flat[np.argsort(order)]
            out.append(_cast(flat.reshape(shape), dtype))
            at += n
        return out


def _promoted(columns: Sequence[jax.Array]) -> list[jax.Array]:
    dtype = columns[0].dtype
    for c in columns[1:]:
        dtype = common_dtype(dtype, c.dtype)
    return [c.astype(dtype) for c in columns]


def _cast(x: jax.Array, dtype: Any) -> jax.Array:
    if dtype is None or x.dtype == dtype:
        return x
    real = jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return (x.real if real else x).astype(dtype)


def reordered(group: Group, order: Sequence[int]) -> Group:
    """The same group with its leaves in another order."""
    leaves, place, slot = (tuple(part[k] for k in order) for part in (group.leaves, group.place, group.slot))
    return replace(group, leaves=leaves, place=place, slot=slot)


def layout_of_group(group: Group, leaves: Sequence[Any]) -> Layout:
    """The layout that the analysis found; `leaves` are the step's state leaves."""
    orders: list[np.ndarray | None] = []
    counts = []
    for place, slot in zip(group.place, group.slot, strict=True):
        n = place.size // max(group.num_positions, 1)
        rank = place.reshape(-1).astype(np.int64) * group.num_state + slot.reshape(-1)
        order = np.argsort(rank, kind="stable")
        orders.append(None if np.array_equal(order, np.arange(order.size)) else order)
        counts.append(n)
    avals = [leaves[i].aval for i in group.leaves]
    return Layout(
        tuple(group.varshape),
        tuple(a.shape for a in avals),
        tuple(counts),
        tuple(orders),
        tuple(a.dtype for a in avals),
    )


def layout_of_states(states: Sequence[Any]) -> Layout:
    """The layout of states of one shape, as they say themselves: brainstate's `varshape` and `num_state`, or leaves."""
    shapes = [_varshape(s) for s in states]
    counts = [_num_state(s) for s in states]
    full = [(*v, n) if _has_state_axis(s) else v for s, v, n in zip(states, shapes, counts, strict=True)]
    return Layout(shapes[0] if shapes else (), tuple(full), tuple(counts), (None,) * len(counts), (None,) * len(counts))


def _has_state_axis(state: Any) -> bool:
    if hasattr(state, "aval"):
        return state.state_axis
    return len(state.varshape) < len(jax.tree.leaves(state.value)[0].shape)


def _varshape(state: Any) -> tuple[int, ...]:
    if hasattr(state, "aval"):
        return tuple(state.aval.shape[:-1] if state.state_axis else state.aval.shape)
    return tuple(state.varshape)


def _num_state(state: Any) -> int:
    if hasattr(state, "aval"):
        return int(state.aval.shape[-1]) if state.state_axis else 1
    return int(state.num_state)


def varshapes(states: Sequence[Any]) -> list[tuple[int, ...]]:
    """The shape of each state's positions."""
    return [_varshape(s) for s in states]
