"""The step of one device: what `analyse` and the engine are given in place of the whole step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
from jax import Array, lax

from .._compat import build_jaxpr, is_inexact, open_jaxpr, without_dead_code
from ..analysis import Facts
from ..ir import Leaf, Role, Site, Step, equations
from ._partition import Walk
from ._place import Local, Place, constant

Dims = tuple[str | None, ...]


@dataclass(frozen=True, eq=False)
class Device:
    """Sizes of the mesh's axes that cut anything, and this device's number along each."""

    sizes: Mapping[str, int]
    at: Mapping[str, int]

    def walk(self, where: Array) -> Walk:
        """A walk whose program is this device's own; `where` are its coordinates."""
        return Walk(self.sizes, self.at, {a: where[i : i + 1] for i, a in enumerate(self.sizes)})

    def where(self) -> dict[str, Array]:
        """The number of the device that runs this along each axis of the mesh, under a map over these."""
        return {a: lax.axis_index(a)[None] for a in self.sizes}

    def walk_on_any(self, where: Mapping[str, Array]) -> Walk:
        """A walk whose program every device runs alike."""
        return Walk(self.sizes, None, where)

    @property
    def coordinates(self) -> np.ndarray:
        return np.asarray([self.at[a] for a in self.sizes], np.int32)

    def shape(self, shape: Sequence[int], dims: Dims) -> tuple[int, ...]:
        return tuple(n if a is None else n // self.sizes[a] for n, a in zip(shape, dims, strict=True))

    def struct(self, aval: jax.ShapeDtypeStruct, dims: Dims) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape(aval.shape, dims), aval.dtype)

    def place_of_data(self, dims: Dims) -> Place:
        """Data: shared wherever they are not cut."""
        return Place(dims, shared=frozenset(self.sizes) - frozenset(dims))


@dataclass(frozen=True, eq=False)
class LocalStep:
    """A device's step; where its outputs are; whether others have another; parameters that were cut on the way.

    `strays` are parameters whose elements on one device act on elements of a state on another within the step, or that
    act on a state by way of several devices while each has all of them, as (parameter, state, axis of the mesh): a
    trace of them would have to be sent.
    """

    step: Step
    outputs: tuple[Place, ...]
    differs: bool
    wanted: Mapping[int, Mapping[int, str]]
    strays: frozenset[tuple[int, int, str]]


def local_step(facts: Facts, dims: Sequence[Dims], device: Device) -> LocalStep:
    """The step of a device, given how the leaves of the whole one are cut."""
    outputs: list[Place] = []
    walks: list[Walk] = []
    strays: set[tuple[int, int, str]] = set()
    step, weights = facts.step, dict[Site, frozenset[int]]()
    for j in facts.cut:
        at = facts.sites[j].at
        weights[at] = weights.get(at, frozenset()) | {facts.sites[j].operand}
    states = len(step.states)

    def has_own(walk: Walk, p: int, axis: str) -> bool:
        return axis in dims[p] or axis in walk.wanted.get(p, {}).values()

    def run(where: Array, *leaves: Array) -> list[Array]:
        walk = device.walk(where)
        walks.append(walk)
        given = [
            _given(leaf, i, v, d, device) for i, (leaf, v, d) in enumerate(zip(step.ins, leaves, dims, strict=True))
        ]
        outs = walk(step.jaxpr, (), [*(constant(c) for c in step.consts), *given], weights)
        ends = dims[step.first_state : step.first_state + states]
        kept = []
        for i, (o, own) in enumerate(zip(outs[:states], ends, strict=True)):
            place = device.place_of_data(own)
            put = walk.put(o, own, place.own)
            # Of a state that is whole along an axis, a trace is with those elements of a parameter that a device has.
            strays.update((p, i, a) for a, p in o.foreign | put.foreign if a in own or not has_own(walk, p, a))
            kept.append(walk.agreed(put, place.shared).value)
        shown = [walk.summed(o) for o in outs[states:]]
        shown = [walk.agreed(o, frozenset(device.sizes) - o.place.own) for o in shown]
        outputs[:] = [o.place for o in shown]
        return [*kept, *(o.value for o in shown)]

    structs = [device.struct(leaf.aval, d) for leaf, d in zip(step.ins, dims, strict=True)]
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(run)(jax.ShapeDtypeStruct((len(device.sizes),), np.int32), *structs))
    jaxpr = without_dead_code(build_jaxpr([*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns, jaxpr))
    ins = tuple(replace(leaf, aval=s) for leaf, s in zip(step.ins, structs, strict=True))
    ends = tuple(leaf for leaf in ins if leaf.role in (Role.HIDDEN, Role.OTHER))
    whole = step.select(Role.OUTPUT)
    outs = tuple(replace(leaf, aval=device.struct(leaf.aval, p.dims)) for leaf, p in zip(whole, outputs, strict=True))
    found = Step(jaxpr, (*consts, device.coordinates), ins, (*ends, *outs), step.trees)
    walk = walks[-1]
    return LocalStep(found, tuple(outputs), walk.uses_coordinates, walk.wanted, frozenset(strays))


def _given(leaf: Leaf, number: int, value: Array, dims: Dims, device: Device) -> Local:
    if leaf.role is Role.PARAM:
        return Local(value, Place(dims), leaf.aval.shape, None, True, number, reads=frozenset({number}))
    return Local(value, device.place_of_data(dims), leaf.aval.shape, None, True)


class Traffic(NamedTuple):
    """What a device receives along an axis of the mesh: bytes within a step, those that its gradient takes back, and
    whether zeros and ones are among them, packed to bits."""

    axis: str
    sent: int
    back: int
    bits: bool


def travels(step: Step) -> list[Traffic]:
    """Per axis of the mesh, what the step of a device asks of the others."""
    found: dict[str, Traffic] = {}
    for eqn in equations(step.jaxpr):
        kind = eqn.primitive.name
        if kind not in ("device_gather", "device_gather_bits", "device_reduce"):
            continue
        aval, axis, bits = eqn.outvars[0].aval, eqn.params["axis"], kind == "device_gather_bits"
        size = math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 0)
        sent = size
        if bits:
            own = [-(-n // 8) if d == eqn.params["dim"] else n for d, n in enumerate(eqn.invars[0].aval.shape)]
            sent = math.prod(own) * eqn.params["size"]
        old = found.get(axis, Traffic(axis, 0, 0, False))
        back = 0 if kind == "device_reduce" or not is_inexact(aval) else size
        found[axis] = Traffic(axis, old.sent + sent, old.back + back, old.bits or bits)
    return list(found.values())
