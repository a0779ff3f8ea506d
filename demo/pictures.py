"""What the network does with one word, by `etrax.viz`: spikes, the readout, traces of some weights."""

from __future__ import annotations

import base64
import io
from typing import Any, NamedTuple

import numpy as np

import etrax

from .data import Digits
from .runs import Method, Settings, first_batch

# Inches of the picture in a wide and in a narrow page, so that its letters keep their size.
WIDE, NARROW = (11, 8), (5, 8)


class Drawn(NamedTuple):
    """PNGs as `data:` addresses, for light and dark pages, wide and narrow; and the digit that is heard."""

    light: str
    dark: str
    narrow_light: str
    narrow_dark: str
    digit: int


def one_word(method: Method, params: Any, settings: Settings, digits: Digits) -> Drawn:
    """The longest word of the first that were held out."""
    import matplotlib.style

    x, y, mask = first_batch(settings, digits.test)
    last = np.argmax(mask, axis=0)
    word = int(np.argmax(last))
    digit = int(y[0, word])
    recording = etrax.viz.record(
        method.learner, x[: last[word] + 1], params=params, parameters=["w_in"], states=["v", "s"], sample=word
    )
    drawn = []
    for size in (WIDE, NARROW):
        for style in ("default", "dark_background"):
            with matplotlib.style.context(style):
                drawn.append(_drawn(recording, word, digit, size, dark=style != "default"))
    return Drawn(*drawn, digit)


def _drawn(recording: Any, word: int, digit: int, size: tuple[float, float], dark: bool) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor="#1b1f23" if dark else None)
    axes = figure.subplots(4, 1, sharex=True, height_ratios=(3, 2, 2, 2))
    etrax.viz.raster(recording, state=("z",), sample=word, ax=axes[0])
    axes[0].set_title("spikes z", fontsize=9, loc="left")
    _readout(axes[1], recording.time, recording.outputs[()][:, word], digit)
    for state, ax in zip(("v", "s"), axes[2:], strict=True):
        etrax.viz.traces(recording, states=[state], ax=ax)
    for ax in axes:
        ax.set_facecolor("none")
    if dark:  # lighter spikes; traces that are zero are dark, where matplotlib has such a map
        axes[0].collections[0].set_color("#56b4e9")
        for ax in axes[2:] if "berlin" in matplotlib.colormaps else ():
            ax.images[0].set_cmap("berlin")
    for ax in axes[:-1]:
        ax.set_xlabel("")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _readout(ax: Any, time: np.ndarray, outputs: np.ndarray, digit: int) -> None:
    """A line per class, the right one over the others."""
    ax.plot(time, np.delete(outputs, digit, axis=1), color="#909090", lw=1)
    ax.plot(time, outputs[:, digit], color="#1f8fd0", lw=2)
    ax.set_title(f"readout: the right digit, {digit}, in blue, the others grey", fontsize=9, loc="left")
    ax.tick_params(labelsize=8)
