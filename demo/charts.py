"""Curves as SVG that takes its colours from the page, so that it follows light and dark.

Each is drawn twice, for a wide and for a narrow page; the style sheet shows one of them, so that letters keep
their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 72, 96, 12, 44
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-3.5-3.5h7v7h-7z", "M0-4.5L4.5 3.5H-4.5z", "M0-5L5 0L0 5L-5 0z")


@dataclass(frozen=True)
class Frame:
    """A picture's size, and where its curves are."""

    name: str
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.width - RIGHT

    @property
    def floor(self) -> int:
        return self.height - BOTTOM


LABEL = "Memory over the length of the stream: BPTT grows with it, d_rtrl does not"
FRAMES = (Frame("wide", 1080, 360), Frame("narrow", 400, 280))


def curves(series: Mapping[str, Sequence[float]], along: str, up: str, label: str) -> str:
    """One curve per name over 1, 2, …; values are shares of one, drawn from the tenth below the least up to 100 %.

    Each curve has a class `m0`, `m1`, … for its colour, a mark of its own, and its name at its end.
    """
    count = max(len(values) for values in series.values())
    low = min(0.9, int(10 * min(v for values in series.values() for v in values)) / 10)
    step = 0.05 if low >= 0.7 else 0.1 if low >= 0.5 else 0.2
    first = round(1 / step) - int((1 - low) / step + 1e-9)
    levels = {i * step: f"{100 * i * step:.0f} %" for i in range(first, round(1 / step) + 1)}
    drawn = []
    for frame in FRAMES:

        def x(k: float, frame: Frame = frame) -> float:
            return LEFT + (frame.right - LEFT) * (k / max(count - 1, 1))

        def y(value: float, frame: Frame = frame) -> float:
            return frame.floor - (frame.floor - TOP) * (value - low) / (1 - low)

        ticks = {x(k): f"{k + 1}" for k in range(0, count, max(1, -(-count // 8)))}
        lines = [
            _curve(k, name, [(x(i), y(v)) for i, v in enumerate(values)])
            for k, (name, values) in enumerate(series.items())
        ]
        names = _names({n: (k, y(v[-1])) for k, (n, v) in enumerate(series.items())}, frame)
        drawn.append(_whole(frame, [*_grid(levels, y, frame), *_ticks(ticks, frame), *lines, names], along, up, label))
    return "".join(drawn)


def sizes(series: Mapping[str, Sequence[float]], lengths: Sequence[int], label: str) -> str:
    """Bytes over the length of a stream, both by powers of ten."""
    least = math.floor(math.log10(min(min(values) for values in series.values())))
    most = math.ceil(math.log10(max(max(values) for values in series.values())))
    levels = {10.0**power: f"{10**power / 1e6:g} MB" for power in range(least, most + 1)}
    span = math.log10(lengths[-1] / lengths[0])
    colours = {name: 3 if name == "BPTT" else 0 for name in series}
    drawn = []
    for frame in FRAMES:

        def x(steps: float, frame: Frame = frame) -> float:
            return LEFT + (frame.right - LEFT) * math.log10(steps / lengths[0]) / span

        def y(n: float, frame: Frame = frame) -> float:
            return frame.floor - (frame.floor - TOP) * (math.log10(n) - least) / max(most - least, 1)

        lines = [
            _curve(colours[name], name, [(x(n), y(v)) for n, v in zip(lengths, values, strict=True)])
            for name, values in series.items()
        ]
        names = _names({n: (colours[n], y(v[-1])) for n, v in series.items()}, frame)
        ticks = {x(n): f"{n:,}" for n in lengths}
        parts = [*_grid(levels, y, frame), *_ticks(ticks, frame), *lines, names]
        drawn.append(_whole(frame, parts, "steps of the stream", "memory", label))
    return "".join(drawn)


STYLE = """text { font: 13px system-ui, sans-serif; } .axis { fill: #59616b; } .grid { stroke: #d9dce0; }
.m0 { --c: #0072b2; } .m3 { --c: #1d2126; }
.curve path, .curve text { fill: var(--c); } .curve text { font-weight: 600; }
.curve .line { fill: none; stroke: var(--c); stroke-width: 2; } .m3 .line { stroke-dasharray: 6 4; }
@media (prefers-color-scheme: dark) {
  .m0 { --c: #56b4e9; } .m3 { --c: #e8eaed; } .axis { fill: #a5adb7; } .grid { stroke: #363c43; }
}"""


def alone(chart: str, frame: int = 0) -> str:
    """The wide drawing of a chart, or with 1 the narrow one, as a file of its own."""
    drawing = "<svg " + chart.split("</svg>")[frame].partition("<svg ")[2]
    head, _, rest = drawing.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).partition(">")
    return f"{head}><style>{STYLE}</style>{rest}</svg>\n"


def _curve(colour: int, name: str, points: Sequence[tuple[float, float]]) -> str:
    line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    marks = "".join(f'<path transform="translate({a:.1f} {b:.1f})" d="{MARKERS[colour % 4]}"/>' for a, b in points)
    return f'<g class="curve m{colour}"><title>{escape(name)}</title><path class="line" d="{line}"/>{marks}</g>'


def _names(ends: Mapping[str, tuple[int, float]], frame: Frame) -> str:
    """At the ends of the curves, none over another."""
    places = _apart({name: height for name, (_, height) in ends.items()}, 16, frame.floor)
    return "".join(
        f'<g class="curve m{colour}"><text x="{frame.right + 12}" y="{places[name] + 4:.1f}">{escape(name)}</text></g>'
        for name, (colour, _) in ends.items()
    )


def _grid(levels: Mapping[float, str], y: Callable[[float], float], frame: Frame) -> list[str]:
    return [
        f'<path class="grid" d="M{LEFT} {y(v):.1f}H{frame.right}"/>'
        f'<text class="axis" x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{said}</text>'
        for v, said in levels.items()
    ]


def _ticks(places: Mapping[float, str], frame: Frame) -> list[str]:
    return [
        f'<text class="axis" x="{x:.1f}" y="{frame.floor + 18}" text-anchor="middle">{said}</text>'
        for x, said in places.items()
    ]


def _whole(frame: Frame, parts: Sequence[str], along: str, up: str, label: str) -> str:
    middle, half = (LEFT + frame.right) / 2, (TOP + frame.floor) / 2
    axes = (
        f'<text class="axis" x="{middle:.0f}" y="{frame.height - 6}" text-anchor="middle">{escape(along)}</text>'
        f'<text class="axis" transform="translate(13 {half:.0f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>'
    )
    box = f'viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="chart {frame.name}" {box}>{"".join(parts)}{axes}</svg>'


def _apart(places: Mapping[str, float], gap: float, floor: float) -> dict[str, float]:
    """The same order from top to bottom, none closer to the next than `gap`, moved as little as that takes."""
    names = sorted(places, key=lambda n: places[n])
    found = [places[n] for n in names]
    for k in range(1, len(found)):
        found[k] = max(found[k], found[k - 1] + gap)
    over = max(0.0, found[-1] - floor) if found else 0.0
    for k in reversed(range(len(found))):
        found[k] = min(found[k], found[k + 1] - gap) if k + 1 < len(found) else found[k] - over
    return dict(zip(names, found, strict=True))
