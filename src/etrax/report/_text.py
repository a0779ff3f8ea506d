"""The report in words, for a terminal."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import format_bytes
from ..ir import format_path
from ..rules import Kind

if TYPE_CHECKING:
    from ._report import Report

# What needs attention stands first.
ORDER = (Kind.UNUSED, Kind.TRUNCATED, Kind.APPROXIMATE, Kind.EXACT)
MEANING = {
    Kind.EXACT: "equals BPTT for every window",
    Kind.APPROXIMATE: "a trace is carried, some paths are not",
    Kind.TRUNCATED: "no trace is carried, exact inside a window only",
    Kind.UNUSED: "has no gradient",
}
CHECK = "etrax.testing.compare(learner, loss_fn, params, hidden, inputs, targets, window=1).check()"


def text_of(report: Report) -> str:
    """The whole report, wrapped for a terminal."""
    parts = [_heading(report), _groups(report), _parameters(report), _notes(report), _memory(report), _advice()]
    return "\n\n".join("\n".join(part) for part in parts if part)


def size_text(report: Report) -> str:
    """How many parameters, numbers in them, and hidden groups."""
    numbers = sum(int(np.prod(p.shape, dtype=np.int64)) for p in report.parameters)
    parameters, groups = plural(len(report.parameters), "parameter"), plural(len(report.groups), "hidden group")
    return f"{parameters} ({numbers:,} numbers), {groups}"


def count_kinds(report: Report) -> list[tuple[Kind, int]]:
    """Parameters per verdict, best first; verdicts that do not occur are left out."""
    counts = [(k, sum(p.verdict.kind is k for p in report.parameters)) for k in reversed(ORDER)]
    return [(k, n) for k, n in counts if n]


def plural(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def shape_text(shape: tuple[int, ...], empty: str) -> str:
    return "×".join(map(str, shape)) or empty


def _heading(report: Report) -> list[str]:
    lines = [f"Etrax report for {report.rule}: {size_text(report)}"]
    lines += [f"  {n:>4} {k:<12} {MEANING[k]}" for k, n in count_kinds(report)]
    return lines


def _groups(report: Report) -> list[str]:
    if not report.groups:
        return [
            "Hidden groups: none. The model has no state that remembers, so every gradient is that of its own step."
        ]
    lines = ["Hidden groups (states that act on each other position by position)"]
    for i, g in enumerate(report.groups):
        size = f"{shape_text(g.positions, 'one')} positions, {plural(g.num_state, 'state')} each"
        lines.append(f"  {i}  {', '.join(g.states)}: {size}, recurrence {g.structure}")
        lines += [_wrapped(f"across positions: {text}", 5) for text in g.across]
    return lines


def _parameters(report: Report) -> list[str]:
    lines = ["Parameters"]
    for p in sorted(report.parameters, key=lambda p: ORDER.index(p.verdict.kind)):
        met = ", ".join(p.ops) or "in no operation"
        what = f"{format_path(p.path, 'params')} ({shape_text(p.shape, 'scalar')}; {met})"
        to = f" → {', '.join(p.reaches)}" if p.reaches else ""
        lines.append(f"  {p.verdict.kind.upper():<12} {what}{to}")
        lines.append(_wrapped(p.verdict.reason, 15))
    return lines


def _notes(report: Report) -> list[str]:
    return ["Notes", *(_wrapped(text, 2) for text in report.notes)] if report.notes else []


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, 118, initial_indent=" " * indent, subsequent_indent=" " * indent, break_long_words=False)


def own_rule(report: Report) -> str:
    """The name of the rule, without its options."""
    return report.rule.split("(")[0]


def _memory(report: Report) -> list[str]:
    own = own_rule(report)
    cells = [
        f"{name} {format_bytes(n)}" + (" (this rule)" if name == own else "")
        for name, n in sorted(report.memory.items(), key=lambda i: i[1])
    ]
    return ["Memory of the traces: " + "   ".join(cells)]


def _advice() -> list[str]:
    return [
        "To check it against BPTT on your own data:",
        f"  {CHECK}",
    ]
