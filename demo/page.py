"""One page that needs nothing else: the results in front of the report of the compiled model, in the same look."""

from __future__ import annotations

import inspect
import platform
from html import escape
from pathlib import Path
from typing import Any

import jax

import etrax

from . import model
from .charts import curves
from .data import Digits
from .measure import LENGTHS
from .runs import Settings
from .table import Row, cells, heads


def page(rows: list[Row], report: Any, picture: tuple[str, int], settings: Settings, digits: Digits) -> str:
    """`report.to_html()` with the demo's header and sections before its own, which keep their places and links."""
    title = f"{digits.name.capitalize()}, learned online"
    front = "\n".join(
        [
            _header(title, rows, settings, digits),
            "<main>",
            _results(rows, settings, digits),
            _learning(rows),
            _lengths(rows, digits),
            _word(*picture),
            _code(),
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


def _header(title: str, rows: list[Row], settings: Settings, digits: Digits) -> str:
    found = {row.name: row.accuracy for row in rows}
    samples = digits.train.inputs.shape[1], digits.test.inputs.shape[1]
    said = (
        f"A recurrent network of {settings.neurons} adaptive spiking neurons names {100 * found['d_rtrl']:.1f} % of "
        f"{samples[1]} {digits.name} that it was not trained on; by back-propagation through time (BPTT) it is "
        f"{100 * found['BPTT']:.1f} %. Trained on {samples[0]:,}, for {settings.epochs} epochs."
    )
    links = (
        ("results", "Results"), ("learning", "Learning"), ("lengths", "Length and memory"), ("word", "One word"),
        ("code", "The model"), ("compiled", "The compiled graph"),
    )  # fmt: skip
    nav = "".join(f'<a href="#{to}">{name}</a>' for to, name in links)
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p>{escape(said)}</p>\n<nav aria-label="Results">{nav}</nav>\n</header>'
    )


def _results(rows: list[Row], settings: Settings, digits: Digits) -> str:
    head = "".join(f'<th scope="col">{h}</th>' for h in heads(digits.steps))
    body = "\n".join(
        f'<tr class="m{k}"><th scope="row">{escape(name)}</th>' + "".join(f"<td>{c}</td>" for c in rest) + "</tr>"
        for k, (name, *rest) in enumerate(cells(row) for row in rows)
    )
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    hint = (
        "The same network, data, optimizer and epochs. Three rules, <code>d_rtrl</code>, <code>pp_prop</code> and "
        f"<code>tbptt</code>, learn online: they look back on {settings.window} steps and update the weights after "
        "them, and the first two carry a trace of all that came before. BPTT keeps the whole sequence and updates at "
        "its end. The answer is asked for at the last step. Accuracy: on what was held out, after the last epoch. "
        "Time: training, evaluating and compiling. Memory: what the compiler plans for the gradient of a batch of "
        f"{settings.batch}. Cosine with BPTT’s gradient, before and after training: mean over the parameters (least)."
    )
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="Results">{table}</div>'
    return _section("results", "Results", scroll, f'<p class="hint">{hint}</p>')


def _learning(rows: list[Row]) -> str:
    drawn = curves(
        {row.name: row.accuracies for row in rows}, "epoch", "held-out accuracy",
        "Held-out accuracy after each epoch: " + "; ".join(f"{r.name} ends at {100 * r.accuracy:.1f} %" for r in rows),
    )  # fmt: skip
    return _section("learning", "Learning", f'<figure class="figure">{drawn}</figure>')


def _lengths(rows: list[Row], digits: Digits) -> str:
    most = max(n for row in rows for n in row.bytes)
    body = "\n".join(
        f'<tr class="m{k}"><th scope="row">{escape(row.name)}</th><td class="size">{digits.steps * times} steps</td>'
        f'<td class="size">{n / 2**20:.1f} MiB</td>'
        f'<td class="share"><span style="width:{100 * n / most:.2f}%"></span></td></tr>'
        for k, row in enumerate(rows)
        for times, n in zip(LENGTHS, row.bytes, strict=True)
    )
    head = "".join(f'<th scope="col">{h}</th>' for h in ("Method", "Sequence", "Memory", "Share of the largest"))
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    said = "Memory of an update by the length of a sequence: that of BPTT grows with it, that of a trace does not."
    return _section("lengths", "Length and memory", f'<p class="hint">{said}</p>', table)


def _word(address: str, digit: int) -> str:
    said = (
        f"What the trained network does with a “{digit}” that was held out: the spikes of its neurons, what the "
        "readout makes of them, and the eligibility traces of some input weights, on membrane potentials "
        "<code>v</code> and on smoothed spikes <code>s</code>, which the readout sees."
    )
    image = f'<img src="{address}" alt="Spikes, readout and traces over time for the digit {digit}">'
    return _section("word", "One word", f'<p class="hint">{said}</p>', f'<figure class="figure">{image}</figure>')


def _code() -> str:
    shown = escape(inspect.getsource(model).rstrip())
    said = "All of it, in plain JAX. <code>etrax.compile</code> reads the step and finds what is below."
    return _section("code", "The model", f'<p class="hint">{said}</p>', f'<pre tabindex="0"><code>{shown}</code></pre>')


def _footer(settings: Settings, digits: Digits) -> str:
    made = (
        f"etrax {etrax.__version__}, jax {jax.__version__}, Python {platform.python_version()}; batches of "
        f"{settings.batch}, windows of {settings.window} steps, Adam with learning rate {settings.rate:g} falling to 0"
    )
    return f"<footer>\n<p>Data: {escape(digits.source)}.</p>\n<p>{escape(made)}.</p>\n</footer>"
