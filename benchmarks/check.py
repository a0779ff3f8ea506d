"""Whether Etrax lost ground since the stored run: time and memory, as ratios to BPTT or to a learner by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.harness import BY_HAND, REFERENCE, Case, Row, base_of, ratios

ALLOWED = 1.2


class Loss(NamedTuple):
    """What a ratio was and is."""

    what: str
    before: float
    now: float
    base: str = REFERENCE

    def __str__(self) -> str:
        grown = f"{self.now / self.before - 1:+.0%}"
        return f"{self.what}: {self.before:.3f} × {self.base} before, {self.now:.3f} now ({grown})"


def without_peers(cases: Sequence[Case], names: set[str]) -> list[Case]:
    """The cases of the stored run that have a reference, with nobody in them but it and Etrax; no growth."""
    found = []
    for c in cases:
        rivals = tuple(r for r in c.rivals if r.name in (REFERENCE, BY_HAND) or r.name.startswith("etrax"))
        if c.name in names and not c.sweep and any(r.name in (REFERENCE, BY_HAND) for r in rivals):
            found.append(c._replace(rivals=rivals))
    return found


def standing(rows: Sequence[Row]) -> dict[str, float]:
    """Ratio of every row of Etrax to BPTT, or to a learner by hand, in time and in memory."""
    found = {}
    for row in rows:
        base = base_of([r for r in rows if r.case == row.case])
        if base is not None and base.seconds and row.seconds and row.rival.startswith("etrax"):
            found[f"{row.case}, {row.rival}, time"] = median(ratios(row, base))
            found[f"{row.case}, {row.rival}, memory"] = row.working / base.working
    return found


def losses(before: Sequence[Row], now: Sequence[Row]) -> list[Loss]:
    """Ratios that grew by more than a fifth."""
    old, new = standing(before), standing(now)
    by_hand = {row.case for row in before if row.rival == BY_HAND}
    return [
        Loss(k, old[k], new[k], BY_HAND if k.split(", ")[0] in by_hand else REFERENCE)
        for k in old
        if k in new and new[k] > ALLOWED * old[k]
    ]


def confirmed(case: Case, before: Sequence[Row], run: Callable[[Case], list[Row]]) -> tuple[list[Row], list[Loss]]:
    """A case measured, and measured again if it lost: a machine may stumble once."""
    rows = run(case)
    first = losses(before, rows)
    if not first:
        return rows, []
    again = run(case)
    seen = {loss.what for loss in first}
    return again, [loss for loss in losses(before, again) if loss.what in seen]
