"""Equations that hold programs: derivative rules of the model, loops, branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .._compat import (
    Jaxpr,
    JaxprEqn,
    cond_branches,
    inner_jaxpr,
    is_inexact,
    open_jaxpr,
    run_equation,
    scan_parts,
    shape_struct,
)
from ..ir import Body, moving_operands, rule_of
from ._partition import Walk, rule
from ._place import Local, Place, are_bits, merged_dims


def _places(walk: Walk, body: Body, args: Sequence[Local]) -> list[Local]:
    """What a body gives, for its places alone: the values are stand-ins."""
    found: list[Local] = []

    def run(values: list[Array]) -> list[Array]:
        given = [replace(a, value=v, made=None, leaf=None, bits=False) for a, v in zip(args, values, strict=True)]
        found[:] = [walk.summed(o) for o in walk(*body, given)]
        return [o.value for o in found]

    jax.eval_shape(run, [shape_struct(a.value) for a in args])
    return found


def _run(walk: Walk, body: Body, like: Sequence[Local], values: Sequence[Any], outs: Sequence[Place]) -> list[Array]:
    """The body on values that are placed like given ones, its outputs put where they are wanted."""
    given = [replace(a, value=v, made=None, leaf=None, bits=False) for a, v in zip(like, values, strict=True)]
    found = []
    for o, place in zip(walk(*body, given), outs, strict=True):
        o = walk.put(o, place.dims, place.own)
        found.append(walk.agreed(walk.entered(o, o.place.shared - place.shared), place.shared).value)
    return found


def _bare(x: Local, walk: Walk) -> Local:
    x = walk.summed(x)
    return replace(x, made=None, leaf=None, bits=False)


@rule("scan")
def _scan(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    parts = scan_parts(eqn)
    n, m = parts.num_consts, parts.num_consts + parts.num_carry
    operands = [_bare(o, walk) for o in operands]
    xs = [walk.put(o, (None, *o.place.dims[1:]), frozenset(a for a in o.place.dims[1:] if a)) for o in operands[m:]]
    one = [replace(o, value=jax.ShapeDtypeStruct(o.value.shape[1:], o.value.dtype), shape=o.shape[1:],
                   place=o.place.moved(o.place.dims[1:])) for o in xs]  # fmt: skip
    carry, body = operands[n:m], (parts.jaxpr, parts.consts)
    while True:
        outs = _places(walk, body, [*operands[:n], *carry, *one])
        ends = outs[: parts.num_carry]
        new = [_met(walk, c, e) for c, e in zip(carry, ends, strict=True)]
        if [c.place for c in new] == [c.place for c in carry]:
            break
        carry = new
    stacked = outs[parts.num_carry :]
    held, places = [o.value for o in operands[:n]], [c.place for c in carry] + [o.place for o in stacked]
    like = [*operands[:n], *carry, *one]

    def step(state: list[Array], slices: list[Array]) -> tuple[list[Array], list[Array]]:
        found = _run(walk, body, like, [*held, *state, *slices], places)
        return found[: parts.num_carry], found[parts.num_carry :]

    start = [jnp.asarray(c.value) for c in carry]
    ends, ys = lax.scan(step, start, [o.value for o in xs], parts.length, parts.reverse)
    learned = any(o.learned for o in operands)
    return [
        *(Local(v, c.place, c.shape, None, True) for v, c in zip(ends, carry, strict=True)),
        *(
            Local(v, o.place.moved((None, *o.place.dims)), (parts.length, *o.shape), None, learned)
            for v, o in zip(ys, stacked, strict=True)
        ),
    ]


def _met(walk: Walk, start: Local, end: Local) -> Local:
    """A carry that is cut wherever it is before or after an iteration, and shared where it is shared once."""
    dims = merged_dims(len(start.shape), (start.place.dims, end.place.dims))
    own = frozenset(a for a in dims if a)
    x = walk.put(start, dims, own)
    return walk.agreed(replace(x, learned=True), (start.place.shared | end.place.shared) - own)


@rule("cond")
def _cond(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    index, *rest = operands
    if not index.whole:
        return walk.gathered(eqn, operands)
    rest = [_bare(o, walk) for o in rest]
    branches = cond_branches(eqn)
    found = [_places(walk, b, rest) for b in branches]
    places = []
    for outs in zip(*found, strict=True):
        dims = merged_dims(len(outs[0].shape), (o.place.dims for o in outs))
        shared = frozenset().union(index.place.shared, *(o.place.shared for o in outs))
        places.append(Place(dims, shared=shared - frozenset(a for a in dims if a)))
    runs = [lambda *v, b=b: _run(walk, b, rest, v, places) for b in branches]
    values = lax.switch(index.value, runs, *(o.value for o in rest))
    return [Local(v, p, o.shape, None, True) for v, p, o in zip(values, places, found[0], strict=True)]


@rule("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    """A function with a derivative rule of its own: function and rule are partitioned apart, and put together again."""
    operands = [_bare(o, walk) for o in operands]
    structs = [jax.ShapeDtypeStruct(o.shape, shape_struct(o.value).dtype) for o in operands]
    moving = moving_operands(eqn)
    first = _places(walk, inner_jaxpr(eqn), operands)
    own = frozenset().union(*(o.place.own for o in first))
    ready = [walk.entered(o, own) for o in operands]
    places = [o.place for o in _places(walk, inner_jaxpr(eqn), ready)]
    whole, back = rule_of(eqn, structs, moving)

    call = jax.custom_vjp(lambda *values: _run(walk, inner_jaxpr(eqn), ready, values, places))

    def forward(*values: Array) -> tuple[list[Array], list[Array]]:
        residuals.clear()
        given = [replace(o, value=v) for o, v in zip(ready, values, strict=True)]
        outs = [_bare(o, walk) for o in walk(*whole, given)]
        n = len(places)
        residuals.extend(outs[n:])
        put = [walk.put(o, p.dims, p.own) for o, p in zip(outs[:n], places, strict=True)]
        return [o.value for o in put], [o.value for o in outs[n:]]

    def backward(held: list[Array], bars: list[Array]) -> tuple[Array | None, ...]:
        given = [replace(o, value=v) for o, v in zip(residuals, held, strict=True)]
        given += [Local(b, p, o.shape, None, True) for b, p, o in zip(bars, places, first, strict=True)]
        found = walk(*back, given)
        out: list[Array | None] = [None] * len(ready)
        for i, o in zip(moving, found, strict=True):
            out[i] = _bar(walk, o, ready[i].place)
        return tuple(out)

    residuals: list[Local] = []
    call.defvjp(forward, backward)
    values = call(*(o.value for o in ready))
    return [Local(v, p, o.shape, None, True, bits=are_bits(o)) for v, p, o in zip(values, places, first, strict=True)]


def _bar(walk: Walk, bar: Local, place: Place) -> Array:
    """A gradient in the place of what it is the gradient of: of a copy of one's own, a share is enough."""
    rest = bar.place.partial & (place.cut | place.shared)
    if rest:
        kept = replace(bar, place=replace(bar.place, partial=rest))
        bar = replace(walk.summed(kept), place=replace(bar.place, partial=bar.place.partial - rest))
    for d, axis in enumerate(bar.place.dims):
        if axis is not None and place.dims[d] is None:
            bar = walk.joined(bar, d, axis, place.own)
    for d, axis in enumerate(place.dims):
        if axis is not None and bar.place.dims[d] is None:
            bar = walk.slice(bar, d, axis)
    return bar.value
