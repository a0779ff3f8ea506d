"""Reads and writes by index, and sparse products: an entry lives with the row that it is added to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from .._compat import JaxprEqn, is_concrete, run_equation
from ._partition import SLICES, Walk, rule
from ._place import Local, merged_dims


def _gather_dims(eqn: JaxprEqn, x: Local, index: Local) -> tuple[dict[int, int], dict[int, int], list[tuple[int, int]]]:
    """Dimensions of the operand, and of the indices, that are dimensions of the output; and those batched in both."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    rank = len(eqn.outvars[0].aval.shape)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    windows = [d for d in range(len(x.shape)) if d not in dropped]
    of_operand = {
        d: o for d, o in zip(windows, numbers.offset_dims, strict=True)
        if sizes[d] == x.shape[d] and d not in numbers.start_index_map
    }  # fmt: skip
    outer = [o for o in range(rank) if o not in numbers.offset_dims]
    of_index = dict(zip(range(len(index.shape) - 1), outer, strict=True))
    both = list(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    return of_operand, of_index, both


@rule("gather")
def _gather(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    x, index = map(walk.summed, operands)
    of_operand, of_index, both = _gather_dims(eqn, x, index)
    rank = len(eqn.outvars[0].aval.shape)
    asked: list[list[str | None]] = [[None] * rank, [None] * rank]
    for d, o in of_operand.items():
        asked[0][o] = x.place.dims[d]
    for d, o in of_index.items():
        asked[1][o] = index.place.dims[d]
    for d, i in both:
        asked[0][of_index[i]] = x.place.dims[d]
    found = _gather_to(walk, eqn, x, index, merged_dims(rank, asked))
    # It may be asked for in slices, by entry: each device then reads its own, of operands before they are put together.
    return [replace(found, made=(eqn, (x, index)))]


def _gather_to(walk: Walk, eqn: JaxprEqn, x: Local, index: Local, dims: Sequence[str | None]) -> Local:
    of_operand, of_index, both = _gather_dims(eqn, x, index)
    own = frozenset(a for a in dims if a)
    want: list[str | None] = [None] * len(x.shape)
    for d, o in of_operand.items():
        want[d] = dims[o]
    for d, i in both:
        want[d] = dims[of_index[i]]
    x = walk.put(x, want, own)
    index = walk.put(index, [*(dims[of_index[d]] for d in range(len(index.shape) - 1)), None], own)
    p = eqn.params
    sizes = tuple(
        n // walk.sizes[a] if a is not None and d in of_operand else n
        for d, (n, a) in enumerate(zip(p["slice_sizes"], want, strict=True))
    )

    def run(v: Any, i: Any) -> Any:
        kept = {k: p[k] for k in ("unique_indices", "indices_are_sorted", "mode", "fill_value")}
        return lax.gather(v, i, p["dimension_numbers"], sizes, **kept)

    return walk.local(eqn, [x, index], dims, frozenset(), run)


def _slice_gather(
    walk: Walk, eqn: JaxprEqn, operands: tuple[Local, ...], dims: Sequence[str | None], d: int
) -> Local | None:
    x, index = operands
    of_operand, of_index, _ = _gather_dims(eqn, x, index)
    if d not in of_operand.values() and d not in of_index.values():
        return None
    return _gather_to(walk, eqn, x, index, dims)


SLICES["gather"] = _slice_gather


@rule("scatter-add", "scatter_add")
def _scatter_add(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    """Windows stay cut. Entries that are cut are added where they are: to the rows of the same device if they all are
    there, else to a copy of all rows, and the copies are added up."""
    x, index, new = (walk.summed(o) for o in operands)
    n = eqn.params["dimension_numbers"]
    if n.operand_batching_dims or len(n.scatter_dims_to_operand_dims) != 1:
        return walk.gathered(eqn, operands)
    row = n.scatter_dims_to_operand_dims[0]
    windows = [d for d in range(len(x.shape)) if d not in n.inserted_window_dims]
    pairs = [
        (d, u) for d, u in zip(windows, n.update_window_dims, strict=True) if d != row and new.shape[u] == x.shape[d]
    ]
    entries = [u for u in range(len(new.shape)) if u not in n.update_window_dims]
    dims: list[str | None] = [None] * len(x.shape)
    for d, u in pairs:
        axis = new.place.dims[u] or x.place.dims[d]
        dims[d] = None if axis in dims else axis
    wanted: list[str | None] = [None] * len(new.shape)
    for d, u in pairs:
        wanted[u] = dims[d]
    axis = new.place.dims[entries[0]] if len(entries) == 1 else None
    axis = None if axis in dims else axis
    partial: frozenset[str] = frozenset()
    if axis is not None:
        wanted[entries[0]] = axis
        if row in n.inserted_window_dims and _own_rows(walk, index, x.shape[row], axis):
            dims[row] = axis
        else:
            partial = frozenset({axis})
            x = walk.put(x, [a if a != axis else None for a in x.place.dims], partial)
            x = replace(x, value=x.value / np.asarray(walk.sizes[axis], x.value.dtype), made=None, bits=False)
    own = frozenset(a for a in dims if a) | partial
    x, new = walk.put(x, dims, own), walk.put(new, wanted, own)
    index = walk.put(index, [axis, None], own) if axis is not None else walk.put(index, [None] * len(index.shape), own)
    if axis is not None and not partial:
        index = shifted(walk, index, x.shape[row], axis)
    p = eqn.params
    run = lambda v, i, u: lax.scatter_add(  # noqa: E731
        v, i, u, n, indices_are_sorted=p["indices_are_sorted"], unique_indices=p["unique_indices"], mode=p["mode"]
    )
    found = walk.local(eqn, [x, index, new], dims, partial, run)
    return [found if partial else replace(found, made=(eqn, tuple(operands)))]


def _slice_scatter_add(
    walk: Walk, eqn: JaxprEqn, operands: tuple[Local, ...], dims: Sequence[str | None], d: int
) -> Local | None:
    """Some rows are sums of the entries that lie with them."""
    x, index, new = operands
    n, axis = eqn.params["dimension_numbers"], str(dims[d])
    entries = [u for u in range(len(new.shape)) if u not in n.update_window_dims]
    if n.operand_batching_dims or n.scatter_dims_to_operand_dims != (d,) or len(entries) != 1:
        return None
    if d not in n.inserted_window_dims or not _own_rows(walk, index, x.shape[d], axis):
        return None
    return _scatter_add(walk, eqn, [x, index, walk.slice(new, entries[0], axis)])[0]


SLICES |= dict.fromkeys(("scatter-add", "scatter_add"), _slice_scatter_add)


def _own_rows(walk: Walk, index: Local, rows: int, axis: str, column: int = 0) -> bool:
    """Whether the entries of each device are all added to rows of the same device (or to none)."""
    size = walk.sizes[axis]
    if walk.at is None or not index.whole or not is_concrete(index.value) or rows % size or index.shape[0] % size:
        return False
    found = np.asarray(index.value).reshape(index.shape[0], -1)[:, column]
    part = np.arange(found.size) // (found.size // size)
    inside = (found >= 0) & (found < rows)
    return bool(((found // (rows // size) == part) | ~inside).all())


def shifted(walk: Walk, index: Local, rows: int, axis: str, column: int | None = None) -> Local:
    """Numbers of rows, counted from the first that this device has; one that is out of bounds stays so."""
    assert walk.at is not None, "entries lie with their row on devices that are known"
    per, first = rows // walk.sizes[axis], walk.at[axis] * (rows // walk.sizes[axis])
    found = np.array(index.value)
    own = found if column is None else found[:, column]
    inside = (own >= 0) & (own < rows)
    moved = np.where(inside, own - first, per).astype(found.dtype)
    if column is None:
        found = moved
    else:
        found[:, column] = moved
    walk.uses_coordinates = True
    return replace(index, value=found)


@rule("bcoo_dot_general")
def _bcoo(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    """A sparse matrix times a dense one: entries with the row that they are added to, dense columns with their own."""
    w, index, x = (walk.summed(o) for o in operands)
    (cx, cy), (bx, by) = eqn.params["dimension_numbers"]
    info = eqn.params["lhs_spinfo"]
    if bx or by or len(w.shape) != 1 or len(info.shape) != 2 or len(cx) != 1:
        return walk.gathered(eqn, operands)
    axis, row = w.place.dims[0], 1 - cx[0]
    if axis is not None and not _own_rows(walk, index, info.shape[row], axis, row):
        return walk.gathered(eqn, operands)
    free = [d for d in range(len(x.shape)) if d not in cy]
    kept = [x.place.dims[d] if d in free and x.place.dims[d] != axis else None for d in range(len(x.shape))]
    dims = [axis, *(kept[d] for d in free)]
    own = frozenset(a for a in dims if a)
    x, shape = walk.put(x, kept, own), tuple(info.shape)
    if axis is not None:
        index = shifted(walk, walk.put(index, [axis, None], own), info.shape[row], axis, row)
        shape = tuple(n // walk.sizes[axis] if d == row else n for d, n in enumerate(shape))
    params = {**eqn.params, "lhs_spinfo": info._replace(shape=shape)}
    run = lambda w, i, x: run_equation(eqn.replace(params=params), [w, i, x])[0]  # noqa: E731
    return [walk.local(eqn, [w, index, x], dims, frozenset(), run)]


@rule("csr_matvec", "csr_matmat")
def _csr(walk: Walk, eqn: JaxprEqn, operands: list[Local]) -> list[Local]:
    """The same for entries in the order of their rows, of which `starts` says where each begins."""
    w, columns, starts, x = (walk.summed(o) for o in operands)
    axis, (rows, _) = w.place.dims[0], eqn.params["shape"]
    if eqn.params["transpose"] or (axis is not None and not _own_starts(walk, w, starts, rows, axis)):
        return walk.gathered(eqn, operands)
    kept = [None, *(a if a != axis else None for a in x.place.dims[1:])]
    dims = [axis, *kept[1:]]
    own = frozenset(a for a in dims if a)
    x, params = walk.put(x, kept, own), dict(eqn.params)
    if axis is not None and walk.at is not None:
        n, k = walk.sizes[axis], walk.at[axis]
        columns = walk.put(columns, [axis], own)
        own_starts = np.asarray(starts.value)[k * (rows // n) : (k + 1) * (rows // n) + 1]
        starts = replace(starts, value=own_starts - own_starts[0])
        params["shape"], walk.uses_coordinates = (rows // n, eqn.params["shape"][1]), True
    run = lambda *values: run_equation(eqn.replace(params=params), values)[0]  # noqa: E731
    return [walk.local(eqn, [w, columns, starts, x], dims, frozenset(), run)]


def _own_starts(walk: Walk, w: Local, starts: Local, rows: int, axis: str) -> bool:
    """Whether the rows of each device have as many entries, and so just those that it holds."""
    n = walk.sizes[axis]
    if walk.at is None or not starts.whole or not is_concrete(starts.value) or rows % n or w.shape[0] % n:
        return False
    return bool((np.asarray(starts.value)[:: rows // n] == np.arange(n + 1) * (w.shape[0] // n)).all())
