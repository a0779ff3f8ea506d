"""Rules side by side on one model and its data: what each carries, costs and gives."""

from __future__ import annotations

import html
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path as File

import jax
import numpy as np

from .._arguments import check_arrays, check_flag, check_function, check_whole, format_bytes, parse_bytes, short
from .._compile import compile as compile_learner
from .._errors import ArgumentError, ArgumentTypeError, EtraxError, visible
from ..compiler.ir import LossFunction, Path, PyTree, format_path, leaves_with_paths
from ..learn import Learner, default_budget
from ..report import monospace
from ..rules import COMPARED, RULES, Rule, RuleWarning, work_of
from ._oracles import Sequence as Data
from ._oracles import bptt

TURNS = 5
MOST_TIME = 50  # times BPTT's, beyond which a rule is not run unless asked for
PROBES = 16  # directions of each parameter, where the meter stands in for BPTT
WIDTH, HEIGHT, LEFT, RIGHT, FLOOR = 640, 260, 60, 160, 210  # of the picture


@dataclass(frozen=True)
class RuleRow:
    """One rule: bytes of its trace, time, cosines of its gradient with BPTT's, verdicts.

    `time` is a multiple of BPTT's, `seconds` that of one gradient. `cosine` is that of all parameters together, and
    `cosines` has one for each parameter, by path. Where BPTT did not fit into memory, `time` is NaN, cosines are the
    meter's, and `interval` holds the cosine in about 95 of 100 measurements.

    A rule that refuses the model has the reason in `refused`, one that would take too long or too much memory in
    `left_out`, and neither has anything else.

    >>> from etrax.testing import RuleRow
    >>> row = RuleRow("d_rtrl()", trace=4096, cosine=0.9, cosines={("w",): 0.8, ("out",): 1.0})
    >>> row.least
    (('w',), 0.8)
    """

    rule: str
    trace: int = 0
    time: float = float("nan")
    cosine: float = float("nan")
    verdicts: tuple[tuple[str, int], ...] = ()
    refused: str = ""
    cosines: Mapping[Path, float] = field(default_factory=dict)
    seconds: float = float("nan")
    interval: tuple[float, float] | None = None
    left_out: str = ""

    @property
    def least(self) -> tuple[Path, float] | None:
        """The parameter whose gradient points least where BPTT's does, and its cosine; None if there is no angle."""
        angles = [(path, c) for path, c in self.cosines.items() if math.isfinite(c)]
        return min(angles, key=lambda angle: angle[1], default=None)

    def cells(self) -> tuple[str, ...]:
        """The row in words."""
        if self.refused or self.left_out:
            word, reason = ("refused", self.refused) if self.refused else ("left out", self.left_out)
            return self.rule, "", "", "", "", f"{word}: {reason}"
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.verdicts)
        cosine = f"{self.cosine:.4f}"
        if self.interval is not None:
            cosine += f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"
        least = "" if self.least is None else f"{self.least[1]:.4f} {format_path(self.least[0], 'params')}"
        time = f"{self.time:.2f} ×" if math.isfinite(self.time) else f"{self.seconds:.3g} s"
        return self.rule, format_bytes(self.trace), time, cosine, least, kinds


