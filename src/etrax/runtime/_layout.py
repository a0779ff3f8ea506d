"""Where the state scalars of a group are: between arrays per hidden leaf and arrays per state scalar.

A state scalar (slot) is one real number at every position. A complex leaf gives two, its real and imaginary part, so
that blocks are real matrices whatever the model does to complex numbers. Cotangents follow JAX: a complex cotangent c̄
stands for dL = Re(c̄ dh), so its coordinates are (Re c̄, −Im c̄).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._compat import common_dtype
from .._machine import machine
from ..compiler.analysis import Facts, Group

MOST_CONCATENATED = 8  # repeats that are written as one concatenation
MOST_TRANSPOSED = 3  # axes of positions whose orders are tried


@dataclass(frozen=True)
class Slot:
    """One state scalar: elements `index` of a leaf (None: all, in order), real or imaginary part.

    `number` is that of the elements at their positions (`Group.slot`). Where some axes of the leaf are those of its
    states and the others those of positions, `corner` has the index along each of the former, None along the latter.
    """

    leaf: int
    index: np.ndarray | None
    imaginary: bool = False
    number: int = 0
    corner: tuple[int | None, ...] | None = None

    def take(self, value: Array) -> Array:
        """Its elements of the leaf, in the order of positions."""
        if self.index is None:
            return value
        if self.corner is not None:  # slices, of which it is known what is equal along which axis
            for axis in reversed(range(value.ndim)):
                at = self.corner[axis]
                value = value if at is None else lax.index_in_dim(value, at, axis, keepdims=False)
            return value
        flat, regular = value.reshape(-1), _along_axis(self.index, value.size)
        if regular is None:
            return flat[self.index]
        lead, k, trail = regular
        return lax.index_in_dim(flat.reshape(lead, -1, trail), k, 1, keepdims=False)


def _along_axis(index: np.ndarray, size: int) -> tuple[int, int, int] | None:
    """(lead, k, trail) of indices that are element k of the middle one of three axes, if they are."""
    if index.size == 0 or size % index.size:
        return None
    trail = int(np.argmax(np.append(np.diff(index) != 1, True))) + 1
    lead, k = index.size // trail, int(index[0]) // trail
    if lead * trail != index.size or k >= size // index.size:
        return None
    expected = np.arange(size).reshape(lead, -1, trail)[:, k]
    return (lead, k, trail) if np.array_equal(expected.reshape(-1), index) else None


@dataclass(frozen=True, eq=False)
class Layout:
    """The slots of a group; arrays per slot have shape `shape`.

    `known` tells of each pair of slots (new, old) whether the old one can act on the new one; None: all can.
    `stacked_as` says whether blocks are arrays, where another layout has decided that.
    `counts` has, per slot, how many states it stands for that differ by their leaks (`Facts.leaky`): arrays per slot
    then have a first axis of leaks, of length one for a slot of one state. It is empty if every slot is of one.
    """

    group: Group
    slots: tuple[Slot, ...]
    shape: tuple[int, ...]
    avals: Mapping[int, jax.ShapeDtypeStruct]
    known: np.ndarray | None = None
    stacked_as: bool | None = None
    counts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.slots)

    def read(self, cotangents: Mapping[int, Array]) -> list[Array]:
        """Cotangents per leaf → real values per slot."""
        return [self._value(s, cotangents[s.leaf]) for s in self.slots]

    def _value(self, s: Slot, cotangent: Array) -> Array:
        if jnp.iscomplexobj(cotangent):
            # JAX's cotangent of a complex state is (∂L/∂Re) − i (∂L/∂Im).
            cotangent = -jnp.imag(cotangent) if s.imaginary else jnp.real(cotangent)
        return s.take(cotangent).reshape(self.shape)

    def coordinates(self, tangents: Mapping[int, Array]) -> list[Array] | Array:
        """Tangents per leaf → real values per slot, in a list or stacked."""
        if self.stacked and self._slot_axes is not None:
            return self._moved_axes(tangents, self._slot_axes)
        out = []
        for s in self.slots:
            value = tangents[s.leaf]
            value = jnp.imag(value) if s.imaginary else jnp.real(value)
            out.append(s.take(value).reshape(self.shape))
        return jnp.stack(out) if self.stacked else out

    def probe(self, s: int, colour: np.ndarray | None = None) -> dict[int, np.ndarray]:
        """Cotangents per leaf that read slot s at all positions, or at those where `colour` is true."""
        out = {}
        for leaf in self.group.leaves:
            aval = self.avals[leaf]
            # numpy has no bfloat16; the probe is cast when it is used.
            value = np.zeros(aval.shape, aval.dtype if aval.dtype.name != "bfloat16" else np.float32)
            if leaf == self.slots[s].leaf:
                # The imaginary part is read by −i, since JAX pulls back the conjugate.
                one = -1j if self.slots[s].imaginary else 1.0
                where = np.ones(self.group.num_positions, bool) if colour is None else colour
                index = self.slots[s].index
                flat = value.reshape(-1)
                at = np.arange(flat.size) if index is None else index
                flat[at] = np.where(where, one, 0)
            out[leaf] = value
        return out

    def without_slots(self) -> Layout:
        """That of the same group where nothing of it is asked for."""
        return replace(self, slots=(), known=None, counts=())

    @cached_property
    def links(self) -> np.ndarray:
        """(S, S): whether slot t of the old state can act on slot s of the new one."""
        return np.ones((self.size, self.size), bool) if self.known is None else self.known

    @cached_property
    def stacked(self) -> bool:
        """Whether blocks and traces of this group are arrays with an axis of slots, not lists: `blocks/_stacked.py`."""
        if self.stacked_as is not None:
            return self.stacked_as
        return int((closure(self.links).astype(np.int64) @ self.links).sum()) > machine().unrolled_block_terms

    def vector(self, cotangents: Mapping[int, Array]) -> list[Array] | Array:
        """Cotangents per leaf → real values per slot, in a list or stacked."""
        if self.counts:
            return self._by_leak(cotangents)
        return self.stack(cotangents) if self.stacked else self.read(cotangents)

    def _by_leak(self, cotangents: Mapping[int, Array]) -> list[Array]:
        """Cotangents per leaf, with a first axis of leaks where it stands for several → real values per slot."""
        leaky = {s.leaf for s, count in zip(self.slots, self.counts, strict=True) if count > 1}
        lifted = {i: a if i in leaky else a[None] for i, a in cotangents.items()}
        return [
            jax.vmap(lambda a, n=n: self._value(self.slots[n], a))(lifted[s.leaf]) for n, s in enumerate(self.slots)
        ]

    @property
    def leads(self) -> list[tuple[int, ...]]:
        """Per slot, the shape before that of positions."""
        return [(n,) for n in self.counts] if self.counts else [()] * self.size

    @property
    def lead(self) -> int:
        """The number of axes before those of positions."""
        return 1 if self.counts else 0

    def at_y(self, gather: Callable[[Array], Array], a: Array) -> Array:
        """Values per position, behind an axis of leaks if there is one, at the elements of y."""
        a = jnp.broadcast_to(a, (*a.shape[: self.lead], *self.shape))
        return jax.vmap(gather)(a) if self.lead else gather(a)

    def stack(self, cotangents: Mapping[int, Array]) -> Array:
        """Cotangents per leaf → real values (S, *shape), by one read of each."""
        if self._slot_axes is not None:
            return self._moved_axes(cotangents, self._slot_axes)
        parts, values, order, at = dict.fromkeys((s.leaf, s.imaginary) for s in self.slots), [], [], {}
        for leaf, imaginary in parts:
            value = cotangents[leaf]
            if jnp.iscomplexobj(value):
                value = -jnp.imag(value) if imaginary else jnp.real(value)
            at[leaf, imaginary] = sum(a.size for a in values)
            values.append(value.reshape(-1))
        dtype = common_dtype(*(a.dtype for a in values))
        every = jnp.concatenate([a.astype(dtype) for a in values])
        for s in self.slots:
            index = np.arange(self.group.num_positions) if s.index is None else s.index
            order.append(at[s.leaf, s.imaginary] + index)
        # All leaves are concatenated once and read by one gather; in order, not even that is needed.
        where = np.stack(order)
        if np.array_equal(where.reshape(-1), np.arange(every.size)):
            return every.reshape(self.size, *self.shape)
        return every[where].reshape(self.size, *self.shape)

    @cached_property
    def _slot_axes(self) -> dict[int, list[int]] | None:
        """Per leaf, the axes of its states, if all of them are slots and the other axes are those of positions."""
        axes: dict[int, list[int]] = {}
        for s in self.slots:
            if s.corner is None or s.imaginary:
                return None
            along = [a for a, at in enumerate(s.corner) if at is not None]
            if axes.setdefault(s.leaf, along) != along:
                return None
        counts = {leaf: sum(s.leaf == leaf for s in self.slots) for leaf in axes}
        sizes = {leaf: math.prod(self.avals[leaf].shape[a] for a in along) for leaf, along in axes.items()}
        return axes if counts == sizes else None

    def _moved_axes(self, cotangents: Mapping[int, Array], axes: Mapping[int, list[int]]) -> Array:
        """Values (S, *shape), with axes of states moved before those of positions."""
        parts = [
            jnp.real(jnp.moveaxis(cotangents[leaf], along, range(len(along)))).reshape(-1, *self.shape)
            for leaf, along in axes.items()
        ]
        dtype = common_dtype(*(a.dtype for a in parts))
        return jnp.concatenate([a.astype(dtype) for a in parts]) if len(parts) > 1 else parts[0]


def layout_of(facts: Facts, group: Group, without: Sequence[int] = ()) -> Layout:
    """The layout of a group without some of its leaves: slots in the group's order, two for a complex state."""
    layout = layout_with(group, {leaf: facts.states[leaf].aval for leaf in group.leaves}, without)
    counts = {i: leaky.length for leaky in facts.leaky for i in leaky.states}
    leads = tuple(counts.get(s.leaf, 1) for s in layout.slots)
    return replace(layout, counts=leads) if any(n > 1 for n in leads) else layout


