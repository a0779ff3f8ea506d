"""Rules side by side on one model and its data: what each carries, costs and gives."""

from __future__ import annotations

import html
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as File

import jax
import numpy as np

from .._arguments import check_arrays, check_whole, format_bytes, short
from .._compile import compile as compile_learner
from .._errors import ArgumentError, ArgumentTypeError, EtraxError
from ..compiler.ir import LossFunction, PyTree
from ..learn import Learner
from ..rules import COMPARED, RULES, Rule, RuleWarning
from ._oracles import bptt

TURNS = 5
WIDTH, HEIGHT, LEFT, RIGHT, FLOOR = 640, 260, 60, 160, 210  # of the picture


@dataclass(frozen=True)
class RuleRow:
    """One rule: bytes of its trace, time as a multiple of BPTT's, cosine of its gradient with BPTT's, verdicts.

    A rule that refuses the model has the reason in `refused`, and nothing else.

    >>> from etrax.testing import RuleRow
    >>> RuleRow("rtrl()", trace=4096, cosine=1.0).trace
    4096
    """

    rule: str
    trace: int = 0
    time: float = float("nan")
    cosine: float = float("nan")
    verdicts: tuple[tuple[str, int], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class RuleTable:
    """The table of `compare_rules`. `print` it, or write it with `to_html`.

    >>> from etrax.testing import RuleRow, RuleTable
    >>> RuleTable((RuleRow("rtrl()", trace=4096, cosine=1.0),), window=1, steps=9)["rtrl"].trace
    4096
    """

    rows: tuple[RuleRow, ...]
    window: int
    steps: int

    HEAD = ("rule", "trace", "time of BPTT", "cosine with BPTT", "parameters")

    def __getitem__(self, rule: str) -> RuleRow:
        for row in self.rows:
            if rule in (row.rule, row.rule.partition("(")[0]):
                return row
        raise ArgumentError(f"there is no rule {short(rule)} here; there are {', '.join(r.rule for r in self.rows)}.")

    def cells(self) -> list[tuple[str, ...]]:
        """The table in words, one tuple a row."""
        out = []
        for r in self.rows:
            kinds = ", ".join(f"{n} {kind}" for kind, n in r.verdicts)
            shown = (format_bytes(r.trace), f"{r.time:.2f} ×", f"{r.cosine:.4f}", kinds)
            out.append((r.rule, *(shown if not r.refused else ("", "", "", f"refused: {r.refused}"))))
        return out

    def __str__(self) -> str:
        lines = [self.HEAD, *self.cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.HEAD) - 1)]
        text = ["  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]) for line in lines]
        return "\n".join([*text, f"(window {self.window}, {self.steps} steps; times are the best of {TURNS} turns)"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_html(self, file: str | File) -> None:
        """The table as one page, with a picture: what a rule's trace takes, and how far its gradient is BPTT's."""
        picture = drawn([(r.rule, r.trace, r.cosine) for r in self.rows])

        def row(cells: Sequence[str], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

        body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in self.cells())
        File(file).write_text(
            "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Etrax: rules"
            f"</title><style>{_STYLE}</style><h1>Rules on this model</h1><p>Window {self.window}, {self.steps} steps; "
            f"times are the best of {TURNS} turns taken by all in one run.</p><div><table><tr>{row(self.HEAD, 'th')}"
            f"</tr>\n{body}</table></div>\n{picture}\n",
            encoding="utf-8",
        )


_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui;margin:2em auto;max-width:60em;padding:0 1em}"
    "svg{width:100%;margin-top:2em;font-size:12px;fill:currentColor}"
    "div{overflow-x:auto}table{border-collapse:collapse}td,th{text-align:left;padding:.3em 1em .3em 0;"
    "border-bottom:1px solid #8886}td:nth-child(-n+4){white-space:nowrap;font-variant-numeric:tabular-nums}"
)


def compare_rules(
    model: object, loss_fn: LossFunction, params: PyTree, hidden: PyTree, inputs: PyTree, targets: PyTree = None,
    rules: Sequence[Rule | str] | None = None, window: int = 10,
) -> RuleTable:  # fmt: skip
    """Run rules on one model and its data, beside BPTT: memory, time, cosine of the gradient, verdicts.

    `model` is a step function, a module whose states have been created, or a learner of any front end, of which the
    rule does not count; with the latter two None for `params` and `hidden` stands for their own. `rules` are by default
    those that most people choose from. All take turns in one run, so that noise moves them together.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> w, h, xs = jnp.ones((3, 4)), jnp.zeros(4), jnp.ones((20, 3))
    >>> table = etrax.compare_rules(step, lambda o, y: (o**2).mean(), w, h, xs, rules=["tbptt", "d_rtrl"], window=5)
    >>> round(table["d_rtrl"].cosine, 6), dict(table["d_rtrl"].verdicts)
    (1.0, {'exact': 1})
    """
    check_whole("window", window, "steps")
    chosen = _chosen(rules)
    for what, tree in (("params", params), ("hidden", hidden), ("inputs", inputs), ("targets", targets)):
        check_arrays(what, tree)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    plain = _learner(model, COMPARED[0], params, hidden, inputs)
    params, hidden = (plain.params if params is None else params), (plain.hidden if hidden is None else hidden)
    runs: dict[str, Callable[[], object]] = {}
    rows: list[RuleRow] = []
    for rule in chosen:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuleWarning)  # what a rule says of its data, the cosine says in numbers
                learner = plain.with_rule(rule)
                run = _gradient(learner, loss_fn, window, params, hidden, inputs, targets)
        except EtraxError as error:
            rows.append(RuleRow(str(rule), refused=str(error).splitlines()[0]))
            continue
        kinds = Counter(str(v.kind_at(window)) for v in learner.report.verdicts.values())
        runs[str(learner.rule)] = run
        rows.append(RuleRow(str(learner.rule), learner.program.transport.nbytes, verdicts=tuple(sorted(kinds.items()))))
    compiled = jax.jit(lambda *args: bptt(plain, loss_fn)(*args)[1])
    by_bptt = partial(compiled, params, hidden, inputs, targets)
    want, best = jax.tree.leaves(jax.block_until_ready(by_bptt())), _times({"": by_bptt, **runs})
    cosines = {name: _cosine(jax.tree.leaves(run()), want) for name, run in runs.items()}
    steps = jax.tree.leaves(inputs)[0].shape[0] if jax.tree.leaves(inputs) else 0
    measured = [
        r if r.refused else replace(r, time=best[r.rule] / best[""], cosine=cosines[r.rule]) for r in rows
    ]  # fmt: skip
    return RuleTable(tuple(measured), window, steps)


