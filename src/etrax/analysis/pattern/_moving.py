"""Elements moved, repeated, dropped or put side by side: reshapes, slices, pads, concatenations, indexing."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ._dep import Dep, union
from ._table import Call, Deps, on_operand, rule


def _moved(call: Call, f) -> list[Deps]:
    return on_operand(call, lambda dep: dep.relocate(f, call.cause))


@rule("broadcast_in_dim")
def _broadcast(call: Call) -> list[Deps]:
    shape, dims = call.params["shape"], call.params["broadcast_dimensions"]

    def f(m):
        spread = [1] * len(shape)
        for axis, n in zip(dims, m.shape, strict=True):
            spread[axis] = n
        return np.broadcast_to(m.reshape(spread), shape)

    return on_operand(call, lambda dep: dep.relocate(f))


@rule("reshape")
def _reshape(call: Call) -> list[Deps]:
    order = call.params.get("dimensions")
    turned = (lambda m: m) if order is None else (lambda m: m.transpose(order))
    return on_operand(call, lambda dep: dep.relocate(lambda m: turned(m).reshape(call.out_shape())))


@rule("squeeze", "expand_dims")
def _squeeze(call: Call) -> list[Deps]:
    return on_operand(call, lambda dep: dep.relocate(lambda m: m.reshape(call.out_shape())))


@rule("transpose")
def _transpose(call: Call) -> list[Deps]:
    return on_operand(call, lambda dep: dep.relocate(lambda m: m.transpose(call.params["permutation"])))


@rule("rev")
def _rev(call: Call) -> list[Deps]:
    return _moved(call, lambda m: np.flip(m, call.params["dimensions"]))


@rule("tile")
def _tile(call: Call) -> list[Deps]:
    return _moved(call, lambda m: np.tile(m, call.params["reps"]))


@rule("slice")
def _slice(call: Call) -> list[Deps]:
    p = call.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    at = tuple(slice(a, b, s) for a, b, s in zip(p["start_indices"], p["limit_indices"], strides, strict=True))
    return _moved(call, lambda m: m[at])


@rule("split")
def _split(call: Call) -> list[Deps]:
    edges = np.cumsum(call.params["sizes"])[:-1]
    axis = call.params["axis"]
    pieces = {s: [dep.relocate(lambda m, i=i: np.split(m, edges, axis)[i], call.cause) for i in range(len(edges) + 1)]
              for s, dep in call.deps[0].items()}  # fmt: skip
    return [{s: found[i] for s, found in pieces.items()} for i in range(len(edges) + 1)]


@rule("unstack")
def _unstack(call: Call) -> list[Deps]:
    axis = call.params["axis"]
    return [
        {s: dep.relocate(lambda m, i=i: np.take(m, i, axis), call.cause) for s, dep in call.deps[0].items()}
        for i in range(len(call.eqn.outvars))
    ]


def side_by_side(call: Call, join) -> list[Deps]:
    """Operands placed next to each other: one full-size pattern per operand, blank elsewhere, then their union."""
    blanks = [np.full(call.in_shape(i), -1, np.int32) for i in range(len(call.deps))]
    found: dict[Hashable, list[Dep]] = {}
    for i, deps in enumerate(call.deps):
        for source, dep in deps.items():
            found.setdefault(source, []).append(
                dep.relocate(lambda m, i=i: join([*blanks[:i], m, *blanks[i + 1 :]]), call.cause)
            )
    return [{source: union(parts) for source, parts in found.items()}]


@rule("concatenate")
def _concatenate(call: Call) -> list[Deps]:
    return side_by_side(call, lambda arrays: np.concatenate(arrays, call.params["dimension"]))


@rule("stack")
def _stack(call: Call) -> list[Deps]:
    return side_by_side(call, lambda arrays: np.stack(arrays, call.params["axis"]))


@rule("pad")
def _pad(call: Call) -> list[Deps]:
    config = call.params["padding_config"]

    def f(m):
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
