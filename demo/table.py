"""The results, row by row, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from .measure import LENGTHS, Cosine


@dataclass(frozen=True)
class Row:
    """One method: held-out accuracy after each epoch, seconds of training, bytes by length of sequence, cosines."""

    name: str
    accuracies: tuple[float, ...]
    seconds: float
    bytes: tuple[int, ...]
    before: Cosine
    after: Cosine

    @property
    def accuracy(self) -> float:
        """After the last epoch."""
        return self.accuracies[-1]


def heads(steps: int) -> list[str]:
    lengths = [f"memory, {steps * k} steps" for k in LENGTHS]
    return ["method", "accuracy", "time", *lengths, "cosine before", "cosine after"]


def cells(row: Row) -> list[str]:
    return [
        row.name,
        f"{100 * row.accuracy:.1f} %",
        f"{row.seconds:.0f} s",
        *(f"{n / 2**20:.1f} MiB" for n in row.bytes),
        *(f"{c.mean:.3f} ({c.least:.3f})" for c in (row.before, row.after)),
    ]


def text(rows: list[Row], steps: int) -> str:
    """For a terminal: the first column to the left, the others to the right."""
    lines = [heads(steps), *(cells(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
