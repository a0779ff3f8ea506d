"""Where a value of a partitioned program is: which axis of the mesh cuts which of its dimensions, and what it shares.

| along an axis of the mesh, a value | in `Place` | its gradient on a device |
|---|---|---|
| is cut along a dimension | `dims[d] == axis` | that of the slice |
| is a sum whose terms are on the devices | `axis in partial` | that of the term |
| is the same everywhere, made of data | `axis in shared` | the whole, on every device |
| is the same everywhere, made of parameters and constants | none of these | a share of it |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

from .._compat import JaxprEqn, is_concrete


@dataclass(frozen=True)
class Place:
    """Where a value of a partitioned program is: the axes of the mesh that cut it, sum it or share it."""

    dims: tuple[str | None, ...]
    partial: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()

    @property
    def cut(self) -> frozenset[str]:
        """Axes of the mesh that cut a dimension."""
        return frozenset(a for a in self.dims if a is not None)

    @property
    def own(self) -> frozenset[str]:
        """Axes along which each device has something of its own."""
        return self.cut | self.partial

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec(*self.dims)

    def moved(self, dims: Sequence[str | None]) -> Place:
        """The same in other dimensions."""
        return replace(self, dims=tuple(dims))


@dataclass(frozen=True, eq=False)
class Local:
    """A value as this device has it, and the shape of the whole.

    `made` says how a value was made, so that a slice along what is whole can be made of slices. `learned` says that
    parameters are in it, `leaf` its number among the parameters if it is one, `bits` that all its elements are 0 or 1.
    `reads` are the parameters that act on it within the step, other than through data of a weight op that is cut from
    them; `foreign` those of `reads` that do so on other devices too, each with the axis of the mesh.
    """

    value: Any
    place: Place
    shape: tuple[int, ...]
    made: tuple[JaxprEqn, tuple[Local, ...]] | None = None
    learned: bool = False
    leaf: int | None = None
    bits: bool = False
    reads: frozenset[int] = frozenset()
    foreign: frozenset[tuple[str, int]] = frozenset()

    @property
    def whole(self) -> bool:
        return not self.place.own


def constant(value: Any) -> Local:
    """A number or an array of the model, the same everywhere."""
    shape = tuple(np.shape(value))
    return Local(value, Place((None,) * len(shape)), shape)


# Elements of the operands, moved, chosen or multiplied: of zeros and ones, zeros and ones.
_KEEP_BITS = frozenset({
    "convert_element_type", "copy", "copy_p", "stop_gradient", "reshape", "transpose", "squeeze", "expand_dims",
    "broadcast_in_dim", "slice", "rev", "concatenate", "mul", "max", "min", "select_n",
})  # fmt: skip


def are_bits(x: Local) -> bool:
    """Whether all elements are 0 or 1, whatever the inputs: followed back to comparisons and constants."""
    if x.bits or np.dtype(bool) == getattr(x.value, "dtype", None):
        return True
    if is_concrete(x.value):
        return bool(np.isin(np.asarray(x.value), (0, 1)).all())
    eqn, operands = x.made or (None, ())
    return eqn is not None and eqn.primitive.name in _KEEP_BITS and all(map(are_bits, operands))


def merged_dims(rank: int, dims: Iterable[Sequence[str | None]]) -> tuple[str | None, ...]:
    """One axis of the mesh for each dimension, from values of one shape; an axis cuts the first that asks."""
    found: list[str | None] = [None] * rank
    for own in dims:
        for d, axis in enumerate(own):
            if axis is not None and found[d] is None and axis not in found:
                found[d] = axis
    return tuple(found)
