"""Whether Etrax lost ground against `jax.grad` since the stored run: time and memory, as ratios to BPTT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.harness import REFERENCE, Case, Row, ratios

ALLOWED = 1.2


class Loss(NamedTuple):
    """What a ratio was and is."""

    what: str
    before: float
    now: float

    def __str__(self) -> str:
        return f"{self.what}: {self.before:.3f} × BPTT before, {self.now:.3f} now ({self.now / self.before - 1:+.0%})"


def without_peers(cases: Sequence[Case], names: set[str]) -> list[Case]:
    """The cases of the stored run that have a reference, with nobody in them but it and Etrax; no growth."""
    found = []
    for c in cases:
        rivals = tuple(r for r in c.rivals if r.name == REFERENCE or r.name.startswith("etrax"))
        if c.name in names and not c.sweep and any(r.name == REFERENCE for r in rivals):
            found.append(c._replace(rivals=rivals))
    return found


def standing(rows: Sequence[Row]) -> dict[str, float]:
    """Ratio to BPTT of every row of Etrax, in time and in memory."""
    found = {}
    for row in rows:
        base = next((r for r in rows if (r.case, r.rival) == (row.case, REFERENCE)), None)
        if base is not None and base.seconds and row.seconds and row.rival.startswith("etrax"):
            found[f"{row.case}, {row.rival}, time"] = median(ratios(row, base))
            found[f"{row.case}, {row.rival}, memory"] = row.working / base.working
    return found


def losses(before: Sequence[Row], now: Sequence[Row]) -> list[Loss]:
    """Ratios that grew by more than a fifth."""
    old, new = standing(before), standing(now)
    return [Loss(k, old[k], new[k]) for k in old if k in new and new[k] > ALLOWED * old[k]]


def confirmed(case: Case, before: Sequence[Row], run: Callable[[Case], list[Row]]) -> tuple[list[Row], list[Loss]]:
    """A case measured, and measured again if it lost: a machine may stumble once."""
    rows = run(case)
    first = losses(before, rows)
    if not first:
        return rows, []
    again = run(case)
    seen = {loss.what for loss in first}
    return again, [loss for loss in losses(before, again) if loss.what in seen]
