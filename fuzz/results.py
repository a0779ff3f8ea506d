"""What long runs have found, kept in a file that docs/trust.md shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Run(NamedTuple):
    """The counts of one run."""

    seed: int
    models: int
    runs: int
    failures: int
    refusals: int
    primitives: int
    cells: int


def keep(run: Run, path: Path) -> None:
    """Add a run to a file of results; one of the same seed is replaced."""
    before = json.loads(path.read_text(encoding="utf-8"))["each"] if path.exists() else []
    each = sorted([r for r in before if r["seed"] != run.seed] + [run._asdict()], key=lambda r: r["seed"])
    path.write_text(json.dumps(summary(each), indent=2) + "\n", encoding="utf-8")


def summary(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over runs; of primitives and cells, which runs share, the most that one of them covered."""
    sums = {name: sum(r[name] for r in each) for name in ("models", "runs", "failures", "refusals")}
    most = {f"{name}_of_the_widest_run": max(r[name] for r in each) for name in ("primitives", "cells")}
    return {**sums, **most, "each": each}
