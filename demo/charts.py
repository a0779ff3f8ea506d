"""Curves as SVG that takes its colours from the page, so that it follows light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 72, 84, 12, 44
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-3.5-3.5h7v7h-7z", "M0-4.5L4.5 3.5H-4.5z", "M0-5L5 0L0 5L-5 0z")


def curves(series: Mapping[str, Sequence[float]], along: str, up: str, label: str) -> str:
    """One curve per name over 1, 2, …; values are shares of one, drawn from the tenth below the least up to 100 %.

    Each curve has a class `m0`, `m1`, … for its colour, a mark of its own, and its name at its end.
    """
    count = max(len(values) for values in series.values())
    low = min(0.9, int(10 * min(v for values in series.values() for v in values)) / 10)
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(k: int) -> float:
        return LEFT + (right - LEFT) * (k / max(count - 1, 1))

    def y(value: float) -> float:
        return floor - (floor - TOP) * (value - low) / (1 - low)

    parts = [*_grid(low, y, right), *_ticks(count, x, floor)]
    ends = _apart({name: y(values[-1]) for name, values in series.items()}, 16)
    for k, (name, values) in enumerate(series.items()):
        points = [(x(i), y(v)) for i, v in enumerate(values)]
        line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        marks = "".join(f'<path transform="translate({a:.1f} {b:.1f})" d="{MARKERS[k % 4]}"/>' for a, b in points)
        text = f'<text x="{x(len(values) - 1) + 12:.1f}" y="{ends[name] + 4:.1f}">{escape(name)}</text>'
        parts.append(f'<g class="curve m{k}"><path class="line" d="{line}"/>{marks}{text}</g>')
    middle = (LEFT + right) / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(along)}</text>')
    parts.append(
        f'<text class="axis" transform="translate(13 {(TOP + floor) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}"'
    return f'<svg class="chart" {box}>{"".join(parts)}</svg>'


def _grid(low: float, y: Callable[[float], float], right: float) -> list[str]:
    step = 0.05 if low >= 0.7 else 0.1 if low >= 0.5 else 0.2
    first = round(1 / step) - int((1 - low) / step + 1e-9)
    values = [i * step for i in range(first, round(1 / step) + 1)]
    return [
        f'<path class="grid" d="M{LEFT} {y(v):.1f}H{right}"/>'
        f'<text class="axis" x="{LEFT - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{100 * v:.0f} %</text>'
        for v in values
    ]


def _ticks(count: int, x: Callable[[int], float], floor: float) -> list[str]:
    step = max(1, -(-count // 8))
    return [
        f'<text class="axis" x="{x(k):.1f}" y="{floor + 18}" text-anchor="middle">{k + 1}</text>'
        for k in range(0, count, step)
    ]


def _apart(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """The same order from top to bottom, none closer to the next than `gap`, moved as little as that takes."""
    names = sorted(places, key=lambda n: places[n])
    found = [places[n] for n in names]
    for k in range(1, len(found)):
        found[k] = max(found[k], found[k - 1] + gap)
    over = max(0.0, found[-1] - (HEIGHT - BOTTOM)) if found else 0.0
    for k in reversed(range(len(found))):
        found[k] = min(found[k], found[k + 1] - gap) if k + 1 < len(found) else found[k] - over
    return dict(zip(names, found, strict=True))
