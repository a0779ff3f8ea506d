"""Rules as points: bytes of the trace along, cosine with BPTT up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .._arguments import format_bytes

WIDTH, HEIGHT, LEFT, RIGHT, FLOOR = 640, 260, 60, 160, 210


def drawn(points: Sequence[tuple[str, int, float]]) -> str:
    """An SVG of (rule, bytes, cosine); no trace at all stands at the left edge, bytes grow by powers of ten.

    >>> drawn([("tbptt()", 0, 0.9), ("d_rtrl()", 4096, 1.0)]).count("<circle")
    2
    """
    points = [p for p in points if math.isfinite(p[2])]
    if not points:
        return ""
    sizes = [n for _, n, _ in points if n] or [1]
    low, high = math.log10(min(sizes)) - 0.5, math.log10(max(sizes))
    least = min(0.9, math.floor(10 * min(c for *_, c in points)) / 10)

    def x(n: int) -> float:
        share = (math.log10(n) - low) / max(high - low, 1e-9) if n else 0.0
        return LEFT + (WIDTH - RIGHT - LEFT) * share

    def y(cosine: float) -> float:
        return FLOOR - (FLOOR - 20) * (cosine - least) / (1 - least)

    parts, taken = [], []
    for name, n, cosine in points:
        height = y(cosine) + 4
        while any(abs(height - h) < 14 and abs(x(n) - a) < 150 for a, h in taken):
            height += 14  # names stand below each other
        taken.append((x(n), height))
        label = escape(f"{name}, {format_bytes(n)}")
        parts.append(
            f'<circle cx="{x(n):.1f}" cy="{y(cosine):.1f}" r="5" fill="#0a9396"/>'
            f'<text x="{x(n) + 10:.1f}" y="{height:.1f}">{label}</text>'
        )
    grid = "".join(
        f'<path d="M{LEFT} {y(v):.1f}H{WIDTH}" stroke="#8886"/><text x="8" y="{y(v) + 4:.1f}">{v:.2f}</text>'
        for v in (least, (1 + least) / 2, 1.0)
    )
    axis = f'<text x="{LEFT}" y="{HEIGHT - 14}">bytes of the trace → (cosine with BPTT ↑)</text>'
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Cosine with BPTT over bytes of the trace"'
    return f"<svg {box}>{grid}{''.join(parts)}{axis}</svg>"
