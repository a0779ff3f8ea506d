"""The tables of the page: parameters with verdict and reason, hidden groups, memory of the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._arguments import format_bytes
from ..compiler.ir import format_path
from ._alike import said_once, shortened
from ._escape import esc, prose
from ._svg import symbol
from ._text import NO_GROUPS, ORDER, count_kinds, kinds_of, rule_name, shape_text

if TYPE_CHECKING:
    from ._report import Report

STRUCTURE = {
    "diagonal": "each position keeps one number, which no other position touches",
    "block": "each position keeps several numbers, which act on each other and on no other position",
    "sparse": "positions act on some others",
    "dense": "positions act on most others",
}


def section(name: str, heading: str, *content: str) -> str:
    inside = "\n".join(c for c in content if c)
    return f'<section id="{name}" aria-labelledby="{name}-h">\n<h2 id="{name}-h">{heading}</h2>\n{inside}\n</section>'


def parameters(report: Report) -> str:
    rows = sorted(enumerate(report.parameters), key=lambda item: ORDER.index(item[1].verdict.kind))
    body = "\n".join(
        f'<tr id="row-{i}" role="row" class="{p.verdict.kind}">'
        f'<th scope="row" role="rowheader"><code>{_breakable(format_path(p.path, "params")[1:-1])}</code>'
        f"{_meets(p.ops, p.reaches)}</th>"
        f'<td role="cell" class="shape">{shape_text(p.shape, "scalar")}</td>'
        f'<td role="cell" class="verdict">{symbol(p.verdict.kind)} {p.verdict.kind}</td>'
        f'<td role="cell">{prose(shortened(p.verdict.full))}</td></tr>'
        for i, p in rows
    )
    return section(
        "parameters", "Parameters", _filters(report), _table(("Parameter", "Shape", "Verdict", "Reason"), body)
    )


def _meets(ops: tuple[str, ...], reaches: tuple[str, ...]) -> str:
    met = ", ".join(ops) or "in no operation"
    to = f" → {', '.join(reaches)}" if reaches else ""
    return f' <span class="meets">{esc(met + to)}</span>'


def _filters(report: Report) -> str:
    """Shown by the script, which serves them."""
    boxes = "".join(
        f'<label><input type="checkbox" value="{k}" checked>{symbol(k)} {k}</label>'
        for k, _ in count_kinds(kinds_of(report))
    )
    search = '<label class="search">Find <input type="search" placeholder="path or reason" autocomplete="off"></label>'
    inside = f"{boxes}{search}<output></output>"
    return f'<form class="filters" id="filters" hidden aria-label="Show parameters">{inside}</form>'


def groups(report: Report) -> str:
    if not report.groups:
        return section("groups", "Hidden groups", f"<p>None. {NO_GROUPS}</p>")
    body = "\n".join(
        f'<tr id="group-row-{i}" role="row"><th scope="row" role="rowheader">group {i}</th>'
        f'<td role="cell">{" ".join(f"<code>{_breakable(s[1:-1])}</code>" for s in g.states)}</td>'
        f'<td role="cell">{shape_text(g.positions, "one")}</td><td role="cell">{g.num_state}</td>'
        f'<td role="cell"><b>{esc(g.structure)}</b>: {STRUCTURE.get(g.structure, "")}</td>'
        f'<td role="cell">{_across(g.across)}</td></tr>'
        for i, g in enumerate(report.groups)
    )
    heads = ("Group", "States", "Positions", "States at a position", "Recurrence within the group", "Across positions")
    hint = '<p class="hint">States that act on each other position by position share a group.</p>'
    return section("groups", "Hidden groups", hint, _table(heads, body))


def _across(texts: tuple[str, ...]) -> str:
    items = "".join(f"<li>{prose(text)}</li>" for text in said_once([shortened(text) for text in texts]))
    return f"<ul>{items}</ul>" if items else "nothing"


def memory(report: Report) -> str:
    most, of_rule = max(report.memory.values(), default=0), report.memory.get(rule_name(report), 0)
    rows = []
    for name, n in sorted(report.memory.items(), key=lambda item: item[1]):
        bar = f'<span style="width:{100 * n / most:.2f}%"></span>' if n else ""
        ratio = "" if not of_rule else "1" if n == of_rule else f"{n / of_rule:.3g}"
        row_class, mark = (' class="own"', " <b>(this rule)</b>") if name == rule_name(report) else ("", "")
        rows.append(
            f'<tr role="row"{row_class}><th scope="row" role="rowheader"><code>{esc(name)}</code>{mark}</th>'
            f'<td role="cell" class="size">{format_bytes(n)}</td><td role="cell" class="size">{ratio}</td>'
            f'<td role="cell" class="bar">{bar}</td></tr>'
        )
    hint = '<p class="hint">Memory of the traces, for the batch that the model was compiled with.</p>'
    heads = ("Rule", "Size", "Times this rule", "Share of the largest")
    return section("memory", "Memory", hint, _table(heads, "\n".join(rows)))


def _table(heads: tuple[str, ...], body: str) -> str:
    # Roles are written out: a table that is laid out as blocks on a narrow screen would lose them.
    head = "".join(f'<th scope="col" role="columnheader">{h}</th>' for h in heads)
    return (
        f'<table role="table">\n<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n'
        f'<tbody role="rowgroup">\n{body}\n</tbody></table>'
    )


def _breakable(name: str) -> str:
    """A name that may be broken before a dot or a bracket."""
    return esc(name).replace(".", "<wbr>.").replace("[", "<wbr>[")