def layout_with(group: Group, avals: Mapping[int, jax.ShapeDtypeStruct], without: Sequence[int] = ()) -> Layout:
    """The layout of a group whose leaves have other shapes and types, `avals`, but for some leaves."""
    slots: list[Slot] = []
    plain = all(p.size == group.num_positions and np.array_equal(p.reshape(-1), np.arange(p.size)) for p in group.place)
    for leaf, place, slot in zip(group.leaves, group.place, group.slot, strict=True):
        if leaf in without:
            continue
        parts = (False, True) if np.issubdtype(avals[leaf].dtype, np.complexfloating) else (False,)
        if plain:
            slots += [Slot(leaf, None, im, int(slot.reshape(-1)[0])) for im in parts]
            continue
        for k in np.unique(slot):
            at = np.flatnonzero(slot.reshape(-1) == k)
            index = np.empty(group.num_positions, np.int64)
            index[place.reshape(-1)[at]] = at
            slots += [Slot(leaf, index, im, int(k)) for im in parts]
    shapes = {avals[leaf].shape for leaf in group.leaves}
    if plain and len(shapes) == 1:
        return Layout(group, tuple(slots), shapes.pop(), avals)
    corners = [_corner(s, avals[s.leaf].shape) for s in slots]
    shapes = {shape for shape, _ in corners}
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None:
        return Layout(group, tuple(slots), (group.num_positions,), avals)
    return Layout(group, tuple(replace(s, corner=at) for s, (_, at) in zip(slots, corners, strict=True)), shape, avals)


