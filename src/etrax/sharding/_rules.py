"""What primitives do to slices, by family: element by element, moving, summing, products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from .._compat import JaxprEqn, is_inexact, run_equation
from ..primitives import TABLE
from ._partition import RULES, SLICES, Walk, rule
from ._place import Local, merged_dims


def plain(eqn: JaxprEqn) -> Any:
    return lambda *values: run_equation(eqn, values)[0]


# Linear in one operand, and so in each term of a sum.
_LINEAR = frozenset({"neg", "convert_element_type", "real", "imag", "copy", "mul", "div", "add_any", "add", "sub"})


def _sums_pass(eqn: JaxprEqn, operands: Sequence[Local]) -> frozenset[str]:
    """Axes along which a sum need not be added up yet."""
    found = [o.place.partial for o in operands]
    name = eqn.primitive.name
    if name not in _LINEAR or not any(found):
        return frozenset()
    if name in ("convert_element_type", "div") and not all(is_inexact(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        return frozenset()  # rounds
    if name in ("add", "sub", "add_any"):
        return found[0] & found[1]
    if name == "mul":
        return found[0] - found[1] or found[1] - found[0]
    return found[0] - frozenset().union(*found[1:]) if name == "div" else found[0]


def elementwise(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    partial = _sums_pass(eqn, operands)
    operands = [walk.summed(o, but=partial) for o in operands]
    shape = eqn.outvars[0].aval.shape
    dims = merged_dims(len(shape), (o.place.dims for o in operands if len(o.shape) == len(shape)))
    own = frozenset(a for a in dims if a) | partial
    ready = [_placed(walk, o, _dims_of(o, shape, dims), own) for o in operands]
    return [walk.local(eqn, ready, dims, partial, plain(eqn))]


def _dims_of(x: Local, shape: Sequence[int], dims: Sequence[str | None]) -> Sequence[str | None]:
    """How an operand of an elementwise operation is cut: not where it is one number that stands for many."""
    if len(x.shape) != len(shape):
        return x.place.dims
    return tuple(a if n == m else None for a, n, m in zip(dims, x.shape, shape, strict=True))


def _placed(walk: Walk, x: Local, dims: Sequence[str | None], own: frozenset[str]) -> Local:
    """In other dimensions, a sum left as it is."""
    return x if x.place.dims == tuple(dims) else walk.put(x, dims, own)


def _slice_elementwise(
    walk: Walk, eqn: JaxprEqn, operands: tuple[Local, ...], dims: Sequence[str | None], d: int
) -> Local | None:
    shape, own = eqn.outvars[0].aval.shape, frozenset(a for a in dims if a)
    ready = [walk.put(o, _dims_of(o, shape, dims), own) for o in operands]
    return walk.local(eqn, ready, dims, frozenset(), plain(eqn))


for _name, _record in TABLE.items():
    if _record.elementwise:
        RULES[_name] = elementwise
        SLICES[_name] = _slice_elementwise


def _moves(walk: Walk, eqn: JaxprEqn, x: Local, kept: Sequence[int | None], run: Any) -> Local:
    """One operand whose dimension d becomes `kept[d]` of the output; where that is None, it must be whole."""
    held = [a if kept[d] is not None else None for d, a in enumerate(x.place.dims)]
    if tuple(held) != x.place.dims:
        x = walk.put(x, held, frozenset(a for a in held if a))
    dims: list[str | None] = [None] * len(eqn.outvars[0].aval.shape)
    for d, to in enumerate(kept):
        if to is not None:
            dims[to] = x.place.dims[d]
    return walk.local(eqn, [x], dims, x.place.partial, run(tuple(dims)))


@rule("broadcast_in_dim")
def _broadcast(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, shape, to = operands[0], eqn.params["shape"], eqn.params["broadcast_dimensions"]
    kept = [t if x.shape[d] == shape[t] else None for d, t in enumerate(to)]
    return [_moves(walk, eqn, x, kept, lambda dims: lambda v: lax.broadcast_in_dim(v, walk.divided(shape, dims), to))]


def _slice_broadcast(
    walk: Walk, eqn: JaxprEqn, operands: tuple[Local, ...], dims: Sequence[str | None], d: int
) -> Local | None:
    x, shape, to = operands[0], eqn.params["shape"], eqn.params["broadcast_dimensions"]
    own = [dims[t] if n == shape[t] else None for n, t in zip(x.shape, to, strict=True)]
    x = walk.put(x, own, frozenset(a for a in own if a))
    run = lambda v: lax.broadcast_in_dim(v, walk.divided(shape, dims), to)  # noqa: E731
    return walk.local(eqn, [x], dims, frozenset(), run)


SLICES["broadcast_in_dim"] = _slice_broadcast


@rule("transpose")
def _transpose(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    order = list(eqn.params["permutation"])
    return [_moves(walk, eqn, operands[0], [order.index(d) for d in range(len(order))], lambda dims: plain(eqn))]


def _slice_transpose(
    walk: Walk, eqn: JaxprEqn, operands: tuple[Local, ...], dims: Sequence[str | None], d: int
) -> Local | None:
    x = walk.slice(operands[0], eqn.params["permutation"][d], str(dims[d]))
    return _transpose(walk, eqn, [x])[0]


SLICES["transpose"] = _slice_transpose


@rule("squeeze")
def _squeeze(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    gone = [d % len(operands[0].shape) for d in eqn.params["dimensions"]]
    rest = [d for d in range(len(operands[0].shape)) if d not in gone]
    kept = [rest.index(d) if d in rest else None for d in range(len(operands[0].shape))]
    return [_moves(walk, eqn, operands[0], kept, lambda dims: plain(eqn))]


@rule("expand_dims")
def _expand(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    rank = len(eqn.outvars[0].aval.shape)
    new = [d % rank for d in eqn.params["dimensions"]]
    rest = [d for d in range(rank) if d not in new]
    return [_moves(walk, eqn, operands[0], rest, lambda dims: plain(eqn))]


def factors(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of a reshape in groups that hold the same numbers."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b, m, n = [], [], 1, 1
        while True:
            if i < len(old) and (m <= n or j >= len(new)):
                a.append(i)
                m *= old[i]
                i += 1
            elif j < len(new):
                b.append(j)
                n *= new[j]
                j += 1
            if (m == n and a and b) or (i >= len(old) and j >= len(new)):
                break
        found.append((a, b))
    return found


def _first_wide(dims: Sequence[int], shape: Sequence[int]) -> int | None:
    return next((d for d in dims if shape[d] != 1), None)


def _reshape_map(walk: Walk, x: Local, shape: Sequence[int]) -> list[int | None]:
    """A cut dimension stays cut if it is the first of those that are merged, or becomes the first of several."""
    kept: list[int | None] = [None] * len(x.shape)
    if 0 in x.shape:
        return kept
    for a, b in factors(x.shape, shape):
        old, new = _first_wide(a, x.shape), _first_wide(b, shape)
        if old is None or new is None:
            continue
        axis = x.place.dims[old]
        if axis is None or (shape[new] % walk.sizes[axis] == 0 and x.shape[old] % walk.sizes[axis] == 0):
            kept[old] = new
    return kept


@rule("reshape")
def _reshape(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, shape = operands[0], eqn.params["new_sizes"]
    if eqn.params.get("dimensions") is not None:
        return walk.gathered(eqn, operands)
    return [
        _moves(walk, eqn, x, _reshape_map(walk, x, shape), lambda dims: lambda v: v.reshape(walk.divided(shape, dims)))
    ]


def _slice_reshape(
    walk: Walk, eqn: JaxprEqn, operands: tuple[Local, ...], dims: Sequence[str | None], d: int
) -> Local | None:
    x, shape, axis = operands[0], eqn.params["new_sizes"], str(dims[d])
    n = walk.sizes[axis]
    if eqn.params.get("dimensions") is not None or 0 in x.shape:
        return None
    for a, b in factors(x.shape, shape):
        old = _first_wide(a, x.shape)
        if d == _first_wide(b, shape) and old is not None and x.shape[old] % n == 0 and shape[d] % n == 0:
            return _reshape(walk, eqn, [walk.slice(x, old, axis)])[0]
    return None


SLICES["reshape"] = _slice_reshape


@rule("reduce_sum")
def _reduce_sum(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, gone = operands[0], eqn.params["axes"]
    dims = [a for d, a in enumerate(x.place.dims) if d not in gone]
    partial = x.place.partial | {a for d, a in enumerate(x.place.dims) if d in gone and a is not None}
    return [walk.local(eqn, [x], dims, frozenset(partial), plain(eqn))]


@rule("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin")
def _reduce_other(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, gone = walk.summed(operands[0]), eqn.params["axes"]
    rest = [d for d in range(len(x.shape)) if d not in gone]
    return [_moves(walk, eqn, x, [rest.index(d) if d in rest else None for d in range(len(x.shape))],
                   lambda dims: plain(eqn))]  # fmt: skip


def _along(walk: Walk, eqn: JaxprEqn, operands: list[Local], mixed: Sequence[int], run: Any) -> list[Local]:
    """Operands and outputs of one rank, whose dimensions stay apart but for those that are mixed."""
    rank = len(eqn.outvars[0].aval.shape)
    arrays = [walk.summed(o) for o in operands]
    dims = merged_dims(rank, (o.place.dims for o in arrays))
    dims = tuple(None if d in mixed else a for d, a in enumerate(dims))
    own = frozenset(a for a in dims if a)
    ready = [walk.put(o, dims, own) for o in arrays]
    if len(eqn.outvars) == 1:
        return [walk.local(eqn, ready, dims, frozenset(), run(dims))]
    found = walk.local(eqn, ready, dims, frozenset(), lambda *v: run(dims)(*v))
    return [Local(v, found.place, found.shape, None, found.learned) for v in found.value]


@rule("concatenate")
def _concatenate(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    return _along(walk, eqn, operands, [eqn.params["dimension"]], lambda dims: plain(eqn))


@rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    return _along(walk, eqn, operands, [eqn.params["axis"]], lambda dims: plain(eqn))


@rule("rev")
def _rev(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    return _along(walk, eqn, operands, eqn.params["dimensions"], lambda dims: plain(eqn))


@rule("sort")
def _sort(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    return _along(walk, eqn, operands, [eqn.params["dimension"]], lambda dims: lambda *v: (
        run_equation(eqn, v)[0] if len(v) == 1 else run_equation(eqn, v)))  # fmt: skip


@rule("slice")
def _slice(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, p = operands[0], eqn.params
    strides = p["strides"] or (1,) * len(x.shape)
    full = [s == 0 and e == n and t == 1 for s, e, t, n in zip(p["start_indices"], p["limit_indices"], strides, x.shape,
                                                               strict=True)]  # fmt: skip

    def run(dims: Sequence[str | None]) -> Any:
        ends = [e if a is None else e // walk.sizes[a] for e, a in zip(p["limit_indices"], dims, strict=True)]
        return lambda v: lax.slice(v, p["start_indices"], ends, p["strides"])

    return [_moves(walk, eqn, x, [d if f else None for d, f in enumerate(full)], run)]


@rule("pad")
def _pad(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, fill = walk.summed(operands[0]), operands[1]
    kept = [d if tuple(c) == (0, 0, 0) else None for d, c in enumerate(eqn.params["padding_config"])]
    return [_moves(walk, eqn, x, kept, lambda dims: lambda v: lax.pad(v, fill.value, eqn.params["padding_config"]))]


@rule("dynamic_slice")
def _dynamic_slice(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, starts, sizes = operands[0], operands[1:], eqn.params["slice_sizes"]
    if not all(s.whole for s in starts):
        return walk.gathered(eqn, operands)
    kept = [d if n == m else None for d, (n, m) in enumerate(zip(sizes, x.shape, strict=True))]
    at = [s.value for s in starts]
    return [_moves(walk, eqn, x, kept, lambda dims: lambda v: lax.dynamic_slice(v, at, walk.divided(sizes, dims)))]


@rule("dynamic_update_slice")
def _dynamic_update_slice(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, new, starts = *operands[:2], operands[2:]
    if not all(s.whole for s in starts):
        return walk.gathered(eqn, operands)
    mixed = [d for d, (n, m) in enumerate(zip(new.shape, x.shape, strict=True)) if n != m]
    at = [s.value for s in starts]
    return _along(walk, eqn, [x, new], mixed, lambda dims: lambda v, u: lax.dynamic_update_slice(v, u, at))


@rule("dot_general")
def _dot_general(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    """A free dimension stays cut. Cut along what is contracted, the result is a sum over devices, unless the other side
    is cut along a free dimension by the same axis: then what is contracted is gathered."""
    x, y = operands if not all(o.place.partial for o in operands) else map(walk.summed, operands)
    (cx, cy), (bx, by) = eqn.params["dimension_numbers"]
    free = [[d for d in range(len(o.shape)) if d not in c and d not in b] for o, c, b in ((x, cx, bx), (y, cy, by))]
    taken: dict[str, tuple[int, int]] = {}
    dims = [list(o.place.dims) for o in (x, y)]
    out: list[str | None] = []
    for i, j in zip(bx, by, strict=True):
        axis = x.place.dims[i] or y.place.dims[j]
        axis = None if axis in taken else axis
        dims[0][i] = dims[1][j] = axis
        out.append(axis)
        taken[axis or ""] = (0, 0)
    for side, o in enumerate((x, y)):
        for d in free[side]:
            axis = o.place.dims[d]
            dims[side][d] = None if axis in taken else axis
            out.append(dims[side][d])
            taken[axis or ""] = (0, 0)
    partial = set()
    for i, j in zip(cx, cy, strict=True):
        axis = x.place.dims[i] or y.place.dims[j]
        axis = None if axis is None or axis in taken else axis
        dims[0][i] = dims[1][j] = axis
        taken[axis or ""] = (0, 0)
        partial |= {axis} - {None}
    own = frozenset(a for a in out if a) | frozenset(a for a in partial if a)
    given = x.place.partial | y.place.partial
    ready = [_placed(walk, o, d, own) for o, d in zip((x, y), dims, strict=True)]
    found = frozenset(a for a in partial if a) | (given & frozenset().union(*(o.place.partial for o in ready)))
    return [walk.local(eqn, ready, out, found, plain(eqn))]


@rule("conv_general_dilated")
def _conv(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    """Samples stay apart, and so do output channels, where each reads all input channels."""
    x, w = map(walk.summed, operands)
    numbers, p = eqn.params["dimension_numbers"], eqn.params
    samples, channels = x.place.dims[numbers.lhs_spec[0]], w.place.dims[numbers.rhs_spec[0]]
    channels = None if channels == samples or p["feature_group_count"] != 1 else channels
    if p["batch_group_count"] != 1:
        return walk.gathered(eqn, operands)
    own = frozenset(a for a in (samples, channels) if a)
    x = walk.put(x, [samples if d == numbers.lhs_spec[0] else None for d in range(len(x.shape))], own)
    w = walk.put(w, [channels if d == numbers.rhs_spec[0] else None for d in range(len(w.shape))], own)
    to = {numbers.out_spec[0]: samples, numbers.out_spec[1]: channels}
    dims = [to.get(d) for d in range(len(eqn.outvars[0].aval.shape))]
    return [walk.local(eqn, [x, w], dims, frozenset(), plain(eqn))]


@rule("copy_p", "optimization_barrier")
def _each(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    return list(operands)
