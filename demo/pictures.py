"""What the network does with one word, by `etrax.viz`: spikes, the readout, traces of some weights."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

import etrax

from .data import Digits
from .runs import Method, Settings, first_batch


def one_word(method: Method, params: Any, settings: Settings, digits: Digits) -> tuple[str, str, int]:
    """A PNG for a light and one for a dark page, as `data:` addresses, and the digit that is heard.

    It is the longest of the first that were held out.
    """
    import matplotlib.style

    x, y, mask = first_batch(settings, digits.test)
    last = np.argmax(mask, axis=0)
    word = int(np.argmax(last))
    digit = int(y[0, word])
    recording = etrax.viz.record(
        method.learner, x[: last[word] + 1], params=params, parameters=["w_in"], states=["v", "s"], sample=word
    )
    drawn = []
    for style in ("default", "dark_background"):
        with matplotlib.style.context(style):
            drawn.append(_drawn(recording, word, digit, dark=style != "default"))
    return drawn[0], drawn[1], digit


def _drawn(recording: Any, word: int, digit: int, dark: bool) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained", facecolor="#1b1f23" if dark else None)
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
