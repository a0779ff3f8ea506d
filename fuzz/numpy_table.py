"""Primitives as functions of numpy arrays: `TABLE[name](equation, values) -> outputs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special

Run = Callable[[Any, Sequence[Any]], Sequence[Any]]


def elementwise(function: Callable[..., Any]) -> Run:
    """A function of the values alone; the result has the type that the equation says."""

    def run(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            found = function(*values)
        return (np.asarray(found, eqn.outvars[0].aval.dtype),)

    return run


def with_params(function: Callable[..., Any]) -> Run:
    """A function of the equation's parameters and the values."""

    def run(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            found = function(eqn.params, *values)
        return (np.asarray(found, eqn.outvars[0].aval.dtype),)

    return run


def _div(a: Any, b: Any) -> Any:
    if np.issubdtype(a.dtype, np.integer):
        found = np.abs(a) // np.where(b == 0, 1, np.abs(b)) * np.sign(a) * np.sign(b)
        return np.where(b == 0, -1, found)
    return a / b


def _broadcast(p: Any, a: Any, *_: Any) -> Any:
    shape = [1] * len(p["shape"])
    for axis, size in zip(p["broadcast_dimensions"], a.shape, strict=True):
        shape[axis] = size
    return np.broadcast_to(a.reshape(shape), p["shape"])


def _dot(p: Any, a: Any, b: Any) -> Any:
    (ca, cb), (ba, bb) = p["dimension_numbers"]
    if p.get("preferred_element_type") is not None:
        a, b = a.astype(p["preferred_element_type"]), b.astype(p["preferred_element_type"])
    fa = [i for i in range(a.ndim) if i not in (*ca, *ba)]
    fb = [i for i in range(b.ndim) if i not in (*cb, *bb)]
    batch, rows, cols = ([v.shape[i] for i in axes] for v, axes in ((a, ba), (a, fa), (b, fb)))
    inner = int(np.prod([a.shape[i] for i in ca], dtype=int))
    left = a.transpose(*ba, *fa, *ca).reshape(*batch, int(np.prod(rows, dtype=int)), inner)
    right = b.transpose(*bb, *cb, *fb).reshape(*batch, inner, int(np.prod(cols, dtype=int)))
    return np.matmul(left, right).reshape((*batch, *rows, *cols))


def _pad(p: Any, a: Any, value: Any) -> Any:
    """Interior zeros first, then the edges, which may be negative."""
    for axis, (low, high, inner) in enumerate(p["padding_config"]):
        size = max(0, a.shape[axis] + max(0, a.shape[axis] - 1) * inner)
        wide = np.full((*a.shape[:axis], size, *a.shape[axis + 1 :]), value, a.dtype)
        wide[(slice(None),) * axis + (slice(None, None, inner + 1),)] = a
        edges = [(0, 0)] * a.ndim
        edges[axis] = (max(low, 0), max(high, 0))
        wide = np.pad(wide, edges, constant_values=value)
        keep = slice(max(-low, 0), wide.shape[axis] - max(-high, 0))
        a = wide[(slice(None),) * axis + (keep,)]
    return a


def _starts(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Any]) -> tuple[slice, ...]:
    """Slices at starts that are moved inside, as XLA does; negative ones have been made positive by JAX."""
    found = [int(np.clip(int(s), 0, n - k)) for s, n, k in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(s, s + k) for s, k in zip(found, sizes, strict=True))


def _dynamic_update_slice(_: Any, a: Any, update: Any, *starts: Any) -> Any:
    out = a.copy()
    out[_starts(a.shape, update.shape, starts)] = update
    return out


def _select(which: Any, *cases: Any) -> Any:
    if len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(np.broadcast_to(which, cases[0].shape), cases)


def _iota(p: Any, *_: Any) -> Any:
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = -1
    return np.broadcast_to(np.arange(p["shape"][p["dimension"]]).reshape(shape), p["shape"])


