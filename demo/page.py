"""One page that needs nothing else: the results in front of the report of the compiled model, in the same look."""

from __future__ import annotations

import inspect
import io
import keyword
import platform
import tokenize
from html import escape
from pathlib import Path
from typing import Any

import jax

import etrax

from . import model
from .charts import LABEL, curves, sizes
from .data import Digits
from .pictures import Drawn
from .runs import Settings
from .stream import LENGTHS as STREAMS
from .stream import Heard
from .table import Row, best, cells, heads


def page(
    rows: list[Row], report: Any, picture: Drawn, settings: Settings, digits: Digits,
    heard: list[Heard], memory: dict[str, list[int]],
) -> str:  # fmt: skip
    """`report.to_html()` with the demo's header and sections before its own, which keep their places and links."""
    title = f"{digits.name.capitalize()}, learned online"
    front = "\n".join(
        [
            _header(title, rows, settings, digits, heard[0], memory),
            "<main>",
            _stream(heard, memory),
            _results(rows, settings, digits),
            _learning(rows),
            _word(picture),
            _code(),
            _next(),
            "</main>",
        ]
    )
    text = report.to_html()
    head, _, rest = text.partition("<body>\n")
    body, _, end = rest.rpartition("\n<script>")
    # One heading of the first rank in a page; the picture is part of the page, so images in it are allowed.
    body = body.replace("<h1>", "<h2>").replace("</h1>", "</h2>")
    head = head.replace("default-src 'none';", "default-src 'none'; img-src data:;")
    head = head.replace(_between(head, "<title>", "</title>"), escape(title))
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    head = head.replace("</style>", f"{style}</style>")
    footer = _footer(settings, digits)
    return f'{head}<body>\n{front}\n<div class="compiled" id="compiled">\n{body}\n</div>\n{footer}\n<script>{end}'


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def _section(name: str, heading: str, *content: str) -> str:
    inside = "\n".join(content)
    return f'<section id="{name}" aria-labelledby="{name}-h">\n<h2 id="{name}-h">{heading}</h2>\n{inside}\n</section>'


def _header(
    title: str, rows: list[Row], settings: Settings, digits: Digits, heard: Heard, memory: dict[str, list[int]]
) -> str:
    """What a stream is learned with, first; then what is found word by word."""
    found = {row.name: row.accuracy for row in rows}
    said = (
        f"A recurrent network of {settings.neurons} adaptive spiking neurons hears {heard.words:,} {digits.name} as "
        f"one stream of {heard.steps:,} steps, once, and learns while it plays, in memory that does not grow. In the "
        f"last eighth it recognises {100 * heard.shares[-1]:.0f} % of the words before it has learned from them. A "
        f"gradient over {STREAMS[-1]:,} steps takes {memory['d_rtrl'][-1] / 1e6:.1f} MB; back-propagation through time "
        f"(BPTT), which has to store the stream, takes {memory['BPTT'][-1] / 1e6:,.0f} MB.",
        f"Trained word by word, {settings.epochs} times over, it recognises {100 * found['d_rtrl']:.1f} % of "
        f"{digits.test.inputs.shape[1]} held-out words; trained by BPTT, {100 * found['BPTT']:.1f} %.",
    )
    links = (
        ("stream", "A stream"), ("results", "Words"), ("learning", "Learning"), ("word", "One word"),
        ("code", "The model"), ("next", "Your own"), ("compiled", "The compiled graph"),
    )  # fmt: skip
    nav = "".join(f'<a href="#{to}">{name}</a>' for to, name in links)
    text = "".join(f"<p>{escape(one).replace(' %', '&nbsp;%')}</p>\n" for one in said)
    return f'<header>\n<h1>{escape(title)}</h1>\n{text}<nav aria-label="Results">{nav}</nav>\n</header>'


def _stream(heard: list[Heard], memory: dict[str, list[int]]) -> str:
    """What online learning is for: a sequence without an end."""
    one = heard[0]
    said = (
        f"{one.words:,} words one after another, heard once and learned while they play, ten steps at a time. Each "
        "eighth of the stream is first classified with the weights that the network has at its beginning, and only "
        "then learned from: the curve shows what the network knew before each eighth. A trace "
        "(<code>d_rtrl</code>) carries what was heard before those ten steps; without one (<code>tbptt</code>) it is "
        "lost. Several streams side by side use a machine better, but leave each with fewer steps to learn in."
    )
    shares = {h.label: h.shares for h in heard}
    learned = curves(shares, "eighth of the stream", "words recognised", "Share of words recognised as the stream runs")
    grown = memory["BPTT"][-1] / memory["d_rtrl"][-1]
    words = (
        f"Memory of one gradient by the length of the stream. At {STREAMS[-1]:,} steps BPTT needs {grown:,.0f} times "
        "as much; for words of a hundred steps that come whole, BPTT takes less memory and less time."
    )
    return _section(
        "stream", "A stream, learned while it runs", f'<p class="hint">{said}</p>',
        f'<figure class="figure">{learned}</figure>', f'<p class="hint">{words}</p>',
        f'<figure class="figure">{sizes(memory, STREAMS, LABEL)}</figure>',
    )  # fmt: skip