def _corner(slot: Slot, shape: Sequence[int]) -> tuple[tuple[int, ...] | None, tuple[int | None, ...]]:
    """The shape of positions and the corner of a slot whose elements are those at one place along some axes.

    The shape is None if they are not, or if positions come in another order.
    """
    if slot.index is None or not slot.index.size:
        return (None, ())
    # Of each axis, whether its index is that of the first element for all elements.
    places = np.stack(np.unravel_index(slot.index, shape)) if shape else np.zeros((0, 1), np.int64)
    alike = (places == places[:, :1]).all(1)
    corner = tuple(int(p[0]) if a and n > 1 else None for p, a, n in zip(places, alike, shape, strict=True))
    there = np.arange(math.prod(shape)).reshape(shape)[tuple(slice(None) if c is None else c for c in corner)]
    return (there.shape if np.array_equal(there.reshape(-1), slot.index) else None), corner


def closure(links: np.ndarray) -> np.ndarray:
    """Reflexive transitive closure."""
    n = links.shape[0]
    closed = links | np.eye(n, dtype=bool)
    for _ in range(max(n.bit_length(), 1)):
        closed = (closed.astype(np.int64) @ closed.astype(np.int64)) > 0
    return closed


@dataclass(frozen=True, eq=False)
class Gather:
    """From arrays per position to arrays per element of y.

    `repeat` (lead, times, trail) is the common case of positions repeated along one axis (the gates of a fused matmul),
    after their axes are put in the order `axes` (where a product puts its samples last); `index` the general one, with
    -1 for elements that reach no position.
    """

    shape: tuple[int, ...]
    repeat: tuple[int, int, int] | None
    index: np.ndarray | None
    axes: tuple[int, ...] = ()
    varshape: tuple[int, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether elements of y are positions, in their order."""
        return self.repeat is not None and self.repeat[1] == 1 and not self.axes

    def __call__(self, p: Array) -> Array:
        if self.repeat is not None:
            lead, times, trail = self.repeat
            p = p.reshape(self.varshape).transpose(self.axes) if self.axes else p
            if times == 1:  # axes stay apart, so that what is equal along one of them is known to be
                return p.reshape(self.shape)
            p = p.reshape(lead, trail)
            # A concatenation is stored, where a broadcast would be indexed by remainders in every loop that reads it.
            few = times <= MOST_CONCATENATED
            p = jnp.concatenate([p] * times, 1) if few else jnp.broadcast_to(p[:, None], (lead, times, trail))
            return p.reshape(self.shape)
        assert self.index is not None
        at_y = self.of_any(p)
        return jnp.where(self.index >= 0, at_y, 0) if (self.index < 0).any() else at_y

    def of_any(self, p: Array) -> Array:
        """Read positions at the elements of y; an element that reaches none gets the value of an arbitrary position."""
        return self(p) if self.index is None else p.reshape(-1)[np.maximum(self.index, 0)]


def gather_of(place: np.ndarray, varshape: Sequence[int], positions: int) -> Gather:
    """The cheapest way to read positions at the elements of y."""
    if place.size % max(positions, 1) == 0 and positions and place.size:
        orders = [()]
        if 1 < len(varshape) <= MOST_TRANSPOSED and np.prod(varshape) == positions:
            orders += list(permutations(range(len(varshape))))[1:]
        for axes in orders:
            numbers = np.arange(positions)
            shape = [varshape[a] for a in axes] if axes else varshape
            repeat = _repeat_of(
                numbers.reshape(varshape).transpose(axes).reshape(-1) if axes else numbers, shape, place
            )
            if repeat is not None:
                return Gather(place.shape, repeat, None, axes, tuple(varshape))
    return Gather(place.shape, None, place)


def _repeat_of(numbers: np.ndarray, shape: Sequence[int], place: np.ndarray) -> tuple[int, int, int] | None:
    """(lead, times, trail) if `place` is these numbers, each block of `trail` repeated."""
    times, lead = place.size // numbers.size, 1
    for n in (*shape, 1):
        trail = numbers.size // lead
        tiled = np.broadcast_to(numbers.reshape(lead, 1, trail), (lead, times, trail))
        if np.array_equal(tiled.reshape(-1), place.reshape(-1)):
            return lead, times, trail
        lead *= n
        if numbers.size % lead:
            break
    return None
