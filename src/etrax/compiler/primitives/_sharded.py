"""Collectives and `shard_map`: what devices do to each other is what samples of a `vmap` with that axis name do.

    shard_map(f, in_specs, out_specs)  =  join ∘ vmap(f, axis_name) ∘ split

So a `shard_map` is read as the same function over all of its devices at once, in which every collective is a sum over,
a move along, or a copy of the devices' axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..._compat import Jaxpr, JaxprEqn, ShardMapParts, open_jaxpr, shape_struct, shard_map_parts
from ..ir import Address, interpret
from ._dep import reduce
from ._record import Call, Deps, all_zero, conservative, define, on_operand

# How a value varies over devices is a matter of types: nothing moves.
_TYPES = frozenset({"pvary", "pcast", "pbroadcast", "mesh_cast", "reshard"})
# Names of a sum over devices whose result is known to be the same on all.
_SUMS = frozenset({"psum_invariant", "psum2"})


def _psum(call: Call) -> list[Deps]:
    """Under `vmap` its axes are numbers: a sum over them. A name is an axis that the analysis does not see."""
    if len(call.deps) != 1 or not all(isinstance(a, int) for a in call.params["axes"]):
        call.problem("sums over devices that are not known here")
        return conservative(call)
    return on_operand(call, lambda dep: reduce(dep, call.params["axes"], call.cause) if call.params["axes"] else dep)


def over_all_devices(eqn: JaxprEqn) -> tuple[Jaxpr, tuple[Array, ...]]:
    """The body and constants of an equation that does what a `shard_map` does, without devices."""
    parts = shard_map_parts(eqn)
    return open_jaxpr(jax.make_jaxpr(lambda *args: _run(parts, args))(*(shape_struct(v.aval) for v in eqn.invars)))


def _run(parts: ShardMapParts, args: Sequence[Array]) -> list[Array]:
    split = [_split(a, spec, parts.sizes) for a, spec in zip(args, parts.in_specs, strict=True)]
    mapped: Callable[..., list[Array]] = lambda *local: _body(parts, local)  # noqa: E731
    for name in reversed(parts.sizes):
        here = [0 if name in _names(spec) else None for spec in parts.in_specs]
        mapped = jax.vmap(mapped, in_axes=tuple(here), axis_name=name, axis_size=parts.sizes[name])
    outs = mapped(*split)
    return [_join(a, spec, parts.sizes) for a, spec in zip(outs, parts.out_specs, strict=True)]


def _body(parts: ShardMapParts, local: Sequence[Array]) -> list[Array]:
    def handle(site: Address, eqn: JaxprEqn, values: list[Array]) -> list[Array] | None:
        if eqn.primitive.name in _TYPES:
            return values
        if eqn.primitive.name in _SUMS:
            return [lax.psum(v, eqn.params["axes"]) for v in values]
        return None

    return interpret(parts.jaxpr, parts.consts, local, handle)


def _names(spec: Sequence[tuple[str, ...]]) -> list[str]:
    return [name for names in spec for name in names]


def _split(a: Array, spec: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Array:
    """The axes of the devices first, in the order of the mesh; only those that the array is cut along."""
    shape: list[int] = []
    at: dict[str, int] = {}
    for n, names in zip(a.shape, [*spec, *[()] * (a.ndim - len(spec))], strict=True):
        for name in names:
            at[name] = len(shape)
            shape.append(sizes[name])
            n //= sizes[name]
        shape.append(n)
    first = [at[name] for name in sizes if name in at]
    return jnp.moveaxis(a.reshape(shape), first, range(len(first)))


def _join(a: Array, spec: Sequence[tuple[str, ...]], sizes: dict[str, int]) -> Array:
    """One array from what all devices gave; what is not cut along an axis is the same on all of its devices."""
    cut = [name for name in sizes if name in _names(spec)]
    a = a[tuple(slice(None) if name in cut else 0 for name in sizes)]
    local = a.shape[len(cut) :]
    spec = [*spec, *[()] * (len(local) - len(spec))]
    order, shape = [], []
    for k, (n, names) in enumerate(zip(local, spec, strict=True)):
        order += [*(cut.index(name) for name in names), len(cut) + k]
        for name in names:
            n *= sizes[name]
        shape.append(n)
    return a.transpose(order).reshape(shape)


define("psum", pattern=_psum, zero=all_zero)