def _results(rows: list[Row], settings: Settings, digits: Digits) -> str:
    names, marked = heads(digits.steps), best(rows)
    head = "".join(f'<th scope="col">{h}</th>' for h in names)
    body = "\n".join(
        f'<tr class="m{k}"><th scope="row">{escape(name)}</th>'
        + "".join(
            f'<td data-name="{h}">{f"<b>{c}</b>" if (k, n) in marked else c}</td>'
            for n, (h, c) in enumerate(zip(names[1:], rest, strict=True), 1)
        )
        + "</tr>"
        for k, (name, *rest) in enumerate(cells(row) for row in rows)
    )
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    hint = (
        "The same network, data, optimizer and epochs. Three rules, <code>d_rtrl</code>, <code>pp_prop</code> and "
        f"<code>tbptt</code>, learn online: they look back on {settings.window} steps and update the weights after "
        "them, and the first two carry a trace of all that came before. BPTT keeps the whole sequence and updates at "
        "its end. Only the answer at the last step counts. Accuracy: on held-out words, after the last epoch. An "
        "epoch: its time in seconds, for the fastest one. The best of each column is in bold. Memory: what the "
        f"compiler plans for the gradient of a batch of {settings.batch}. Cosine with BPTT’s gradient, before and "
        "after training: mean over the parameters (least)."
    )
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="Results">{table}</div>'
    return _section("results", "Words, one by one", scroll, f'<p class="hint">{hint}</p>')


def _learning(rows: list[Row]) -> str:
    drawn = curves(
        {row.name: row.accuracies for row in rows}, "epoch", "held-out accuracy",
        "Held-out accuracy after each epoch: " + "; ".join(f"{r.name} ends at {100 * r.accuracy:.1f} %" for r in rows),
    )  # fmt: skip
    return _section("learning", "Learning", f'<figure class="figure">{drawn}</figure>')


def _word(drawn: Drawn) -> str:
    said = (
        f"What the trained network does with a “{drawn.digit}” that was held out: the spikes of its neurons, what the "
        "readout makes of them, and the eligibility traces of some input weights, on membrane potentials "
        "<code>v</code> and on smoothed spikes <code>s</code>, which the readout sees."
    )
    image = (
        f'<picture><source media="(max-width: 640px) and (prefers-color-scheme: dark)" srcset="{drawn.narrow_dark}">'
        f'<source media="(max-width: 640px)" srcset="{drawn.narrow_light}">'
        f'<source media="(prefers-color-scheme: dark)" srcset="{drawn.dark}">'
        f'<img src="{drawn.light}" alt="Spikes, readout and traces over time for the digit {drawn.digit}"></picture>'
    )
    return _section("word", "One word", f'<p class="hint">{said}</p>', f'<figure class="figure">{image}</figure>')


def _code() -> str:
    shown = coloured(inspect.getsource(model).rstrip())
    said = "All of it, in plain JAX. <code>etrax.compile</code> reads the step and finds the graph below."
    return _section("code", "The model", f'<p class="hint">{said}</p>', f'<pre tabindex="0"><code>{shown}</code></pre>')


def _next() -> str:
    said = (
        "Replace this step with your own, or write a file with such a function <code>make</code>. "
        "<code>docs/start.md</code> is a tour of ten minutes; <code>make docs</code> builds the site."
    )
    lines = {"explain": "what follows here", "check": "against BPTT", "rules": "rules side by side"}
    commands = "\n".join(
        f'.venv-demo/bin/etrax {name:<7} demo/model.py:make   <span class="comment"># {text}</span>'
        for name, text in lines.items()
    )
    shown = f'<pre tabindex="0"><code>{commands}</code></pre>'
    return _section("next", "A model of your own", f'<p class="hint">{said}</p>', shown)


def coloured(source: str) -> str:
    """Python as HTML, with a class for words of the language, strings, comments and numbers."""
    kinds = {tokenize.STRING: "string", tokenize.COMMENT: "comment", tokenize.NUMBER: "number"}
    lines, out, at = source.splitlines(keepends=True), [], (1, 0)

    def between(start: tuple[int, int], end: tuple[int, int]) -> str:
        rows = lines[start[0] - 1 : end[0]]
        if rows and end[0] <= len(lines):
            rows[-1] = rows[-1][: end[1]]
        return escape("".join(rows)[start[1] :])

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        word = token.type == tokenize.NAME and keyword.iskeyword(token.string)
        kind = "word" if word else kinds.get(token.type)
        if kind:
            out += [between(at, token.start), f'<span class="{kind}">{between(token.start, token.end)}</span>']
            at = token.end
    return "".join([*out, between(at, (len(lines) + 1, 0))])


def _footer(settings: Settings, digits: Digits) -> str:
    made = (
        f"etrax {etrax.__version__}, jax {jax.__version__}, Python {platform.python_version()}; batches of "
        f"{settings.batch}, windows of {settings.window} steps, Adam with learning rate {settings.rate:g} falling to 0"
    )
    return f"<footer>\n<p>Data: {escape(digits.source)}.</p>\n<p>{escape(made)}.</p>\n</footer>"
