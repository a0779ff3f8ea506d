"""Results as text, and to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.bars import Found
from benchmarks.harness import REFERENCE, Row, base_of, ratios
from benchmarks.machine import Machine

HEAD = (
    f"{'':40}{'ms/step':>9}{'× BPTT':>8}{'  spread':13}{'MiB':>9}{'× BPTT':>8}{'RSS MiB':>9}"
    f"{'matmul':>8}{'memory':>8}{'cosine':>8}{'compile s':>11}"
)
MIB = 2**20


def case_lines(rows: Sequence[Row]) -> list[str]:
    """The rows of one case. Times are medians, the spread that of the ratio; then memory, without the arguments that
    all share; the fraction of the machine's peaks; the cosine with the gradient of BPTT.
    """
    base = base_of(rows)
    head = HEAD if base is None else HEAD.replace(f"× {REFERENCE}", f"× {base.rival}"[:7])
    return [f"\n{rows[0].case}", head, *(_line(row, base) for row in rows)]


def _line(row: Row, base: Row | None) -> str:
    if row.error:
        return f"  {row.rival:38}{row.error[:140]}"
    found = ratios(row, base) if base else []
    time = f"{median(found):8.2f}  {f'{min(found):.2f}–{max(found):.2f}':11}" if found else " " * 21
    more = f"{row.working / base.working:8.3f}" if base else " " * 8
    resident = "" if row.resident is None else f"{row.resident / MIB:.1f}"
    cosine = "" if row.cosine is None else f"{row.cosine:.4f}"
    name = row.rival + (f" ({row.steps} steps)" if base and row.steps != base.steps else "")
    return (
        f"  {name:38}{1e3 * row.per_step:9.3f}{time}{row.working / MIB:9.1f}{more}{resident:>9}"
        f"{row.matmul:8.1%}{row.bandwidth:8.1%}{cosine:>8}{row.compile:11.1f}"
    )


def bar_lines(found: Sequence[Found]) -> list[str]:
    """Every bar: what was asked, what was measured, met or not."""
    lines = [f"\n{'bar':60}{'at most':>9}{'measured':>10}"]
    for bar in found:
        value = "" if bar.value is None else f"{bar.value:.3f}"
        met = {True: "met", False: "NOT MET", None: "not measured"}[bar.met]
        lines.append(f"{bar.text:60}{bar.limit:9.3f}{value:>10}   {met}")
    return lines


def save(path: Path, machine: Machine, rows: Sequence[Row], found: Sequence[Found]) -> None:
    """Everything measured, as JSON; numbers to four digits."""
    bars = [{**bar._asdict(), "met": bar.met} for bar in found]
    content = {"machine": machine._asdict(), "bars": bars, "rows": [row._asdict() for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value
