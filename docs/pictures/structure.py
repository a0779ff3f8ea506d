"""Draws what each structure stores, for docs/structure.md: python docs/pictures/structure.py [folder]"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

STORED, GONE, SMALL = "#4c78a8", "#e4e4e4", "#f58518"
INPUTS, OUTPUTS = 5, 6


def cells(ax: Axes, x: float, y: float, rows: int, columns: int, colour: str | list[str], samples: int = 2) -> float:
    """An array (samples, rows, columns) as sheets of cells; `colour` may be one for each column. Returns its width."""
    for b in reversed(range(samples)):
        for i in range(rows):
            for j in range(columns):
                fill = colour if isinstance(colour, str) else colour[j]
                at = (x + j + 0.35 * b, y - i + 0.35 * b)
                style = {"facecolor": fill, "edgecolor": "white", "linewidth": 0.5, "alpha": 1 - 0.5 * b}
                ax.add_patch(Rectangle(at, 0.92, 0.92, **style))
    return columns + 0.35 * (samples - 1)


def label(ax: Axes, x: float, y: float, text: str, size: int = 9, **style: object) -> None:
    ax.text(x, y, text, fontsize=size, va="top", ha="left", color="#333333", **style)


def arrow(ax: Axes, x: float, y: float) -> None:
    ax.annotate("", (x + 1.6, y), (x, y), arrowprops={"arrowstyle": "->", "color": "#777777"})


def panel(title: str, width: float, height: float = 9.2) -> tuple[plt.Figure, Axes]:
    figure, ax = plt.subplots(figsize=(0.3 * width, 0.3 * height))
    ax.set_xlim(-0.5, width)
    ax.set_ylim(-6.4, height - 6.4)
    ax.set_aspect("equal")
    ax.axis("off")
    label(ax, 0, height - 6.6, title, 10, weight="bold")
    return figure, ax


def whole() -> plt.Figure:
    figure, ax = panel("whole: B · I · O numbers for each of S states", 22)
    x = 0.0
    for name in ("v", "a"):
        width = cells(ax, x, 0, INPUTS, OUTPUTS, STORED)
        label(ax, x, -4.3, f"ε of {name}: inputs down, outputs across,\none sheet per sample")
        x += width + 5
    return figure


def factored() -> plt.Figure:
    figure, ax = panel("factored: one column stands for all outputs", 26)
    x = cells(ax, 0, 0, INPUTS, OUTPUTS, [STORED] + [GONE] * (OUTPUTS - 1)) + 1
    label(ax, 0, -4.3, "D and F are equal along the outputs,\nso all columns of ε are equal")
    x += 2
    arrow(ax, x, -1.5)
    cells(ax, x + 2.6, 0, INPUTS, 1, STORED)
    label(ax, x + 2.6, -4.3, "x̂ ← d x̂ + f u\nB · I numbers")
    return figure


def time_invariant() -> plt.Figure:
    figure, ax = panel("time-invariant: nothing is recorded in the loop", 32)
    x = cells(ax, 0, 0, INPUTS, OUTPUTS, STORED) + 1
    label(ax, 0, -4.3, "ε as it is (B · I · O)")
    x += 1
    cells(ax, x, 0, 5, OUTPUTS, SMALL, samples=1)
    label(ax, x, -4.3, "D, D², … D^K by powers of the parameters:\nno axis of samples, no axis of data")
    return figure


def fan_out() -> plt.Figure:
    figure, ax = panel("fan-out: one column for each pair (output, position)", 30)
    x = cells(ax, 0, 0, INPUTS, 2, ["#4c78a8", "#72b7b2"]) + 1
    label(ax, 0, -4.3, "y: two outputs,\neach drives three\npositions")
    arrow(ax, x, -1.5)
    cells(ax, x + 2.6, 0, INPUTS, 6, ["#4c78a8"] * 3 + ["#72b7b2"] * 3)
    label(ax, x + 2.6, -4.3, "ε over pairs: the same op with\nits weights repeated, B · I · pairs · S")
    return figure


def one_hop() -> plt.Figure:
    figure, ax = panel("one hop: the readout's past, kept at the layer below", 34)
    x = cells(ax, 0, 0, INPUTS, OUTPUTS, STORED) + 1.5
    label(ax, 0, -4.3, "ε of v")
    x += cells(ax, x, 0, INPUTS, OUTPUTS, SMALL) + 1.5
    label(ax, x - OUTPUTS - 2, -4.3, "ε of r̃' = κ r̃ + z: one state more\nat each position of the layer")
    label(ax, x, 0.9, "the readout r = r̃ V has none:\ncredit through it is (∂L/∂r Vᵀ) · ε of r̃")
    return figure


def momentary() -> plt.Figure:
    figure, ax = panel("momentary: three arrays of an LSTM, not eight", 44)
    x = 0.0
    for name in ("input gate", "forget gate", "candidate", "output gate"):
        last = name == "output gate"
        width = cells(ax, x, 0, INPUTS, 4, GONE if last else STORED)
        label(ax, x, -4.3, f"{name}\nε of c" + (": zero" if last else ""))
        x += width + 1.6
    cells(ax, x, 0, INPUTS, 1, SMALL)
    cells(ax, x + 2.4, 0, 1, 4, SMALL)
    cells(ax, x + 2.4, -2.2, 1, 4, SMALL)
    label(ax, x, -4.3, "the last step: data u, ∂h/∂c, ∂h/∂y\nε of h = ∂h/∂c · ε of c + u ⊗ ∂h/∂y")
    return figure


def shared() -> plt.Figure:
    figure, ax = panel("shared: real and imaginary matrix on one pair of traces", 34)
    x = 0.0
    for name in ("Re h", "Im h"):
        x += cells(ax, x, 0, INPUTS, 4, STORED) + 1.2
        label(ax, x - 5.6, -4.3, f"B_re on {name}")
    for name in ("Re h: − B_re on Im h", "Im h: B_re on Re h"):
        x += cells(ax, x, 0, INPUTS, 4, GONE) + 3.4
        label(ax, x - 7.8, -4.3, f"B_im on\n{name}")
    return figure


def shift() -> plt.Figure:
    figure, ax = panel("many states: a delay line moves by reading at another place", 30)
    x = 0.0
    for s in range(4):
        cells(ax, x, 0, INPUTS, 3, STORED, samples=1)
        label(ax, x, -4.3, f"slot {s + 1}")
        if s < 3:
            arrow(ax, x + 3.3, -1.5)
        x += 5.4
    label(ax, 0, -5.3, "S links, not S² products: one array (S, B, I, O)")
    return figure


PICTURES = {f.__name__: f for f in (whole, factored, time_invariant, fan_out, one_hop, momentary, shared, shift)}


def draw(folder: Path, kind: str = "svg") -> None:
    """All pictures; the same bytes each time for one version of matplotlib."""
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "etrax", "font.family": "sans-serif"}):
        for name, picture in PICTURES.items():
            figure = picture()
            made = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 90}
            figure.savefig(folder / f"structure_{name}.{kind}", bbox_inches="tight", **made)
            plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, *sys.argv[2:])
