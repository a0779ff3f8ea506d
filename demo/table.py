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
    lines = [heads(digits.steps), ["---"] * len(heads(digits.steps)), *(cells(row) for row in rows)]
    time = lines[0].index("an epoch")  # of the machine at the moment: times are measured by the benchmarks
    table = "\n".join(f"| {' | '.join(line[:time] + line[time + 1 :])} |" for line in lines)
    stream = (
        f"`make demo` first plays {one.words:,} {digits.name} as one stream of {one.steps:,} steps, heard once and "
        f"learned while it runs: in the last eighth {100 * one.shares[-1]:.0f} % are named before they are learned "
        f"from, and {100 * without.shares[-1]:.0f} % where no trace is carried (`tbptt`). A gradient over "
        f"{STREAMS[-1]:,} steps of it takes {memory['d_rtrl'][-1] / 1e6:.1f} MB with `d_rtrl`, as at any length, and "
        f"{memory['BPTT'][-1] / 1e6:,.0f} MB with BPTT."
    )
    words = (
        f"Then come words one by one, short and whole, in batches of {settings.batch}: what BPTT is good at, and where "
        f"it is the smaller or the faster one. {settings.neurons} recurrent ALIF neurons, {settings.epochs} epochs; "
        f"accuracy on {digits.test.inputs.shape[1]} held-out words; cosine with BPTT's gradient before and after "
        "training, mean over the parameters and least:"
    )
    small = "One split and one seed, with settings chosen in view of it: the rows compare gradients, and are no record."
    return "\n\n".join([MARKS[0], stream, words, table, small, MARKS[1]]) + "\n"


def put(part: str, page: str) -> str:
    """A page with its part from mark to mark replaced."""
    before, start, rest = page.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1] + "\n")
    if not (start and end):
        raise ValueError(f"no part from {MARKS[0]!r} to {MARKS[1]!r} in the page")
    return before + part + after
