"""The report as one page: no file beside it, nothing fetched, readable without its script."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from ._drawing import Column, Drawing, drawing_of, folded, part_of
from ._escape import esc, prose
from ._svg import svg_of, symbol, symbols
from ._tables import groups, memory, parameters, section
from ._text import CHECK, MEANING, count_kinds, kinds_of, kinds_text, plural, size_text

if TYPE_CHECKING:
    from ._report import Report

# Above so many parameters the graph is folded: an overview, and one picture per hidden group.
FOLD = 40
# Forbids every request, whatever the page holds.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
LEGEND = (
    ("flow exact", "leads to, in the colour of the verdict"),
    ("flow plain", "a state leads to"),
    ("reads", "a weight op reads the state"),
)


def page(report: Report) -> str:
    """The whole page."""
    title = f"Etrax report: {report.rule}"
    sections = [_graph(report), parameters(report), groups(report), memory(report), _notes(report), _check()]
    body = "\n".join(s for s in sections if s)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{esc(title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
{symbols()}
{_header(report)}
<main>
{body}
</main>
<script>
{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files("etrax.report").joinpath(name).read_text(encoding="utf-8")


def _header(report: Report) -> str:
    counts = "".join(
        f'<li class="{k}">{symbol(k)}<b>{n}</b> <span class="name">{k}</span> '
        f'<span class="meaning">{MEANING[k]}</span></li>'
        for k, n in count_kinds(kinds_of(report))
    )
    links = ("graph", "Graph"), ("parameters", "Parameters"), ("groups", "Groups"), ("memory", "Memory")
    nav = "".join(f'<a href="#{to}">{name}</a>' for to, name in links)
    return (
        f"<header>\n<h1>Etrax report <code>{esc(report.rule)}</code></h1>\n<p>{size_text(report)}</p>\n"
        f'<ul class="counts" aria-label="Verdicts">{counts}</ul>\n<nav aria-label="Sections">{nav}</nav>\n</header>'
    )


def _graph(report: Report) -> str:
    drawing = drawing_of(report)
    hint = (
        "From left to right: parameters, the weight ops that they meet, the hidden groups that these reach, outputs. "
        "Point at, tap or tab to a box for its reason; follow it to its row."
    )
    legend = "".join(
        f'<li><svg class="key" width="34" height="10" aria-hidden="true" focusable="false"><g class="link {kind}">'
        f'<path d="M0 5H26"/><path class="tip" d="M34 5L26 1V9z"/></g></svg>{text}</li>'
        for kind, text in LEGEND
    )
    panel = '<p class="panel" id="panel" aria-live="polite" hidden></p>'
    if len(report.parameters) <= FOLD:
        pictures = _scroll(
            svg_of(drawing, "Graph of parameters, weight ops, hidden groups and outputs", ""), "Graph", "whole"
        )
    else:
        pictures = _scroll(svg_of(folded(drawing, "band-"), "Overview of the graph", "o-"), "Overview of the graph")
        pictures += "\n" + "\n".join(_band(report, drawing, b) for b in range(drawing.bands))
    return section(
        "graph", "Graph", f'<p class="hint">{hint}</p>', f'<ul class="legend">{legend}</ul>', pictures, panel
    )


def _scroll(picture: str, label: str, size: str = "tall") -> str:
    return f'<div class="scroll {size}" tabindex="0" role="region" aria-label="{esc(label)}">{picture}</div>'


def _band(report: Report, drawing: Drawing, band: int) -> str:
    inside = drawing.of_band(band)
    kinds = [n.kind for n in inside if n.column is Column.PARAMETER and n.kind is not None]
    if not kinds and not any(n.column is Column.OP for n in inside):
        return ""
    group = next((n for n in inside if n.column is Column.GROUP), None)
    last = "Outputs only" if band == len(report.groups) else "No output"
    name = group.name.removeprefix("hidden ").capitalize() if group else last
    picture = _scroll(svg_of(part_of(drawing, band), f"Graph of {name}", f"b{band}-"), name)
    return (
        f'<details class="band" id="band-{band}"><summary><b>{esc(name)}</b> '
        f'<span class="meaning">{plural(len(kinds), "parameter")}: {kinds_text(kinds)}</span></summary>\n'
        f"{picture}</details>"
    )


def _notes(report: Report) -> str:
    items = "".join(f"<li>{prose(text)}</li>" for text in report.notes)
    return section("notes", "Notes", f"<ul>{items}</ul>") if items else ""


def _check() -> str:
    text = "<p>The verdicts are derived from the model. To compare with BPTT on your own data:</p>"
    return section("check", "Check it", text, f'<pre tabindex="0"><code>{esc(CHECK)}</code></pre>')
