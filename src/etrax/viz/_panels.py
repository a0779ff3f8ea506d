"""Figures and axes, without pyplot; colours that everyone can tell apart, text that stays legible when small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import MOST, check_whole, short
from .._errors import ArgumentError, ArgumentTypeError, MissingPackageError
from .._install import install_advice
from ..compiler.ir import Path, format_path, is_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, dark enough on white; the markers tell lines apart without them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STEPS = "time (steps)"
WIDTH, ROW = 3.6, 1.7


class VizError(MissingPackageError):
    """matplotlib is not installed."""


def as_paths(what: str, asked: Sequence[Path], paths: Iterable[Path]) -> list[Path]:
    """What is asked for as paths: each a tuple of keys, one key, or the name of one of `paths` as reports write it."""
    listed = isinstance(asked, Sequence) and not isinstance(asked, str | bytes)
    if not listed or not asked or not all(_is_path(p) for p in asked):
        raise ArgumentTypeError(
            f"`{what}` is {short(asked)}; expected a list of paths or names, such as `[('rnn', 'w')]` or `['rnn.w']`."
        )
    paths = list(paths)
    return [next((k for k in paths if is_at(k, p)), p if isinstance(p, tuple) else (p,)) for p in asked]


def _is_path(p: object) -> bool:
    return isinstance(p, str | int) or (isinstance(p, tuple) and all(isinstance(key, str | int) for key in p))


def check_recording(recording: object) -> None:
    if not isinstance(getattr(recording, "traces", None), dict):
        raise ArgumentTypeError(f"`recording` is {short(recording)}; pass what `etrax.viz.record` returns.")


def panels(count: int, ax: Axes | None, height: float = ROW) -> tuple[Figure, list[Axes]]:
    """Axes below each other that share their time, or `ax` alone."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise VizError(
            f"`etrax.viz` draws with matplotlib, which is not installed: {install_advice('viz')}."
        ) from error
    if ax is not None:
        if not hasattr(ax, "get_figure") or isinstance(ax, type):
            raise ArgumentTypeError(f"`ax` is {short(ax)}; expected matplotlib axes, or None.")
        if count != 1:
            raise ArgumentError(f"`ax` holds one picture, but {count} are to be drawn: choose one, or leave out `ax`.")
        return ax.get_figure(root=True), [ax]  # type: ignore[return-value]

    class Picture(Figure):
        """A figure that a notebook shows, whether or not pyplot was ever imported."""

        def _repr_png_(self) -> bytes:
            data = BytesIO()
            self.savefig(data, format="png", dpi=100)
            return data.getvalue()

    figure = Picture(figsize=(WIDTH, max(height * count + 0.5, 2.4)), layout="constrained")
    return figure, list(figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0])


def whole_steps(ax: Axes, axis: str = "x") -> None:
    """Ticks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    getattr(ax, f"{axis}axis").set_major_locator(MaxNLocator(integer=True, nbins=5, min_n_ticks=2))


def name(path: Path, root: str) -> str:
    """A path as a label, short enough for a small picture."""
    text = format_path(path, root)[1:-1]
    return text if len(text) <= 24 else f"{text[:10]}…{text[-13:]}"


def few(count: int, most: int) -> list[int]:
    """At most so many of the numbers below `count`, evenly apart.

    >>> few(3, 5), few(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    if count <= most:
        return list(range(count))
    if most == 1:
        return [0]
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def units_of(array: np.ndarray, sample: int | None) -> np.ndarray:
    """(T, …) → (T, units), at one index of the batch if there is one to choose."""
    if array.ndim == 0 or not array.size:
        raise ArgumentError(f"there is nothing to draw: the array has shape {list(array.shape)} (time first).")
    if sample is not None:
        check_whole("sample", sample, "samples", least=-MOST)
        if array.ndim < 3:
            raise ArgumentError(
                f"`sample` chooses from a batch, but the array has shape {list(array.shape)} (time first) and no batch "
                "axis: leave it out."
            )
        if not -array.shape[1] <= sample < array.shape[1]:
            raise ArgumentError(f"`sample` is {sample}, but there are {array.shape[1]} samples.")
        array = array[:, sample]
    return array.reshape(len(array), -1)
