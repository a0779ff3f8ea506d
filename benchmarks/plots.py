"""Time and memory against each size, on logarithmic axes, every line labelled at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import REFERENCE, Row

from etrax._install import install_command

SWEEPS = {
    "T": "steps T", "H": "units H", "B": "batch B", "K": "window K", "synapses": "synapses",
}  # fmt: skip
COLOURS = {"BPTT": "#444444", "BPTT checkpointed": "#999999", "d_rtrl": "#1667a8", "pp_prop": "#c2571a"}
MIB = 2**20


def lines(rows: Sequence[Row], sweep: str) -> dict[str, list[tuple[float, float, float]]]:
    """Per rival (size, milliseconds per step, MiB); K is a rival's own, and the others are level lines there."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    inside = [r for r in rows if r.sweep == sweep and r.seconds]
    windows = sorted({int(r.rival.split("K=")[1]) for r in inside if "K=" in r.rival}) if sweep == "K" else []
    for row in inside:
        name, _, window = row.rival.removeprefix("etrax ").partition(" K=")
        time, memory = 1e3 * median(row.seconds) / row.steps, row.working / MIB
        at = [row.sizes[sweep]] if sweep != "K" else [int(window)] if window else windows
        found.setdefault(name, []).extend((x, time, memory) for x in at)
    return {name: sorted(points) for name, points in found.items()}


def _short(n: float) -> str:
    """A size as a tick: 65,536 is 64k."""
    for unit, name in ((2**20, "M"), (2**10, "k")):
        if n >= unit:
            return f"{n / unit:.0f}{name}"
    return f"{n:.0f}"


def _label(axis: Any, ends: dict[str, tuple[float, float]]) -> None:
    """Names at the right ends of lines, moved apart where they would meet."""
    low, high = axis.get_ylim()
    span = (high / low) ** 0.075
    last = 0.0
    for name, (x, y) in sorted(ends.items(), key=lambda item: item[1][1]):
        place = max(y, last * span)
        axis.annotate(
            name, (x, y), xytext=(x, place), textcoords="data", color=COLOURS[name], fontsize=8, va="center",
            annotation_clip=False,
        )  # fmt: skip
        last = place


def draw(rows: Sequence[Row], path: Path) -> None:
    """One column a size, time above, memory below."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"the plots need matplotlib: {install_command('bench')}") from error
    figure, axes = pyplot.subplots(2, len(SWEEPS), figsize=(4 * len(SWEEPS), 7), layout="constrained", squeeze=False)
    for column, (sweep, text) in enumerate(SWEEPS.items()):
        found = lines(rows, sweep)
        sizes = next((r.sizes for r in rows if r.sweep == sweep), {})
        fixed = ", ".join(f"{k} {v:,}" for k, v in sizes.items() if k not in (sweep, "N"))
        for axis, place, unit in ((axes[0][column], 1, "ms a step"), (axes[1][column], 2, "MiB of working memory")):
            ends = {}
            for name, points in found.items():
                xs, ys = [p[0] for p in points], [p[place] for p in points]
                style = "--" if name.startswith(REFERENCE) else "-"
                axis.plot(xs, ys, style, marker="o", markersize=4, color=COLOURS[name])
                ends[name] = (xs[-1] * 1.12, ys[-1])
            axis.set(xscale="log", yscale="log", xlabel=text, ylabel=unit)
            ticks = sorted({x for points in found.values() for x, *_ in points})
            axis.set_xticks(ticks, [_short(x) for x in ticks])
            axis.set_xticks([], minor=True)
            axis.margins(x=0.3, y=0.12)
            axis.grid(alpha=0.25)
            if ends:
                _label(axis, ends)
        axes[0][column].set_title(f"{'sparse LIF' if sweep == 'synapses' else 'GRU'}: {fixed}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
