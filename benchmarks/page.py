"""What was measured, as text for people: docs/performance.md, and the table in the README.

python -m benchmarks.page     write both from the stored results
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import REFERENCE, Row, base_of, ratios
from benchmarks.tables import MIB, load

ROOT = Path(__file__).parent.parent
STORED = Path(__file__).parent / "results" / "default.json"
BEGIN, END = "<!-- from benchmarks/page.py -->", "<!-- to here -->"
TITLES = {
    "gru": "GRU", "windows gru": "GRU, windows of several lengths",
    "online gru": "GRU, a gradient at every step", "costly gru": "GRU, rules that look at pairs of units",
    "alif": "Recurrent spiking network, three layers of ALIF", "lif": "Recurrent spiking network, three layers of LIF",
    "lstm": "LSTM", "lru": "Linear recurrent unit, complex",
    "stack lif": "Feed-forward spiking network, three layers of LIF", "stack lru": "Four linear recurrent units",
    "wide lif": "Feed-forward spiking network, twice as wide", "layers lru": "Four linear recurrent units, complex",
    "selective": "Selective state space", "conv lif": "Convolutional recurrent spiking network",
    "time-invariant": "Linear recurrent unit, complex, shorter",
    "readout lif": "LIF with a detached reset, under a leaky readout",
    "recall": "Linear recurrent unit, credit from beyond the window",
    "by hand mingru": "minGRU, an update at every step",
    "by hand rtu": "Recurrent trace units, an update at every step",
    "mamba": "Mamba block", "deltanet": "Gated DeltaNet", "embedded mingru": "minGRU over an embedding",
    "leaky readouts": "Ten leaky readouts of one layer", "deep lru": "Two linear recurrent units",
    "one window gru": "GRU, one window with checkpoints", "tiny lru": "A tiny linear recurrent unit",
    "by hand lru": "Linear recurrent unit, an update at every step", "by hand lif": "LIF, an update at every step",
    "by hand dense gru": "GRU under `rtrl`, an update at every step",
    "by hand dense rnn": "tanh network under `rtrl`, an update at every step",
    "coba": "E/I network with conductances, 10 % sparse", "sparse lif": "Sparse recurrent LIF network",
}  # fmt: skip
# What the README shows: the heading of a column, the beginning of its case's name.
COLUMNS = {
    "GRU 256, batch 16": "gru B16 H256 T1024", "GRU 256, batch 1": "gru B1 H256 T1024",
    "ALIF 3 × 512, batch 32": "alif B32",
}  # fmt: skip
# What the README shows of structure: the name of a model, the beginning of its case's name, and the window.
STRUCTURES = {
    "LRU 256, batch 4": ("time-invariant B4 N256", 64), "four layers of it": ("layers lru B4 N256", 64),
    "one layer, a cue long ago": ("recall B4 N256", 16),
    "selective layer 64 × 8, batch 4": ("selective B4 D64", 64), "LSTM 256, batch 16": ("lstm B16 H256", 32),
    "LIF 512, detached reset, leaky readout, batch 32": ("readout lif B32 H512", 10),
}  # fmt: skip
# What is said above the table of a size that grows.
GROWTH = {
    "T": "GRU, longer sequences", "H": "GRU, more units", "B": "GRU, more lanes", "K": "GRU, longer windows",
    "synapses": "Sparse recurrent spiking network, more synapses",
}  # fmt: skip
LINES = [
    ("BPTT", "BPTT"), ("BPTT, checkpointed", "BPTT checkpointed"), ("Etrax `tbptt`", "etrax tbptt K={}"),
    ("Etrax `d_rtrl`", "etrax d_rtrl K={}"), ("Etrax `pp_prop`", "etrax pp_prop K={}"),
    ("braintrace D_RTRL, its default", "braintrace D_RTRL default"),
    ("braintrace D_RTRL, windowed", "braintrace D_RTRL K={}"),
    ("braintrace pp_prop, its default", "braintrace pp_prop default"),
    ("braintrace pp_prop, windowed", "braintrace pp_prop K={}"),
]  # fmt: skip


ANSWER = """
**Is it faster for my model?** Measure it, on your machine and at your sizes: `etrax bench model.py:make --window 10`
prints time and memory beside BPTT, and `etrax rules model.py:make` compares the rules. What to expect, on a CPU:

- *Memory*: over long sequences, yes: it does not grow with their length, and BPTT's does.
- *One sample at a time, or small batches*: usually faster than BPTT.
- *Truncated BPTT (`tbptt`) and `pp_prop`*: usually faster than BPTT, since less is stored and read again.
- *`d_rtrl`*: faster for linear recurrent units, about as fast (0.9 to 1.2) for gated cells and selective layers, and
  slower for spiking layers with large batches, where it keeps a trace per sample.
