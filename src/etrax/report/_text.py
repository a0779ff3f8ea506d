"""The report in words, for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from .._arguments import format_bytes
from .._errors import visible
from ..compiler.ir import format_path
from ..rules import Kind
from ._alike import blocks_of, brief, groups_alike, listed, said_once, shortened, shortest_names
from ._lines import ParameterLine

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
NO_GROUPS = "The model has no state that remembers, so every gradient is that of its own step."
CHECK = "etrax.testing.compare(learner, loss_fn, learner.params, learner.hidden, inputs, targets, window=1).check()"

WORDS = (
    "Words: a window is a run of steps that are differentiated together; a trace is what a rule carries from window to "
    "window; a position is one unit of one sample; a weight op is an operation that applies a parameter; the leak is "
    "the share of a state that a step keeps, the gain the factor of what it adds."
)


def text_of(report: Report, full: bool = False) -> str:
    """The report, wrapped for a terminal; in full, every group and parameter with a reason of its own."""
    words = [_wrapped(WORDS, 0), *([] if full else ["report.full() gives the whole reason for each parameter."])]
    advice = ["To check it against BPTT on your own data:", f"  {CHECK}"]
    parts = [
        _heading(report), _groups(report, full), _parameters(report, full), _notes(report, full), _memory(report),
        words, advice,
    ]  # fmt: skip
    return visible("\n\n".join("\n".join(part) for part in parts if part))


def size_text(report: Report) -> str:
    """How many parameters, numbers in them, and hidden groups."""
    numbers = sum(int(np.prod(p.shape, dtype=np.int64)) for p in report.parameters)
    parameters, groups = plural(len(report.parameters), "parameter"), plural(len(report.groups), "hidden group")
    return f"{parameters} ({numbers:,} number{'s' * (numbers != 1)}), {groups}"


def rule_name(report: Report) -> str:
    """The name of the rule, without its options."""
    return report.rule.split("(")[0]


def kinds_of(report: Report) -> list[Kind]:
    return [p.verdict.kind for p in report.parameters]


def count_kinds(kinds: Iterable[Kind]) -> list[tuple[Kind, int]]:
    """How often each verdict occurs, best first; those that do not occur are left out."""
    counts = Counter(kinds)
    return [(k, counts[k]) for k in reversed(ORDER) if counts[k]]


def kinds_text(kinds: Iterable[Kind]) -> str:
    """`3 exact, 1 truncated`."""
    return ", ".join(f"{n} {kind}" for kind, n in count_kinds(kinds))


def plural(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def shape_text(shape: tuple[int, ...], empty: str) -> str:
    return "×".join(map(str, shape)) or empty


def _heading(report: Report) -> list[str]:
    lines = [f"Etrax report for {report.rule}: {size_text(report)}"]
    lines += [f"  {n:>4} {k:<12} {MEANING[k]}" for k, n in count_kinds(kinds_of(report))]
    return lines


def _groups(report: Report, full: bool) -> list[str]:
    if not report.groups:
        return [f"Hidden groups: none. {NO_GROUPS}"]
    shortest = shortest_names([p.path for p in report.parameters])
    lines = ["Hidden groups (states that act on each other position by position)"]
    for alike in groups_alike(report.groups, full):
        i, g = alike[0]
        size = f"{shape_text(g.positions, 'one')} positions, {plural(g.num_state, 'state')} each"
        number = str(i) if len(alike) == 1 else f"{i}…{alike[-1][0]}"
        names = listed([state for _, other in alike for state in other.states], full)
        lines.append(f"  {number}  {names}: {size}, recurrence {g.structure}")
        across = g.across if full else [brief(shortened("; ".join(g.across)), shortest)] * bool(g.across)
        lines += [_wrapped(f"across positions: {text}", 5) for text in across]
    return lines


def _parameters(report: Report, full: bool) -> list[str]:
    lines = ["Parameters"]
    order = sorted(report.parameters, key=lambda p: ORDER.index(p.verdict.kind))
    for block in blocks_of(report, order, full):
        reached = list(dict.fromkeys(r for p in block.parameters for r in p.reaches))
        what = listed([_named(p, full) for p in block.parameters], full)
        what += f" → {listed(reached, full)}" if reached else ""
        kind = f"  {block.parameters[0].verdict.kind.upper():<12} "
        lines.append(textwrap.fill(what, 118, initial_indent=kind, subsequent_indent=" " * 15))
        lines.append(_wrapped(block.reason, 15))
    return lines


def _named(p: ParameterLine, with_ops: bool) -> str:
    ops = f"; {', '.join(p.ops) or 'in no operation'}" if with_ops else ""
    return f"{format_path(p.path, 'params')} ({shape_text(p.shape, 'scalar')}{ops})"


def _notes(report: Report, full: bool) -> list[str]:
    notes = report.notes if full else said_once(report.notes)
    return ["Notes", *(_wrapped(text, 2) for text in notes)] if notes else []


def _wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, 118, initial_indent=" " * indent, subsequent_indent=" " * indent, break_long_words=False)


def _memory(report: Report) -> list[str]:
    cells = [
        f"{name} {format_bytes(n)}" + (" (this rule)" if name == rule_name(report) else "")
        for name, n in sorted(report.memory.items(), key=lambda i: i[1])
    ]
    return ["Memory of the traces: " + "   ".join(cells)]