@dataclass(frozen=True)
class RuleTable:
    """The table of `compare_rules`. `print` it, or write it with `to_html`; `print(table.by_parameter())` has cosines.

    >>> from etrax.testing import RuleRow, RuleTable
    >>> RuleTable((RuleRow("rtrl()", trace=4096, cosine=1.0),), window=1, steps=9)["rtrl"].trace
    4096
    """

    rows: tuple[RuleRow, ...]
    window: int
    steps: int
    notes: tuple[str, ...] = ()

    HEAD = ("rule", "trace", "time vs BPTT", "cosine with BPTT", "lowest by parameter", "parameters")

    def __getitem__(self, rule: str) -> RuleRow:
        for row in self.rows:
            if rule in (row.rule, row.rule.partition("(")[0]):
                return row
        raise ArgumentError(f"there is no rule {short(rule)} here; there are {', '.join(r.rule for r in self.rows)}.")

    def cells(self) -> list[tuple[str, ...]]:
        """The table in words, one tuple a row."""
        return [row.cells() for row in self.rows]

    def _about(self) -> str:
        told = f"window {self.window}, {self.steps} steps; times are the best of {TURNS} runs"
        return "; ".join([told, *self.notes])

    def by_parameter(self) -> str:
        """The cosine of every parameter under every rule that ran."""
        ran = [row for row in self.rows if row.cosines]
        paths = list(dict.fromkeys(path for row in ran for path in row.cosines))
        head = ("parameter", *(row.rule for row in ran))
        body = [
            (format_path(path, "params"), *(f"{row.cosines.get(path, math.nan):.4f}" for row in ran)) for path in paths
        ]
        return _aligned([head, *body])

    def __str__(self) -> str:
        return "\n".join([_aligned([self.HEAD, *self.cells()]), f"({self._about()})"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return monospace(self)

    def to_html(self, file: str | File) -> None:
        """The table as one page, with a picture: what a rule's trace takes, and how far its gradient is BPTT's."""
        picture = drawn([(r.rule, r.trace, r.cosine) for r in self.rows])

        def row(cells: Sequence[str], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

        body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in self.cells())
        File(file).write_text(
            "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Etrax: rules"
            f"</title><style>{_STYLE}</style><h1>Rules on this model</h1><p>{html.escape(self._about().capitalize())}, "
            f"which each rule takes with BPTT.</p><div><table><tr>{row(self.HEAD, 'th')}</tr>\n{body}</table></div>\n"
            f"{picture}\n",
            encoding="utf-8",
        )


_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui;margin:2em auto;max-width:60em;padding:0 1em}"
    "svg{width:100%;margin-top:2em;font-size:12px;fill:currentColor}"
    "div{overflow-x:auto}table{border-collapse:collapse}td,th{text-align:left;padding:.3em 1em .3em 0;"
    "border-bottom:1px solid #8886}td:nth-child(-n+5){white-space:nowrap;font-variant-numeric:tabular-nums}"
)


def compare_rules(
    model: object, loss_fn: LossFunction, params: PyTree, hidden: PyTree, inputs: PyTree, targets: PyTree = None,
    rules: Sequence[Rule | str] | None = None, window: int = 10, *, mask: PyTree = None, reset: PyTree = None,
    slow: bool = False, memory: float | str | None = None,
    progress: bool | Callable[[RuleRow], object] | None = None,
) -> RuleTable:  # fmt: skip
    """Run rules on one model and its data, beside BPTT: memory, time, cosine of the gradient, verdicts.

    - `model`: a step function, a module whose states have been created, or a learner (its own rule does not matter).
    - `loss_fn`: `loss_fn(output, target) -> scalar`, the loss of one step.
    - `params`, `hidden`: the parameters and the hidden state to start from; None stands for those of a module or
      learner.
    - `inputs`, `targets`: a sequence, time first, as for `value_and_grad`.
    - `rules`: rules or their names; by default those that most people choose from.
    - `window`: the number of steps that are differentiated together.
    - `mask`, `reset`: as in `value_and_grad`; a reset returns to `hidden`.
    - `slow`: True also runs the rules that would take more than 50 times as long as BPTT. By default they are left out,
      with an estimate.
    - `memory`: bytes, or a text such as "2 GB"; by default half of the device's. A rule whose trace is larger is left
      out. Where BPTT itself needs more, cosines come from the meter, with an interval (`etrax.meter`).
    - `progress`: True shows each row on standard error as soon as it is there (the default on a terminal); or a
      function that is called with each `RuleRow`.

    Each rule takes turns with BPTT, so that noise affects both alike.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> w, h, xs = jnp.ones((3, 4)), jnp.zeros(4), jnp.ones((20, 3))
    >>> table = etrax.compare_rules(step, lambda o, y: (o**2).mean(), w, h, xs, rules=["tbptt", "d_rtrl"], window=5)
    >>> round(table["d_rtrl"].cosine, 6), dict(table["d_rtrl"].verdicts)
    (1.0, {'exact': 1})
    """
    check_whole("window", window, "steps")
    chosen, tell = _chosen(rules), _teller(progress)
    asked = parse_bytes("memory", memory)
    budget = default_budget() if asked is None else asked
    data = {"inputs": inputs, "targets": targets, "mask": mask, "reset": reset}
    for what, tree in {"params": params, "hidden": hidden, **data}.items():
        check_arrays(what, tree)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    plain = _learner(model, COMPARED[0], params, hidden, inputs)
    params, hidden = (plain.params if params is None else params), (plain.hidden if hidden is None else hidden)
    sequence = Data(params, hidden, inputs, targets, mask, reset, None if reset is None else hidden)
    trial = _Trial(plain, loss_fn, window, sequence, budget, check_flag("slow", slow))
    rows = []
    for rule in chosen:
        rows.append(trial.row(rule))
        tell(rows[-1])
    leaves = jax.tree.leaves((inputs, targets, mask, reset))
    return RuleTable(tuple(rows), window, leaves[0].shape[0] if leaves else 0, trial.notes)