- *Short sequences in large batches*: no. Use BPTT.

Nothing has been measured on a GPU or TPU yet. Times below are ratios to BPTT (`jax.grad` through `lax.scan`): below 1
is faster. The cosine is that with BPTT's gradient.
"""


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:,.0f}"


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / MIB:,.1f}" if value < 99.95 * MIB else f"{value / MIB:,.0f}"


def _time(row: Row, base: Row | None) -> str:
    if base is None:
        return ""
    found = ratios(row, base)
    return f"{_number(median(found))} ({_number(min(found))}–{_number(max(found))})"


def case_table(rows: Sequence[Row]) -> list[str]:
    """One case: every rival a line."""
    base = base_of([r for r in rows if r.seconds])
    against = REFERENCE if base is None else base.rival
    lines = [
        f"| | ms a step | × {against} (spread) "
        "| MiB | resident | of matmul peak | of bandwidth | cosine | compile, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.error:
            lines.append(f"| {row.rival} | it failed: {row.error[:80]} | | | | | | | |")
            continue
        steps = f" ({row.steps} steps)" if base is not None and row.steps != base.steps else ""
        cosine = "" if row.cosine is None else f"{row.cosine:.3f}"
        lines.append(
            f"| {row.rival}{steps} | {1e3 * row.per_step:.3g} | {_time(row, base)} | {_mib(row.working)} "
            f"| {_mib(row.resident)} | {row.matmul:.0%} | {row.bandwidth:.0%} | {cosine} | {row.compile:.1f} |"
        )
    return lines


def growth_table(rows: Sequence[Row], sweep: str) -> list[str]:
    """A size varied: what stays as it is, then time a step and memory of every rival."""
    inside = [r for r in rows if r.sweep == sweep and r.seconds]
    fixed = ", ".join(f"{k} {v:,}" for k, v in inside[0].sizes.items() if k not in (sweep, "N"))
    lines = [f"{GROWTH[sweep]} ({fixed}):", ""]
    windows = sorted({_window_of(r) for r in inside} - {0}) if sweep == "K" else []
    sizes = windows or sorted({r.sizes[sweep] for r in inside})
    lines += [f"| {sweep} | " + " | ".join(f"{n:,}" for n in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    names = list(dict.fromkeys(r.rival.partition(" K=")[0] if windows else r.rival for r in inside))
    for name in names:
        cells = []
        for n in sizes:
            own = [r for r in inside if r.rival in (name, f"{name} K={n}") and (windows or r.sizes[sweep] == n)]
            cells.append(f"{1e3 * own[0].per_step:.3g} ms, {_mib(own[0].working)} MiB" if own else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _window_of(row: Row) -> int:
    """The K of a rival's name, 0 for one without windows."""
    return int(row.rival.partition("K=")[2] or 0)