def _convert(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    dtype, (a, *_) = eqn.outvars[0].aval.dtype, values
    if np.iscomplexobj(a) and not np.issubdtype(dtype, np.complexfloating):
        a = a.real
    return (np.asarray(a).astype(dtype),)


def _split(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return np.split(values[0], ends, eqn.params["axis"])


def _cumulative(function: Any) -> Run:
    def run(p: Any, a: Any) -> Any:
        axis = p["axis"]
        return np.flip(function(np.flip(a, axis), axis=axis), axis) if p["reverse"] else function(a, axis=axis)

    return with_params(run)


def _reduce(function: Any) -> Run:
    return with_params(lambda p, a: function(a, axis=tuple(p["axes"])))


TABLE: dict[str, Run] = {
    name: elementwise(function)
    for name, function in {
        "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "neg": np.negative,
        "max": np.maximum, "min": np.minimum, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh,
        "sinh": np.sinh, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p,
        "expm1": np.expm1, "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a), "cbrt": np.cbrt, "abs": np.abs,
        "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "pow": np.power, "square": np.square,
        "logistic": lambda a: 1 / (1 + np.exp(-a)), "erf": scipy.special.erf, "atan2": np.arctan2, "atan": np.arctan,
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
        "is_finite": np.isfinite, "select_n": _select, "clamp": lambda low, a, high: np.clip(a, low, high),
        "real": np.real, "imag": np.imag, "conj": np.conj, "complex": lambda a, b: a + 1j * b, "copy": np.copy,
        "copy_p": np.copy, "stop_gradient": np.asarray,
    }.items()
}  # fmt: skip
TABLE |= {
    name: with_params(function)
    for name, function in {
        "integer_pow": lambda p, a: a ** np.asarray(p["y"], a.dtype) if p["y"] >= 0 else 1 / a ** -p["y"],
        "broadcast_in_dim": _broadcast,
        "dot_general": _dot,
        "transpose": lambda p, a: a.transpose(p["permutation"]),
        "reshape": lambda p, a, *_: a.transpose(p.get("dimensions") or range(a.ndim)).reshape(p["new_sizes"]),
        "squeeze": lambda p, a: a.squeeze(tuple(p["dimensions"])),
        "expand_dims": lambda p, a: np.expand_dims(a, tuple(p["dimensions"])),
        "rev": lambda p, a: np.flip(a, tuple(p["dimensions"])),
        "stack": lambda p, *a: np.stack(a, p.get("axis", p.get("dimension", 0))),
        "concatenate": lambda p, *a: np.concatenate(a, p["dimension"]),
        "pad": _pad,
        "slice": lambda p, a: a[
            tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or [1] * a.ndim))
        ],
        "dynamic_slice": lambda p, a, *starts: a[_starts(a.shape, p["slice_sizes"], starts)],
        "dynamic_update_slice": _dynamic_update_slice,
        "iota": _iota,
        "argmax": lambda p, a: np.argmax(a, p["axes"][0]),
        "argmin": lambda p, a: np.argmin(a, p["axes"][0]),
    }.items()
}
TABLE |= {f"cum{name}": _cumulative(f) for name, f in {"sum": np.cumsum, "prod": np.cumprod}.items()}
TABLE |= {
    f"reduce_{name}": _reduce(f)
    for name, f in {
        "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "and": np.all, "or": np.any
    }.items()
}  # fmt: skip
TABLE["convert_element_type"] = _convert
TABLE["unstack"] = lambda eqn, values: list(np.moveaxis(values[0], eqn.params["axis"], 0))
TABLE["split"] = _split
TABLE["optimization_barrier"] = lambda eqn, values: list(values)


def _gather(p: Any, a: Any, indices: Any) -> Any:
    """One read per element of the result; starts are moved inside, or read as zero outside in the filling mode."""
    d, sizes = p["dimension_numbers"], p["slice_sizes"]
    inside = [i for i in range(a.ndim) if i not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
    batch = list(np.ndindex(*indices.shape[:-1]))
    found = np.zeros((*indices.shape[:-1], *(sizes[i] for i in inside)), a.dtype)
    fills = "FILL" in str(p["mode"])
    for at in batch:
        start = _start(
            d.start_index_map,
            zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True),
            indices[at],
            at,
            a.ndim,
        )
        limits = [n - k for n, k in zip(a.shape, sizes, strict=True)]
        if fills and any(not 0 <= s <= m for s, m in zip(start, limits, strict=True)):
            found[at] = _filling(p, a.dtype)
            continue
        start = [min(max(s, 0), m) for s, m in zip(start, limits, strict=True)]
        block = a[tuple(slice(s, s + k) for s, k in zip(start, sizes, strict=True))]
        found[at] = block.reshape([sizes[i] for i in inside])
    rest = [i for i in range(found.ndim) if i not in d.offset_dims]
    order = np.argsort([*rest, *d.offset_dims])
    return found.transpose(order)


def _start(mapped: Any, batching: Any, index: Any, at: Any, rank: int) -> list[int]:
    start = [0] * rank
    for axis, value in zip(mapped, index, strict=True):
        start[axis] = int(value)
    for axis, along in batching:
        start[axis] = at[along]
    return start


def _filling(p: Any, dtype: Any) -> Any:
    if p["fill_value"] is not None:
        return p["fill_value"]
    return np.nan if np.issubdtype(dtype, np.inexact) else np.iinfo(dtype).max if dtype.kind in "iu" else True


def _scatter(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(p: Any, a: Any, indices: Any, updates: Any) -> Any:
        d, out = p["dimension_numbers"], a.copy()
        window = [i for i in range(a.ndim) if i not in (*d.inserted_window_dims, *d.operand_batching_dims)]
        sizes = [1] * a.ndim
        for axis, update_axis in zip(window, d.update_window_dims, strict=True):
            sizes[axis] = updates.shape[update_axis]
        rest = [i for i in range(updates.ndim) if i not in d.update_window_dims]
        parts = updates.transpose(*rest, *d.update_window_dims)
        clips = "CLIP" in str(p["mode"])
        for at in np.ndindex(*indices.shape[:-1]):
            pairs = zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True)
            start = _start(d.scatter_dims_to_operand_dims, pairs, indices[at], at, a.ndim)
            limits = [n - k for n, k in zip(a.shape, sizes, strict=True)]
            if clips:
                start = [min(max(s, 0), m) for s, m in zip(start, limits, strict=True)]
            if any(not 0 <= s <= m for s, m in zip(start, limits, strict=True)):
                continue  # outside: dropped
            place = tuple(slice(s, s + k) for s, k in zip(start, sizes, strict=True))
            out[place] = combine(out[place], parts[at].reshape(sizes))
        return out

    return with_params(run)


TABLE["gather"] = with_params(_gather)
TABLE["scatter"] = _scatter(lambda old, new: new)
TABLE["scatter-add"] = TABLE["scatter_add"] = _scatter(np.add)
