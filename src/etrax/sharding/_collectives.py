"""What devices along an axis of the mesh say to each other inside a step, each with its transpose.

A value is either *shared* along an axis (the same on all devices, and so is its gradient, held in full on each), or
each device has one of its own (a slice, a share of a sum, a copy whose gradient is a share).

    enter   shared → own copies       nothing moves            transpose: reduce
    reduce  shares → their sum        all-reduce               transpose: enter
    gather  slices → own copies       all-gather               transpose: scatter
    scatter shares → slices of a sum  reduce-scatter           transpose: gather
    agree   equal copies → shared     nothing moves            transpose: a share of 1/n
    bits    slices of 0 and 1 → copies  all-gather, 8 a byte   derivative: gather

They are primitives of their own, so that a step that holds them can be traced and analysed where there is no mesh, and
that the transpose does not depend on what JAX knows of a value's devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, batching, mlir

from .._compat import Primitive, shaped_array
from ..primitives import Call, Dep, Deps, all_zero, define, on_operand, pointwise, reduce


def _new(name: str, run: Callable[..., Array], shape: Callable[..., tuple[int, ...]], moves_along: bool) -> Primitive:
    p = Primitive(name)
    p.def_abstract_eval(lambda x, **params: shaped_array(shape(x.shape, **params), x.dtype))
    mlir.register_lowering(p, mlir.lower_fun(run, multiple_results=False))

    def batch(args: Sequence[Array], dims: Sequence[int], **params: int) -> tuple[Array, int]:
        if moves_along and dims[0] <= params["dim"]:
            params = {**params, "dim": params["dim"] + 1}
        return p.bind(args[0], **params), dims[0]

    batching.primitive_batchers[p] = batch
    return p


def _same(shape: tuple[int, ...], **_: object) -> tuple[int, ...]:
    return shape


def _times(factor: int) -> Callable[..., tuple[int, ...]]:
    def grown(shape: tuple[int, ...], *, dim: int, size: int, **_: object) -> tuple[int, ...]:
        n = shape[dim] * size if factor > 0 else shape[dim] // size
        return (*shape[:dim], n, *shape[dim + 1 :])

    return grown


_enter = _new("device_enter", lambda x, **_: x, _same, False)
_agree = _new("device_agree", lambda x, **_: x, _same, False)
_reduce = _new("device_reduce", lambda x, *, axis, size: lax.psum(x, axis), _same, False)
_gather = _new(
    "device_gather", lambda x, *, axis, size, dim: lax.all_gather(x, axis, axis=dim, tiled=True), _times(1), True
)
_scatter = _new(
    "device_scatter",
    lambda x, *, axis, size, dim: lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True),
    _times(-1),
    True,
)


def _gather_packed(x: Array, *, axis: str, size: int, dim: int) -> Array:
    packed = lax.all_gather(jnp.packbits(x.astype(bool), axis=dim), axis, axis=dim)
    found = jnp.unpackbits(packed, axis=dim + 1, count=x.shape[dim])
    return found.astype(x.dtype).reshape(_times(1)(x.shape, dim=dim, size=size))


def _gather_jvp(primals: Sequence[Array], tangents: Sequence[Array], **params: object) -> tuple[Array, Array]:
    out = _bits.bind(*primals, **params)
    (t,) = tangents
    if type(t) is ad.Zero:
        return out, ad.Zero.from_primal_value(out)  # pyright: ignore[reportAttributeAccessIssue]
    return out, _gather.bind(t, **params)


_bits = _new("device_gather_bits", _gather_packed, _times(1), True)
ad.primitive_jvps[_bits] = _gather_jvp
for _p, _q in ((_enter, _reduce), (_reduce, _enter), (_gather, _scatter), (_scatter, _gather)):
    ad.deflinear2(_p, lambda ct, x, q=_q, **params: [q.bind(ct, **params)])
ad.deflinear2(_agree, lambda ct, x, **params: [ct / np.asarray(params["size"], ct.dtype)])


def enter(x: Array, axis: str, size: int) -> Array:
    return _enter.bind(x, axis=axis, size=size)


def agree(x: Array, axis: str, size: int) -> Array:
    return _agree.bind(x, axis=axis, size=size)


def add_up(x: Array, axis: str, size: int) -> Array:
    return _reduce.bind(x, axis=axis, size=size)


def gather(x: Array, axis: str, size: int, dim: int, bits: bool) -> Array:
    """Slices put together. `bits` says that all of them are 0 or 1."""
    return (_bits if bits else _gather).bind(x, axis=axis, size=size, dim=dim)


def _gathered(call: Call) -> list[Deps]:
    """Every slice of the whole may be this device's."""
    dim, size = call.params["dim"], call.params["size"]
    return on_operand(call, lambda dep: dep.relocate(lambda m: np.concatenate([m] * size, dim), call.cause))


def _scattered(call: Call) -> list[Deps]:
    """This device's slice may be any of the whole."""
    dim, size, shape = call.params["dim"], call.params["size"], call.in_shape(0)
    split = (*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])

    def f(dep: Dep) -> Dep:
        return reduce(dep.relocate(lambda m: m.reshape(split), call.cause), (dim,), call.cause)

    return on_operand(call, f)


define("device_enter", "device_agree", "device_reduce", pattern=pointwise, zero=all_zero, elementwise=True)
define("device_gather", "device_gather_bits", pattern=_gathered, zero=all_zero)
define("device_scatter", pattern=_scattered, zero=all_zero)
