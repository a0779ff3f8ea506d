"""A program over whole arrays as the program of one device, which holds slices of them.

The program is walked once with a `Local` for every variable. What a primitive does to slices stands in `_rules.py`; one
without a rule is given whole arrays, so that any program has an answer, at the price of what travels. Numbers are
those of the whole program up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import Array, lax

from .._compat import INLINED, Jaxpr, JaxprEqn, is_concrete, is_extended, is_inexact, run_equation, source_of
from ..ir import Site, interpret
from . import _collectives as collectives
from ._place import Local, Place, are_bits, constant

# (walk, equation, operands) -> outputs
Partitioned: TypeAlias = Callable[["Walk", JaxprEqn, list[Local]], list[Local]]
RULES: dict[str, Partitioned] = {}
# What an equation gave, cut along one dimension more: (walk, equation, operands, all cuts, dimension) -> it, or None.
SLICES: dict[str, Callable[[Walk, JaxprEqn, tuple[Local, ...], tuple[str | None, ...], int], Local | None]] = {}


@dataclass
class Walk:
    """One walk: sizes of the mesh's axes, where this device is on them, and what was asked for on the way.

    `at` is a number, to cut constants, None in a program that is the same on all devices; `traced_at` the same as an
    array of one, to cut what is known only at run time.

    `wanted` are dimensions of parameters that are whole here and were needed in slices; `uses_coordinates` says that
    the program of another device is another. `brought` are, while one equation runs, axes along which a value came from
    other devices, each with a parameter that acts on it there.
    """

    sizes: Mapping[str, int]
    at: Mapping[str, int] | None
    traced_at: Mapping[str, Array | np.ndarray]
    wanted: dict[int, dict[int, str]] = field(default_factory=dict)
    uses_coordinates: bool = False
    known: dict[tuple[int, int, bool], tuple[Local, Local]] = field(default_factory=dict)
    as_data: dict[int, tuple[Local, Local]] = field(default_factory=dict)
    brought: set[tuple[str, int]] = field(default_factory=set)

    def __call__(
        self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Local], weights: Mapping[Site, frozenset[int]] = {}
    ) -> list[Local]:
        """Outputs, given what the jaxpr is given. `weights` are the operands of weight ops, by their address, whose
        other operands are data: what acts on these does not act on the result."""

        def handle(site: Site, eqn: JaxprEqn, values: list[Any]) -> list[Local] | None:
            if eqn.primitive.name in INLINED:
                return None
            operands = [v if isinstance(v, Local) else constant(v) for v in values]
            if site in weights:
                operands = [o if i in weights[site] else self.data(o) for i, o in enumerate(operands)]
            with source_of(eqn):
                return self.run(eqn, operands)

        outs = interpret(jaxpr, [constant(c) for c in consts], args, handle)
        return [o if isinstance(o, Local) else constant(o) for o in outs]

    def data(self, x: Local) -> Local:
        """A value that no parameter acts on. Once for each, so that it is gathered once."""
        if x.reads:
            x = self.as_data.setdefault(id(x), (x, replace(x, reads=frozenset(), foreign=frozenset())))[1]
        return x

    def run(self, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
        before, self.brought = self.brought, set()
        rule = Walk.whole if all(o.whole for o in operands) else RULES.get(eqn.primitive.name, Walk.gathered)
        outs = rule(self, eqn, operands)
        reads = frozenset().union(*(o.reads for o in operands))
        if reads:
            foreign = frozenset(self.brought).union(*(o.foreign for o in operands))
            outs = [replace(o, reads=reads, foreign=foreign) for o in outs]
        self.brought |= before
        return outs

    def gathered(self, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
        """The careful path: every device computes the whole."""
        return self.whole(eqn, [self.put(o, (None,) * len(o.shape), frozenset()) for o in operands])

    def whole(self, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
        """An equation whose operands are the same on all devices."""
        shared = frozenset().union(*(o.place.shared for o in operands))
        operands = [self.agreed(o, shared) for o in operands]
        if _is_known(eqn, operands):
            with jax.ensure_compile_time_eval():
                return [constant(np.asarray(v)) for v in run_equation(eqn, [o.value for o in operands])]
        outs = run_equation(eqn, [o.value for o in operands])
        learned = any(o.learned for o in operands)
        kept = tuple(operands) if len(outs) == 1 else ()
        return [
            Local(
                v, Place((None,) * len(np.shape(v)), shared=shared), np.shape(v), (eqn, kept) if kept else None, learned
            )
            for v in outs
        ]

    def local(self, eqn: JaxprEqn, operands: list[Local], dims: Sequence[str | None], partial: frozenset[str],
              run: Callable[..., Any]) -> Local:  # fmt: skip
        """The result of an equation whose operands are in place, given how it is cut and summed."""
        own = frozenset(a for a in dims if a is not None) | partial
        shared = frozenset().union(*(o.place.shared for o in operands)) - own
        ready = [self.agreed(self.entered(o, own), shared) for o in operands]
        value = run(*(o.value for o in ready))
        shape, made = eqn.outvars[0].aval.shape, None if partial else (eqn, tuple(operands))
        return Local(value, Place(tuple(dims), partial, shared), shape, made, any(o.learned for o in operands))

    def entered(self, x: Local, own: frozenset[str]) -> Local:
        """A shared value as operand of something that each device has of its own.

        Weights have met data in it: all devices have the gradient of the whole, and traces to states of their own.
        """
        axes, value = x.place.shared & own, x.value
        if not axes:
            return x
        x = self.strayed(x, axes)
        for axis in sorted(axes) if is_inexact(value) else ():
            value = collectives.enter(value, axis, self.sizes[axis])
        return replace(x, value=value, place=replace(x.place, shared=x.place.shared - axes))

    def agreed(self, x: Local, shared: frozenset[str]) -> Local:
        """Equal copies as operand of something shared."""
        axes, value = shared - x.place.shared - x.place.own, x.value
        if not axes:
            return x
        for axis in sorted(axes) if x.learned and is_inexact(value) else ():
            value = collectives.agree(value, axis, self.sizes[axis])
        return replace(x, value=value, place=replace(x.place, shared=x.place.shared | axes))

    def put(self, x: Local, dims: Sequence[str | None], own: frozenset[str]) -> Local:
        """A value cut along other dimensions. `own` are axes along which what it goes into is each device's own."""
        x = self.summed(x)
        for d, axis in enumerate(x.place.dims):
            if axis is not None and axis != dims[d]:
                x = self.joined(x, d, axis, own)
        for d, axis in enumerate(dims):
            if axis is not None and x.place.dims[d] is None:
                x = self.slice(x, d, axis)
        return x

    def summed(self, x: Local, but: frozenset[str] = frozenset()) -> Local:
        """Terms on the devices added up, along all axes but some."""
        value, axes = x.value, x.place.partial - but
        if not axes:
            return x
        for axis in sorted(axes):
            value = collectives.add_up(value, axis, self.sizes[axis])
        place = replace(x.place, partial=x.place.partial - axes, shared=x.place.shared | axes)
        return self.strayed(replace(x, value=value, place=place), axes)

    def strayed(self, x: Local, axes: frozenset[str]) -> Local:
        """A value to which devices along some axes have contributed, or of which each has another part."""
        found = {(axis, p) for axis in axes for p in x.reads}
        self.brought |= found
        return replace(x, foreign=x.foreign | found) if found else x

    def joined(self, x: Local, d: int, axis: str, own: frozenset[str]) -> Local:
        """Slices put together: each device has a copy of its own, or one that is shared. Once for each value."""
        if (id(x), d, axis in own) in self.known:
            return self.strayed(self.known[id(x), d, axis in own][1], frozenset({axis}))
        value = collectives.gather(x.value, axis, self.sizes[axis], d, are_bits(x))
        dims = tuple(None if i == d else a for i, a in enumerate(x.place.dims))
        found = replace(x, value=value, place=x.place.moved(dims), learned=True, made=None, leaf=None)
        found = found if axis in own else self.agreed(found, frozenset({axis}))
        found = self.strayed(found, frozenset({axis}))
        self.known[id(x), d, axis in own] = (x, found)
        return found

    def slice(self, x: Local, d: int, axis: str) -> Local:
        """This device's part of what is whole along a dimension, made of parts where that is known."""
        if x.leaf is not None:
            self.wanted.setdefault(x.leaf, {})[d] = axis
        dims = tuple(axis if i == d else a for i, a in enumerate(x.place.dims))
        if x.made is not None and x.place == Place(x.place.dims, shared=x.place.shared):
            eqn, operands = x.made
            rule = SLICES.get(eqn.primitive.name)
            found = rule(self, eqn, operands, dims, d) if rule is not None else None
            if found is not None:
                return found
        x = self.entered(x, frozenset({axis}))
        n = x.shape[d] // self.sizes[axis]
        self.uses_coordinates = True
        if self.at is not None and is_concrete(x.value):
            k = self.at[axis]
            value: Any = np.asarray(x.value)[(slice(None),) * d + (slice(k * n, (k + 1) * n),)]
        else:
            value = lax.dynamic_slice_in_dim(x.value, self.traced_at[axis][0] * n, n, d)
        return replace(x, value=value, place=x.place.moved(dims), made=None, leaf=None)

    def divided(self, shape: Sequence[int], dims: Sequence[str | None]) -> tuple[int, ...]:
        """The shape of a slice."""
        return tuple(n if a is None else n // self.sizes[a] for n, a in zip(shape, dims, strict=True))


def _is_known(eqn: JaxprEqn, operands: Sequence[Local]) -> bool:
    """Whether an equation makes whole numbers of constants (indices of connections), none larger than what it is given:
    rules of sparse products look at them."""
    if not operands or not all(isinstance(o.value, np.ndarray | np.generic | jax.Array | int) for o in operands):
        return False
    if not is_concrete([o.value for o in operands]) or any(is_extended(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return False
    most = max(int(np.prod(o.shape, dtype=np.int64)) for o in operands)
    return all(
        np.dtype(v.aval.dtype).kind in "biu" and int(np.prod(v.aval.shape, dtype=np.int64)) <= most for v in eqn.outvars
    )


def rule(*names: str) -> Callable[[Partitioned], Partitioned]:
    def put(f: Partitioned) -> Partitioned:
        RULES.update(dict.fromkeys(names, f))
        return f

    return put
