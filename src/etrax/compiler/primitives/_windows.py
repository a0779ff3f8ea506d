"""Sliding windows: pooling and its transposes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._dep import Dep, reduce
from ._record import Call, Deps, all_zero, any_zero, conservative, define, on_operand


def _sum(call: Call) -> list[Deps]:
    if not _plain(call):
        return conservative(call)
    window, strides, padding = (call.params[k] for k in ("window_dimensions", "window_strides", "padding"))
    return on_operand(call, lambda dep: _compact(_views(dep, window, strides, padding), len(window), call))


def _plain(call: Call) -> bool:
    """No dilation and nothing cut off."""
    dilations = (*call.params.get("base_dilation", ()), *call.params.get("window_dilation", ()))
    return all(d == 1 for d in dilations) and all(n >= 0 for pair in call.params["padding"] for n in pair)


def _views(dep: Dep, window: Sequence[int], strides: Sequence[int], padding: Sequence[tuple[int, int]]) -> Dep:
    """The dependence of every element of every window: window axes are appended."""
    padded = dep.relocate(lambda m: np.pad(m, padding, constant_values=-1))
    step = tuple(slice(None, None, s) for s in strides)
    return padded.relocate(lambda m: np.lib.stride_tricks.sliding_window_view(m, window)[step])


def _compact(views: Dep, rank: int, call: Call) -> Dep:
    """A sum over the trailing axes where at most one entry of each window is not blank stays fine."""
    flat = [m.reshape(*m.shape[:rank], -1) for m in views.maps]
    if all(((m >= 0).sum(-1) <= 1).all() for m in flat):
        return views.relocate(lambda m: m.reshape(*m.shape[:rank], -1).max(-1), call.cause)
    return reduce(views, range(rank, 2 * rank), call.cause)


def _gather(call: Call) -> list[Deps]:
    """From each window, the element where another array is largest: any of the window."""
    if call.deps[1]:
        call.problem("chooses by the value of a gradient")
        return conservative(call)
    return _sum(call)


def _scatter(call: Call) -> list[Deps]:
    """One value per window, added to any element of the window: an element takes from the windows that hold it."""
    if call.deps[1]:
        call.problem("chooses by the value of a gradient")
        return conservative(call)
    if not _plain(call):
        return conservative(call)
    window, strides, padding = (call.params[k] for k in ("window_dimensions", "window_strides", "padding"))
    shape = call.out_shape()

    def f(dep: Dep) -> Dep:
        # Windows at their first elements, with room for a whole window before and the rest of the array after.
        before = [n - 1 for n in window]
        total = [n + low + high for n, (low, high) in zip(shape, padding, strict=True)]

        def spread(m: np.ndarray) -> np.ndarray:
            wide = np.full([n + b for n, b in zip(total, before, strict=True)], -1, np.int32)
            at = tuple(slice(b, b + s * n, s) for b, s, n in zip(before, strides, m.shape, strict=True))
            wide[at] = m
            return wide

        views = _views(dep.relocate(spread), window, (1,) * len(window), ((0, 0),) * len(window))
        inner = tuple(slice(low, low + n) for n, (low, _) in zip(shape, padding, strict=True))
        return _compact(views.relocate(lambda m: m[inner]), len(window), call)

    return on_operand(call, f)


define("reduce_window_sum", pattern=_sum, zero=all_zero)
define("select_and_gather_add", pattern=_gather, zero=any_zero(0))
define("select_and_scatter_add", pattern=_scatter, zero=any_zero(0))
