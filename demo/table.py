"""The results, row by row, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from .data import Digits
from .measure import LENGTHS, Cosine
from .runs import Settings
from .stream import LENGTHS as STREAMS
from .stream import Heard


@dataclass(frozen=True)
class Row:
    """One method: held-out accuracy after each epoch, seconds of the fastest, bytes by length of sequence, cosines."""

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
    return ["method", "accuracy", "cosine before", "cosine after", "an epoch", *lengths]


def cells(row: Row) -> list[str]:
    return [
        row.name,
        f"{100 * row.accuracy:.1f} %",
        *(f"{c.mean:.3f} ({c.least:.3f})" for c in (row.before, row.after)),
        f"{row.seconds:.1f} s",
        *(f"{n / 1e6:.1f} MB" for n in row.bytes),
    ]


def best(rows: list[Row]) -> set[tuple[int, int]]:
    """The cells, by row and column, that are best in their column; cosines with itself do not count for BPTT."""
    columns = [
        [r.accuracy for r in rows],
        *([-1.0 if r.name == "BPTT" else c(r).mean for r in rows] for c in (lambda r: r.before, lambda r: r.after)),
        [-r.seconds for r in rows],
        *([-float(r.bytes[k]) for r in rows] for k in range(len(rows[0].bytes))),
    ]
    return {(i, 1 + k) for k, column in enumerate(columns) for i, v in enumerate(column) if v == max(column)}


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


MARKS = "<!-- from demo/table.py -->", "<!-- end of the demo -->"


def readme(
    rows: list[Row], heard: list[Heard], memory: dict[str, list[int]], digits: Digits, settings: Settings
) -> str:  # fmt: skip
    """What the README says of the demo; `python -m demo --readme FILE` puts it there."""
    one, without = heard[0], next(h for h in heard if h.rule == "tbptt")
    marked = best(rows)
    bold = [[f"**{c}**" if (i, k) in marked else c for k, c in enumerate(cells(row))] for i, row in enumerate(rows)]
    lines = [heads(digits.steps), ["---"] * len(heads(digits.steps)), *bold]
    time = lines[0].index("an epoch")  # of the machine at the moment: times are measured by the benchmarks
    table = "\n".join(f"| {' | '.join(line[:time] + line[time + 1 :])} |" for line in lines)
    stream = (
        f"`make demo` first plays {one.words:,} {digits.name} as one stream of {one.steps:,} steps, heard once and "
        "learned while it plays. Each eighth of the stream is first classified with the weights that the network has "
        "at its beginning, and only then learned from: in the last eighth it recognises "
        f"{100 * one.shares[-1]:.0f} % of the words, and {100 * without.shares[-1]:.0f} % without a trace (`tbptt`). "
        f"A gradient over {STREAMS[-1]:,} steps "
        f"takes {memory['d_rtrl'][-1] / 1e6:.1f} MB with `d_rtrl`, as at any length, and "
        f"{memory['BPTT'][-1] / 1e6:,.0f} MB with BPTT."
    )
    words = (
        f"Then the words come one by one, short and complete, in batches of {settings.batch}. This is what BPTT is "
        f"good at, and where it takes less memory or less time. The network has {settings.neurons} recurrent ALIF "
        f"neurons and is trained for {settings.epochs} epochs. Accuracy is on {digits.test.inputs.shape[1]} held-out "
        "words; the cosine with BPTT's gradient, before and after training, is the mean over the parameters, with the "
        "least in brackets; the best of each column is in bold:"
    )
    small = (
        "This is one split and one seed, with settings chosen on that split: compare the rows with each other, not "
        "with published results."
    )
    return "\n\n".join([MARKS[0], stream, words, table, small, MARKS[1]]) + "\n"


def put(part: str, page: str) -> str:
    """A page with its part from mark to mark replaced."""
    before, start, rest = page.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1] + "\n")
    if not (start and end):
        raise ValueError(f"no part from {MARKS[0]!r} to {MARKS[1]!r} in the page")
    return before + part + after