class _Trial:
    """A model, its data and BPTT's gradient of them, against which rules are held one by one."""

    def __init__(self, plain: Learner, loss_fn: LossFunction, window: int, sequence: Data, budget: float, slow: bool):
        self.plain, self.loss_fn, self.window, self.sequence, self.slow = plain, loss_fn, window, sequence, slow
        self.budget = budget
        compiled = jax.jit(self._by_bptt).lower(sequence).compile()
        planned = compiled.memory_analysis()
        size = 0 if planned is None else planned.temp_size_in_bytes
        self.fits = size <= budget
        self.notes: tuple[str, ...] = ()
        if self.fits:
            self.bptt = partial(compiled, sequence)
            self.want = jax.block_until_ready(self.bptt())
        else:
            more = f"BPTT would take {format_bytes(size)}, more than {format_bytes(budget)}"
            self.notes = (f"{more}: cosines are measured by tangents, with intervals",)

    def _by_bptt(self, sequence: Data) -> PyTree:
        return bptt(self.plain, self.loss_fn)(*sequence[:6], initial=sequence.initial)[1]

    def row(self, rule: Rule | str) -> RuleRow:
        """One rule, run or refused or left out."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuleWarning)  # what a rule says of its data, the cosine says in numbers
                learner = self.plain.with_rule(rule)
                reason = self._too_much(learner)
                return RuleRow(str(learner.rule), left_out=reason) if reason else self._run(learner)
        except EtraxError as error:
            return RuleRow(str(rule), refused=str(error).splitlines()[0])

    def _run(self, learner: Learner) -> RuleRow:
        kinds = Counter(str(v.kind_at(self.window)) for v in learner.report.verdicts.values())
        trace, verdicts = learner.program.transport.nbytes, tuple(sorted(kinds.items()))
        row = RuleRow(str(learner.rule), trace, verdicts=verdicts)
        run = self._gradient(learner, self.sequence)
        grads = jax.block_until_ready(run())
        if not self.fits:
            seconds = _times({"rule": run})["rule"]
            return self._by_meter(learner, replace(row, seconds=seconds))
        best = _times({"rule": run, "BPTT": self.bptt})
        pairs = zip(leaves_with_paths(grads), leaves_with_paths(self.want), strict=True)
        cosines = {path: _cosine([g], [w]) for (path, g), (_, w) in pairs}
        cosine = _cosine(jax.tree.leaves(grads), jax.tree.leaves(self.want))
        time = best["rule"] / best["BPTT"]
        return replace(row, time=time, seconds=best["rule"], cosine=cosine, cosines=cosines)

    def _gradient(self, learner: Learner, sequence: Data) -> Callable[[], PyTree]:
        gradient = learner.value_and_grad(self.loss_fn, window=self.window)
        state = learner.init(sequence.params, sequence.hidden)
        initial = {} if sequence.reset is None else {"initial": sequence.initial}
        return lambda: gradient(sequence.params, state, *sequence[2:6], **initial)[0][1]

    def _by_meter(self, learner: Learner, row: RuleRow) -> RuleRow:
        params, hidden, *data = self.sequence[:6]
        meter = learner.meter(self.loss_fn, self.window, PROBES)
        state = learner.init(params, hidden)
        reading = meter.measure(params, state, *data, key=jax.random.key(0))
        cosines = {path: measured.cosine for path, measured in reading.parameters.items()}
        return replace(row, cosine=reading.whole.cosine, interval=reading.whole.interval, cosines=cosines)

    def _too_much(self, learner: Learner) -> str:
        """Why a rule is not run, or nothing: its trace, or its time as counted for a step and measured on a window."""
        transport = learner.program.transport
        if transport.nbytes > self.budget:
            return f"its trace takes {format_bytes(transport.nbytes)}, more than {format_bytes(self.budget)}"
        # Rules with a signal of their own read the loss in ways that no stand-in serves, and are as fast as `d_rtrl`.
        counted = transport.signal is None and transport.future is None and learner.program.by_call is None
        if self.slow or not self.fits or not counted:
            return ""
        # With longer windows traces are moved less often: work for windows of one step is the most that there is.
        if work_of(learner.facts, learner.rule) <= MOST_TIME * work_of(self.plain.facts, self.plain.rule):
            return ""
        beginning = self._first_window()
        runs = {"rule": self._gradient(learner, beginning), "BPTT": partial(self._by_bptt, beginning)}
        for run in runs.values():
            jax.block_until_ready(run())
        best = _times(runs, turns=2)
        ratio = best["rule"] / best["BPTT"]
        return "" if ratio <= MOST_TIME else f"about {ratio:.0f} × the time of BPTT (`slow=True` runs it)"

    def _first_window(self) -> Data:
        along = ("inputs", "targets", "mask", "reset")
        first = jax.tree.map(lambda a: a[: self.window], {name: getattr(self.sequence, name) for name in along})
        return self.sequence._replace(**first)


def _teller(progress: bool | Callable[[RuleRow], object] | None) -> Callable[[RuleRow], object]:
    """What is done with each row when it comes."""
    if callable(progress):
        return check_function("progress", progress, "one `RuleRow`", arguments=1)
    shown = sys.stderr is not None and sys.stderr.isatty() if progress is None else check_flag("progress", progress)
    if not shown:
        return lambda row: None
    return lambda row: print(visible("  ".join(cell for cell in row.cells() if cell)), file=sys.stderr, flush=True)


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """Columns of equal width, the last one as it is."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip() for line in lines
    )


def _chosen(rules: Sequence[Rule | str] | None) -> list[Rule | str]:
    if rules is None:
        return list(COMPARED)
    if not isinstance(rules, list | tuple) or not all(isinstance(r, Rule | str) for r in rules):
        raise ArgumentTypeError(f"`rules` is {short(rules)}; pass a list of rules, or of their names.")
    for rule in rules:
        if isinstance(rule, str) and rule not in RULES:
            raise ArgumentError(f"there is no rule {rule!r}; the rules are {', '.join(sorted(RULES))}.")
    return list(rules)


def _learner(model: object, rule: Rule | str, params: object, hidden: object, inputs: tuple[object, ...]) -> Learner:
    for learner in (model, getattr(model, "learner", None)):  # the latter of `etrax.Stateful`
        if isinstance(learner, Learner):
            return learner.with_rule(rule)
    example = jax.tree.map(lambda a: a[0], inputs)
    return compile_learner(model, rule, *example, params=params, hidden=hidden)


def _times(runs: Mapping[str, Callable[[], object]], turns: int = TURNS) -> dict[str, float]:
    """The best time of each, in seconds; all take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(turns):
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
