"""What the tables share: results as JSON, and their place on docs/learning.md.

A file of results maps row → column → what that cell gave over its seeds, and is written after every cell.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import etrax
from etrax.meter import Reading

FOLDER = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[2] / "docs" / "learning.md"
END = "<!-- to here -->"

Run: TypeAlias = dict[str, Any]
Stored: TypeAlias = dict[str, dict[str, Run]]


def arguments(doc: str | None, rows: Iterable[str], columns: Iterable[str]) -> argparse.ArgumentParser:
    """The options of every script here."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(rows), choices=list(rows))
    parser.add_argument("--columns", nargs="+", default=list(columns), choices=list(columns))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--file", type=Path)
    parser.add_argument("--page", action="store_true", help="write the table of the stored results, and run nothing")
    return parser


def main(
    name: str, options: argparse.Namespace, one_run: Callable[[str, str, list[int]], Run], text: Callable[[Stored], str]
) -> None:
    """Run what was asked for, each cell stored as it ends; or write the page."""
    file = options.file or FOLDER / f"{name}.json"
    if options.page:
        write_page(name, text(json.loads(file.read_text())))
        return
    warnings.simplefilter("ignore", etrax.RuleWarning)  # what it warns of is what is measured here
    for row in options.rows:
        for column in options.columns:
            began = time.perf_counter()
            run = one_run(row, column, options.seeds)
            run = {"seeds": options.seeds, "seconds": round(time.perf_counter() - began, 1)} | run
            stored: Stored = json.loads(file.read_text()) if file.exists() else {}
            stored.setdefault(row, {})[column] = run
            file.write_text(json.dumps(stored, indent=1) + "\n")
            print(row, column, {key: value for key, value in run.items() if len(str(value)) < 400}, flush=True)


def write_page(name: str, text: str, page: Path = PAGE) -> None:
    """A table into its place on a page."""
    begin = f"<!-- from benchmarks/published/{name}.py -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    if not found:
        raise ValueError(f"{page} has no line {begin!r} for the table.")
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and population deviation, without the zero before the point; of one run, the number alone."""
    parts = [float(np.mean(values))] if len(values) == 1 else [float(np.mean(values)), float(np.std(values))]
    return " ± ".join(f"{part:.{digits}f}".replace("0.", ".", 1) if abs(part) < 1 else f"{part:.{digits}f}"
                      for part in parts)  # fmt: skip


def minutes(runs: Iterable[Run]) -> str:
    return f"{sum(run['seconds'] for run in runs) / 60:.1f}"


def interval(reading: Reading) -> list[float]:
    """The interval of the cosine of all parameters together, to be stored."""
    return [round(end, 4) for end in reading.whole.interval]


def shown_interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}"