def _chosen(rules: Sequence[Rule | str] | None) -> list[Rule | str]:
    if rules is None:
        return list(COMPARED)
    if not isinstance(rules, list | tuple) or not all(isinstance(r, Rule | str) for r in rules):
        raise ArgumentTypeError(f"`rules` is {short(rules)}; pass a list of rules, or of their names.")
    for rule in rules:
        if isinstance(rule, str) and rule not in RULES:
            raise ArgumentError(f"there is no rule {rule!r}; the rules are {', '.join(sorted(RULES))}.")
    return list(rules)


def _gradient(
    learner: Learner, loss_fn: LossFunction, window: int, params: object, hidden: object, *data: object
) -> Callable[[], object]:
    """The gradient of a rule, compiled and run once."""
    gradient, state = learner.value_and_grad(loss_fn, window=window), learner.init(params, hidden)

    def run() -> object:
        return gradient(params, state, *data)[0][1]

    jax.block_until_ready(run())
    return run


def _learner(model: object, rule: Rule | str, params: object, hidden: object, inputs: tuple[object, ...]) -> Learner:
    for learner in (model, getattr(model, "learner", None)):  # the latter of `etrax.Stateful`
        if isinstance(learner, Learner):
            return learner.with_rule(rule)
    example = jax.tree.map(lambda a: a[0], inputs)
    return compile_learner(model, rule, *example, params=params, hidden=hidden)


def _times(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _cosine(got: Sequence[jax.Array], want: Sequence[jax.Array]) -> float:
    g, w = (np.concatenate([np.asarray(a, complex).ravel() for a in tree] or [np.zeros(0)]) for tree in (got, want))
    size = float(np.linalg.norm(g)) * float(np.linalg.norm(w))
    return float(np.real(np.vdot(w, g))) / size if size else float(not g.any() and not w.any())


def drawn(points: Sequence[tuple[str, int, float]]) -> str:
    """An SVG of (rule, bytes, cosine); no trace at all stands at the left edge, bytes grow by powers of ten.

    >>> drawn([("tbptt()", 0, 0.9), ("d_rtrl()", 4096, 1.0)]).count("<circle")
    2
    """
    points = [p for p in points if math.isfinite(p[2])]
    if not points:
        return ""
    sizes = [n for _, n, _ in points if n] or [1]
    low, high = math.log10(min(sizes)) - 0.5, math.log10(max(sizes))
    least = min(0.9, math.floor(10 * min(c for *_, c in points)) / 10)

    def x(n: int) -> float:
        share = (math.log10(n) - low) / max(high - low, 1e-9) if n else 0.0
        return LEFT + (WIDTH - RIGHT - LEFT) * share

    def y(cosine: float) -> float:
        return FLOOR - (FLOOR - 20) * (cosine - least) / (1 - least)

    parts, taken = [], []
    for name, n, cosine in points:
        height = y(cosine) + 4
        while any(abs(height - h) < 14 and abs(x(n) - a) < 150 for a, h in taken):
            height += 14  # names stand below each other
        taken.append((x(n), height))
        label = html.escape(f"{name}, {format_bytes(n)}")
        parts.append(
            f'<circle cx="{x(n):.1f}" cy="{y(cosine):.1f}" r="5" fill="#0a9396"/>'
            f'<text x="{x(n) + 10:.1f}" y="{height:.1f}">{label}</text>'
        )
    grid = "".join(
        f'<path d="M{LEFT} {y(v):.1f}H{WIDTH}" stroke="#8886"/><text x="8" y="{y(v) + 4:.1f}">{v:.2f}</text>'
        for v in (least, (1 + least) / 2, 1.0)
    )
    axis = f'<text x="{LEFT}" y="{HEIGHT - 14}">bytes of the trace → (cosine with BPTT ↑)</text>'
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Cosine with BPTT over bytes of the trace"'
    return f"<svg {box}>{grid}{''.join(parts)}{axis}</svg>"
