"""Elements moved, repeated, dropped or put side by side: reshapes, slices, pads, concatenations, indexing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import numpy as np

from ..._compat import JaxprEqn
from ._dep import Dep, union
from ._name import name_of_linear
from ._range import joined, same
from ._record import Along, Call, Deps, all_zero, define, on_operand

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
    terms: dict[Hashable, list[Dep]] = {}
    for i, deps in enumerate(call.deps):
        for source, dep in deps.items():
            terms.setdefault(source, []).append(
                dep.relocate(lambda m, i=i: place([*blanks[:i], m, *blanks[i + 1 :]]), call.cause)
            )
    return [{source: union(parts) for source, parts in terms.items()}]


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


def _broadcast_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    out = [True] * len(eqn.params["shape"])
    shape = eqn.invars[0].aval.shape
    for i, axis in enumerate(eqn.params["broadcast_dimensions"]):
        out[axis] = along[0][i] or shape[i] == 1
    return [tuple(out)]


def _broadcast_numbers(eqn: JaxprEqn, a: np.ndarray) -> np.ndarray:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    beside = [a.shape[axes.index(i)] if i in axes else 1 for i in range(len(shape))]
    return np.broadcast_to(a.reshape(beside), shape)


def _reshape_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    """Runs of axes with one product on both sides: uniform where all axes of the run were."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.params.get("dimensions") is not None:
        return [(False,) * len(new)]
    if 0 in old:
        return [(True,) * len(new)]
    out, i, j = [True] * len(new), 0, 0
    while i < len(old) or j < len(new):
        # Take axes from the side with the smaller product until both runs hold equally many elements; (4, 6) and
        # (2, 2, 6) have the runs 4 = 2 · 2 and 6 = 6.
        a, b, first, start = 1, 1, i, j
        while a != b or (a == 1 and i < len(old) and j < len(new) and first == i):
            if a <= b and i < len(old):
                a, i = a * old[i], i + 1
            else:
                b, j = b * new[j], j + 1
        if first == i and start == j:  # axes of one that are left over
            break
        for axis in range(start, j):
            out[axis] = all(along[0][first:i])
    return [tuple(out)]


def _transpose_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    return [tuple(along[0][i] for i in eqn.params["permutation"])]


def _squeeze_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    gone = [d % len(along[0]) for d in eqn.params["dimensions"]]
    return [tuple(a for i, a in enumerate(along[0]) if i not in gone)]


def _each_axis(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    """A part of an array, or the array in another order, axis by axis."""
    return [along[0]]


def _concatenate_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    out = [all(each) for each in zip(*along, strict=True)]
    out[eqn.params["dimension"]] = False
    return [tuple(out)]


def _pad_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    return [tuple(a and set(c) == {0} for a, c in zip(along[0], eqn.params["padding_config"], strict=True))]


_moves = {"zero": all_zero, "light": True}
define("broadcast_in_dim", **_moves, pattern=_broadcast, bounds=same, uniform=_broadcast_uniform, name=name_of_linear,
       numbers=_broadcast_numbers, reshapes=True)  # fmt: skip
define("reshape", **_moves, pattern=_reshape, bounds=same, uniform=_reshape_uniform, name=name_of_linear,
       numbers=lambda eqn, a: a.reshape(eqn.params["new_sizes"]), reshapes=True)  # fmt: skip
define("squeeze", **_moves, pattern=_squeeze, bounds=same, uniform=_squeeze_uniform, name=name_of_linear,
       numbers=lambda eqn, a: a.reshape(eqn.outvars[0].aval.shape), reshapes=True)  # fmt: skip
define("expand_dims", **_moves, pattern=_squeeze, bounds=same, reshapes=True)
define("transpose", **_moves, pattern=_transpose, bounds=same, uniform=_transpose_uniform, name=name_of_linear,
       numbers=lambda eqn, a: a.transpose(eqn.params["permutation"]), reshapes=True)  # fmt: skip
define("rev", **_moves, pattern=_rev, bounds=same, uniform=_each_axis, name=name_of_linear)
define("slice", **_moves, pattern=_slice, bounds=same, uniform=_each_axis, name=name_of_linear)
define("split", **_moves, pattern=_split)
define("concatenate", **_moves, pattern=_concatenate, bounds=joined, uniform=_concatenate_uniform,
       numbers=lambda eqn, *parts: np.concatenate(parts, eqn.params["dimension"]))  # fmt: skip
define("pad", **_moves, pattern=_pad, bounds=joined, uniform=_pad_uniform)
define("tile", pattern=_tile, zero=all_zero)
define("unstack", pattern=_unstack, zero=all_zero)
define("stack", pattern=_stack, zero=all_zero)