def bar_table(bars: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| what must hold | at most | measured | |", "|---|---|---|---|"]
    for bar in bars:
        value = "" if bar["value"] is None else f"{bar['value']:.3g}"
        met = {True: "met", False: "**not met**", None: "not measured"}[bar["met"]]
        lines.append(f"| {bar['text']} | {bar['limit']:.3g} | {value} | {met} |")
    return lines


def memory_table(found: Sequence[dict[str, Any]]) -> list[str]:
    """What `learner.memory` said before, and what a run took."""
    lines = ["| | predicted, MiB | measured, MiB | ratio |", "|---|---|---|---|"]
    for row in found:
        ratio = row["predicted"] / row["measured"]
        lines.append(f"| {row['case']} | {_mib(row['predicted'])} | {_mib(row['measured'])} | {ratio:.2f} |")
    return lines


def startup_table(found: dict[str, dict[str, float]]) -> list[str]:
    """Seconds until the first gradient, a column a way to start."""
    lines = ["| seconds | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for stage in next(iter(found.values())):
        lines.append(f"| {stage} | " + " | ".join(f"{run[stage]:.2f}" for run in found.values()) + " |")
    return lines


def performance(folder: Path) -> str:
    """The whole page, from a folder of results."""
    content, rows = _read(folder / "default.json"), load(folder / "default.json")
    comment = (Path(__file__).parent / "comment.md").read_text(encoding="utf-8")
    machine = content["machine"]
    about = ", ".join(f"{k} {v}" for k, v in machine["about"].items())
    lines = [
        "# Performance", "", ANSWER.strip(), "", structure_table(rows), "",
        "Compared with other ways to compute a gradient:", "", readme_table(rows), "",
        "## How it grows", "",
        "Time and memory for each step, while one size grows and the others stay: B lanes, H units, T steps, K steps a "
        "window. Click the picture to enlarge it.", "",
        "[![time and memory against each size](../benchmarks/results/default.png)](../benchmarks/results/default.png)",
        "",
    ]  # fmt: skip
    for sweep in dict.fromkeys(r.sweep for r in rows if r.sweep):
        lines += [*growth_table(rows, sweep), ""]
    lines += ["## Memory, predicted and measured", ""]
    lines += ["`learner.memory(window, steps=…).peak` against the rise of the resident set of a process, by", ""]
    lines[-2] += " `python -m benchmarks.memory`:"
    lines += [*memory_table(_read(folder / "memory.json")), "", "## Until the first gradient", ""]
    lines += ["A GRU of 256 units under `d_rtrl`, without and with JAX's persistent compilation cache, by"]
    lines[-1] += " `python -m benchmarks.startup`:"
    lines += ["", *startup_table(_read(folder / "startup.json")), "", "## Cases", ""]
    for case in dict.fromkeys(r.case for r in rows if not r.sweep):
        own = [r for r in rows if r.case == case]
        family = max((k for k in TITLES if case.startswith(k)), key=len)
        sizes = ", ".join(f"{k} {v:,}" for k, v in own[0].sizes.items())
        lines += [f"### {TITLES[family]}: {sizes}", "", *case_table(own), ""]
    lines += [
        "## How it was measured", "",
        f"On: {about}; matrix products at {machine['flops'] / 1e9:.0f} GFlop/s, memory at "
        f"{machine['bandwidth'] / 1e9:.0f} GB/s. `benchmarks/README.md` explains the columns. `make bench` "
        "(`benchmarks/page.py`) writes this page from `benchmarks/results/default.json`.", "",
        comment.strip(), "", "## Bars", "", *bar_table(content["bars"]), "",
    ]  # fmt: skip
    return "\n".join(lines)


def readme_table(rows: Sequence[Row]) -> str:
    """A line a rival, time and memory a case."""
    lines = ["| | " + " | | ".join(COLUMNS) + " | |", "|---" * (2 * len(COLUMNS) + 1) + "|"]
    lines.append("|" + " | time | memory" * len(COLUMNS) + " |")
    for shown, pattern in LINES:
        cells = []
        for case in COLUMNS.values():
            own = [r for r in rows if r.case.startswith(case) and not r.sweep]
            k = 10 if case.startswith("alif") else 64
            row, base = (
                next((r for r in own if r.rival == n and r.seconds), None) for n in (pattern.format(k), REFERENCE)
            )
            found = row is not None and base is not None
            cells += [_number(median(ratios(row, base))), f"{_mib(row.working)} MiB"] if found else ["", ""]
        if any(cells):
            lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    first = next(iter(COLUMNS.values()))
    own = {r.rival: r for r in rows if r.case.startswith(first) and not r.sweep}
    shown = [(name, own.get(pattern.format(64))) for name, pattern in LINES if not name.startswith("BPTT")]
    cosines = "; ".join(f"{name} {row.cosine:.3f}" for name, row in shown if row is not None and row.cosine is not None)
    return "\n".join([*lines, "", f"Cosine with BPTT's gradient in the first case: {cosines}."])


def structure_table(rows: Sequence[Row]) -> str:
    """A line a model: what truncation and a whole trace cost, and how near they come to BPTT's gradient."""
    lines = [
        "| model (window) | BPTT, memory | `tbptt`: time, memory, cosine | `d_rtrl`: time, memory, cosine |",
        "|---|---|---|---|",
    ]
    for shown, (case, k) in STRUCTURES.items():
        own = {r.rival: r for r in rows if r.case.startswith(case) and not r.sweep and r.seconds}
        base, exact = own.get(REFERENCE), own.get(f"etrax d_rtrl K={k}")
        if base is None or exact is None:
            continue
        cells = [_against(own.get(f"etrax {rule} K={k}"), base) for rule in ("tbptt", "d_rtrl")]
        lines.append(f"| {shown} ({k}) | {_mib(base.working)} MiB | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _against(row: Row | None, base: Row) -> str:
    if row is None:
        return ""
    cosine = "" if row.cosine is None else f", {row.cosine:.3f}"
    return f"{_number(median(ratios(row, base)))}, {_mib(row.working)} MiB{cosine}"


def tables_of_readme(rows: Sequence[Row]) -> str:
    """Both tables."""
    return f"{readme_table(rows)}\n\n{structure_table(rows)}"


def with_table(readme: str, table: str) -> str:
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write() -> None:
    (ROOT / "docs" / "performance.md").write_text(performance(STORED.parent), encoding="utf-8")
    readme = ROOT / "README.md"
    table = tables_of_readme(load(STORED))
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), table), encoding="utf-8")


if __name__ == "__main__":
    write()
