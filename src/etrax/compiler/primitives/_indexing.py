"""Reading and writing at indices. Precise where the indices are constants of the model."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from ..._compat import run_equation
from ._dep import MAX_MAPS, Dep, look_up, merge_rows, reduce, union
from ._range import ZERO, join, joined, same, summed
from ._record import Call, Deps, all_zero, any_zero, conservative, define


def _gather(call: Call) -> list[Deps]:
    if call.deps[1]:
        return conservative(call)
    indices = call.value(1)
    if indices is None:
        return _unknown_rows(call)
    mode = call.params["mode"]
    fills = call.params.get("fill_value") is not None or "FILL" in str(mode)
    eqn = call.eqn.replace(params={**call.params, "fill_value": -1 if fills else None})

    def moved(m: np.ndarray) -> np.ndarray:
        """Element numbers moved by the equation itself: blanks stay blank, and so does what is filled."""
        with jax.ensure_compile_time_eval():
            return np.asarray(
                run_equation(eqn, [jax.numpy.asarray(np.ascontiguousarray(m)), jax.numpy.asarray(indices)])[0]
            )

    return [{s: dep.relocate(moved, call.cause) for s, dep in call.deps[0].items()}]


def _unknown_rows(call: Call) -> list[Deps]:
    """Indices that depend on data: whole axes are read, batch axes of the gather stay apart."""
    d, shape = call.params["dimension_numbers"], call.out_shape()
    sizes, operand = call.params["slice_sizes"], call.in_shape(0)
    full = [i for i, n in enumerate(sizes) if n == operand[i] and i not in d.start_index_map]
    apart = [i for i in full if i not in d.collapsed_slice_dims and i not in d.operand_batching_dims]
    visible = [i for i in range(len(sizes)) if i not in d.collapsed_slice_dims and i not in d.operand_batching_dims]
    # The axis of the result that an operand's axis becomes: offset axes stand in the order of those that are not
    # collapsed, batch axes in the order of the indices' own.
    out_axis = {i: d.offset_dims[visible.index(i)] for i in apart}
    index_rank = len(call.in_shape(1)) - 1
    batch_out = [i for i in range(len(shape)) if i not in d.offset_dims]
    for axis, index_axis in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
        if index_axis < index_rank:
            out_axis[axis] = batch_out[index_axis]

    def f(dep: Dep) -> Dep:
        lost = [i for i in range(len(operand)) if i not in out_axis]
        dep = reduce(dep, lost, call.cause) if lost else dep
        stays = [i for i in range(len(operand)) if i in out_axis]
        # Remaining axes in the order of the result, each at its place among axes of length one.
        order = np.argsort([out_axis[i] for i in stays])
        spread = [1] * len(shape)
        for i in stays:
            spread[out_axis[i]] = operand[i]
        return dep.relocate(lambda m: np.broadcast_to(m.transpose(order).reshape(spread), shape), call.cause)

    return [{s: f(dep) for s, dep in call.deps[0].items()}]


def _dynamic_slice(call: Call) -> list[Deps]:
    if any(call.deps[1:]):
        return conservative(call)
    starts = [call.value(i) for i in range(1, len(call.deps))]
    sizes, shape = call.params["slice_sizes"], call.in_shape(0)

    def f(dep: Dep) -> Dep:
        for axis, (start, n) in enumerate(zip(starts, sizes, strict=True)):
            if n == shape[axis]:
                continue
            if start is None:
                total = reduce(dep, (axis,), call.cause)
                want = (*dep.shape[:axis], n, *dep.shape[axis + 1 :])
                dep = total.relocate(lambda m, axis=axis, want=want: np.broadcast_to(np.expand_dims(m, axis), want))
            else:
                a = int(np.clip(start, 0, shape[axis] - n))  # as XLA does: a slice never leaves the array
                at = (slice(None),) * axis + (slice(a, a + n),)
                dep = dep.relocate(lambda m, at=at: m[at], call.cause)
        return dep

    return [{s: f(dep) for s, dep in call.deps[0].items()}]


def _dynamic_update_slice(call: Call) -> list[Deps]:
    if any(call.deps[2:]):
        return conservative(call)
    starts = [call.value(i) for i in range(2, len(call.deps))]
    shape, part = call.in_shape(0), call.in_shape(1)
    fixed = all(s is not None or n == size for s, n, size in zip(starts, part, shape, strict=True))
    at = tuple(
        slice(None) if n == size else slice(a := int(np.clip(s, 0, size - n)), a + n) if s is not None else slice(None)
        for s, n, size in zip(starts, part, shape, strict=True)
    )

    def write(m: np.ndarray) -> np.ndarray:
        out = np.full(shape, -1, np.int32)
        out[at] = m
        return out

    def erase(m: np.ndarray) -> np.ndarray:
        out = np.array(m)
        out[at] = -1
        return out

    def anywhere(dep: Dep) -> Dep:
        """The written part may land at any place of the axes whose start is unknown."""
        for axis, (start, n) in enumerate(zip(starts, part, strict=True)):
            if n != shape[axis] and start is None:
                total = reduce(dep, (axis,), call.cause)
                want = (*dep.shape[:axis], shape[axis], *dep.shape[axis + 1 :])
                dep = total.relocate(lambda m, axis=axis, want=want: np.broadcast_to(np.expand_dims(m, axis), want))
            elif n != shape[axis]:
                assert start is not None
                a = int(np.clip(start, 0, shape[axis] - n))
                pads = [(0, 0)] * len(shape)
                pads[axis] = (a, shape[axis] - n - a)
                dep = dep.relocate(lambda m, pads=pads: np.pad(m, pads, constant_values=-1))
        return dep

    out: Deps = {}
    for source in {**call.deps[0], **call.deps[1]}:
        parts = []
        if source in call.deps[0]:
            parts.append(call.deps[0][source].relocate(erase, call.cause) if fixed else call.deps[0][source])
        if source in call.deps[1]:
            dep = call.deps[1][source]
            parts.append(dep.relocate(write, call.cause) if fixed else anywhere(dep))
        out[source] = union(parts)
    return [out]


def _scatter_mul(call: Call) -> list[Deps]:
    if call.deps[2]:
        call.problem("multiplies by a gradient")
    return _scatter(call)


def _scatter_extreme(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return _scatter(call)


def _scatter(call: Call) -> list[Deps]:
    operand, indices, updates = call.deps
    values = call.value(1)
    if indices or values is None or call.in_shape(1)[-1] == 0:
        return _scatter_unknown(call) if not indices else conservative(call)
    target = _targets(call, values)
    out: Deps = {}
    overwrite = call.eqn.primitive.name == "scatter"
    for source in {**operand, **updates}:
        parts = []
        if source in operand:
            old = operand[source]
            parts.append(old.relocate(lambda m: _erased(m, target[target >= 0]), call.cause) if overwrite else old)
        if source in updates:
            parts.append(_accumulate(updates[source], target, call))
        out[source] = union(parts)
    return [out]


def _erased(m: np.ndarray, at: np.ndarray) -> np.ndarray:
    out = np.array(m).reshape(-1)
    out[at] = -1
    return out.reshape(m.shape)


def _targets(call: Call, indices: np.ndarray) -> np.ndarray:
    """For each element of the updates, the flat element of the operand that it is written to (-1: dropped)."""
    shape, d = call.in_shape(0), call.params["dimension_numbers"]
    n = int(np.prod(shape, dtype=np.int64))
    sizes, update = [], call.in_shape(2)
    windows = iter(d.update_window_dims)
    for i in range(len(shape)):
        hidden = i in d.inserted_window_dims or i in d.operand_batching_dims
        sizes.append(1 if hidden else update[next(windows)])
    gather = lax.GatherDimensionNumbers(
        offset_dims=d.update_window_dims, collapsed_slice_dims=d.inserted_window_dims,
        start_index_map=d.scatter_dims_to_operand_dims, operand_batching_dims=d.operand_batching_dims,
        start_indices_batching_dims=d.scatter_indices_batching_dims,
    )  # fmt: skip
    numbers = np.arange(n, dtype=np.int32).reshape(shape)
    mode = lax.GatherScatterMode.CLIP if "CLIP" in str(call.params["mode"]) else lax.GatherScatterMode.FILL_OR_DROP
    with jax.ensure_compile_time_eval():
        targets = lax.gather(numbers, indices, gather, tuple(sizes), mode=mode, fill_value=-1)
    return np.asarray(targets).reshape(-1)


def _accumulate(dep: Dep, target: np.ndarray, call: Call) -> Dep:
    """Sum update elements into their targets: as many maps as the most updates that one target takes, or blocks."""
    shape = call.in_shape(0)
    n = int(np.prod(shape, dtype=np.int64))
    flat = [m.reshape(-1) for m in dep.maps]
    if target.size and int(target.min()) < 0:
        flat, target = [m[target >= 0] for m in flat], target[target >= 0]
    if int(np.bincount(target, minlength=1).max()) * len(flat) > MAX_MAPS:
        single = len(flat) == 1
        row, block = (target, flat[0]) if single else (np.tile(target, len(flat)), np.concatenate(flat))
        part, blocks = merge_rows(dep.part, row, block, n)
        return Dep(part, (blocks.reshape(shape),), call.cause)
    at, update = target, np.arange(target.size, dtype=np.int32)
    layers = []
    while at.size or not layers:  # each round places one update of every target that has some left
        layer = np.full(n, -1, np.int32)
        layer[at] = update
        left = layer[at] != update
        at, update = at[left], update[left]
        layers.append(layer)
    placed = [look_up(m, u).reshape(shape) for m in flat for u in layers]
    return union([Dep(dep.part, (m,), call.cause) for m in placed])


def _scatter_unknown(call: Call) -> list[Deps]:
    """Places that depend on data: an update may land anywhere; whole-window axes stay apart."""
    d, shape = call.params["dimension_numbers"], call.in_shape(0)
    update = call.in_shape(2)
    visible = [i for i in range(len(shape)) if i not in d.inserted_window_dims and i not in d.operand_batching_dims]
    # Axes of the operand that stay apart, with the axis of the updates that each of them is.
    apart = {
        axis: d.update_window_dims[k]
        for k, axis in enumerate(visible)
        if axis not in d.scatter_dims_to_operand_dims and update[d.update_window_dims[k]] == shape[axis]
    }
    batch_updates = [i for i in range(len(update)) if i not in d.update_window_dims]
    for axis, index_axis in zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True):
        apart[axis] = batch_updates[index_axis]
    out: Deps = {s: dep for s, dep in call.deps[0].items()}
    for source, dep in call.deps[2].items():
        lost = [i for i in range(len(update)) if i not in apart.values()]
        total = reduce(dep, lost, call.cause) if lost else dep
        axes = sorted(apart, key=lambda a: apart[a])
        spread = [n if i in apart else 1 for i, n in enumerate(shape)]
        order = np.argsort(axes)
        wide = total.relocate(
            lambda m, o=order, s=spread: np.broadcast_to(m.transpose(o).reshape(s), shape), call.cause
        )
        out[source] = union([out[source], wide]) if source in out else wide
    return [out]


define("gather", pattern=_gather, zero=all_zero, bounds=lambda eqn, r: join([r[0], ZERO]), light=True)
define("dynamic_slice", pattern=_dynamic_slice, zero=all_zero, bounds=same)
define("dynamic_update_slice", pattern=_dynamic_update_slice, zero=all_zero, bounds=joined)
define("scatter", pattern=_scatter, zero=all_zero, bounds=joined)
define("scatter-add", pattern=_scatter, zero=all_zero, bounds=lambda eqn, r: summed(join([r[0], r[2]])))
define("scatter_add", "scatter-sub", pattern=_scatter, zero=all_zero)
define("scatter-mul", pattern=_scatter_mul, zero=any_zero(0))
define("scatter-min", "scatter-max", pattern=_scatter_extreme)
