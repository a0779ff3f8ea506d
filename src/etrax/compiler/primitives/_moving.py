"""Elements moved, repeated, dropped or put side by side: reshapes, slices, pads, concatenations, indexing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import numpy as np

from ._dep import Dep, union
from ._range import joined, same
from ._record import Call, Deps, all_zero, define, on_operand

Map: TypeAlias = Callable[[np.ndarray], np.ndarray]


def _moved(call: Call, f: Map) -> list[Deps]:
    return on_operand(call, lambda dep: dep.relocate(f, call.cause))


def _broadcast(call: Call) -> list[Deps]:
    shape, dims = call.params["shape"], call.params["broadcast_dimensions"]

    def f(m: np.ndarray) -> np.ndarray:
        spread = [1] * len(shape)
        for axis, n in zip(dims, m.shape, strict=True):
            spread[axis] = n
        return np.broadcast_to(m.reshape(spread), shape)

    return on_operand(call, lambda dep: dep.relocate(f))


def _reshape(call: Call) -> list[Deps]:
    order = call.params.get("dimensions")
    turned: Map = (lambda m: m) if order is None else (lambda m: m.transpose(order))
    return on_operand(call, lambda dep: dep.relocate(lambda m: turned(m).reshape(call.out_shape())))


def _squeeze(call: Call) -> list[Deps]:
    return on_operand(call, lambda dep: dep.relocate(lambda m: m.reshape(call.out_shape())))


def _transpose(call: Call) -> list[Deps]:
    return on_operand(call, lambda dep: dep.relocate(lambda m: m.transpose(call.params["permutation"])))


def _rev(call: Call) -> list[Deps]:
    return _moved(call, lambda m: np.flip(m, call.params["dimensions"]))


def _tile(call: Call) -> list[Deps]:
    return _moved(call, lambda m: np.tile(m, call.params["reps"]))


def _slice(call: Call) -> list[Deps]:
    p = call.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    at = tuple(slice(a, b, s) for a, b, s in zip(p["start_indices"], p["limit_indices"], strides, strict=True))
    return _moved(call, lambda m: m[at])


def _split(call: Call) -> list[Deps]:
    ends = np.cumsum(call.params["sizes"])
    lead = (slice(None),) * call.params["axis"]
    pieces = [(*lead, slice(end - n, end)) for end, n in zip(ends, call.params["sizes"], strict=True)]
    return [{s: dep.relocate(lambda m, at=at: m[at], call.cause) for s, dep in call.deps[0].items()} for at in pieces]


def _unstack(call: Call) -> list[Deps]:
    axis = call.params["axis"]
    return [
        {s: dep.relocate(lambda m, i=i: np.take(m, i, axis), call.cause) for s, dep in call.deps[0].items()}
        for i in range(len(call.eqn.outvars))
    ]


def _side_by_side(call: Call, place: Callable[[Sequence[np.ndarray]], np.ndarray]) -> list[Deps]:
    """Operands placed next to each other: one full-size pattern per operand, blank elsewhere, then their union."""
    blanks = [np.full(call.in_shape(i), -1, np.int32) for i in range(len(call.deps))]
    found: dict[Hashable, list[Dep]] = {}
    for i, deps in enumerate(call.deps):
        for source, dep in deps.items():
            found.setdefault(source, []).append(
                dep.relocate(lambda m, i=i: place([*blanks[:i], m, *blanks[i + 1 :]]), call.cause)
            )
    return [{source: union(parts) for source, parts in found.items()}]


def _concatenate(call: Call) -> list[Deps]:
    return _side_by_side(call, lambda arrays: np.concatenate(arrays, call.params["dimension"]))


def _stack(call: Call) -> list[Deps]:
    return _side_by_side(call, lambda arrays: np.stack(arrays, call.params["axis"]))


def _pad(call: Call) -> list[Deps]:
    config = call.params["padding_config"]

    def f(m: np.ndarray) -> np.ndarray:
        for axis, (low, high, gap) in enumerate(config):
            if gap:
                wide = np.full(
                    (*m.shape[:axis], max(m.shape[axis] * (gap + 1) - gap, 0), *m.shape[axis + 1 :]), -1, np.int32
                )
                wide[(slice(None),) * axis + (slice(None, None, gap + 1),)] = m
                m = wide
            keep = slice(max(-low, 0), m.shape[axis] - max(-high, 0))
            m = m[(slice(None),) * axis + (keep,)]
            widths = [(0, 0)] * m.ndim
            widths[axis] = (max(low, 0), max(high, 0))
            m = np.pad(m, widths, constant_values=-1)
        return m

    return _moved(call, f)


define("broadcast_in_dim", pattern=_broadcast, zero=all_zero, bounds=same)
define("reshape", pattern=_reshape, zero=all_zero, bounds=same)
define("squeeze", "expand_dims", pattern=_squeeze, zero=all_zero, bounds=same)
define("transpose", pattern=_transpose, zero=all_zero, bounds=same)
define("rev", pattern=_rev, zero=all_zero, bounds=same)
define("tile", pattern=_tile, zero=all_zero)
define("slice", pattern=_slice, zero=all_zero, bounds=same)
define("split", pattern=_split, zero=all_zero)
define("unstack", pattern=_unstack, zero=all_zero)
define("concatenate", pattern=_concatenate, zero=all_zero, bounds=joined)
define("stack", pattern=_stack, zero=all_zero)
define("pad", pattern=_pad, zero=all_zero, bounds=joined)
