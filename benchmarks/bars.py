"""What the measurements must show: ratios within one run, each met or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.by_hand import CELLS
from benchmarks.harness import BY_HAND, Row, ratios

OURS, PP_PROP, LEAN, THEIRS = "etrax d_rtrl K=64", "etrax pp_prop K=10", "etrax pp_prop K=1", "braintrace pp_prop"
GRU, GRU_1, ONLINE = "gru B16 H256 T1024", "gru B1 H256 T1024", "online gru B16 H256 T32"
COSTLY = "costly gru B16 H64 T8"
SELECTIVE = "selective B4 D64 T256"
ALIF, LARGE = "alif B32 H512 T500", "sparse lif B32 N131072 synapses1048576"
STACKS = [(b, rule, limit + more) for b, limit in ((1, 0.42), (4, 0.45), (32, 0.85))
          for rule, more in (("tbptt", 0), ("pp_prop", 0.05))]  # fmt: skip
COUNTERPARTS = {
    "d_rtrl K=1": "D_RTRL default", "pp_prop K=1": "pp_prop default", "e_prop K=1": "EProp default",
    "e_prop random K=1": "EProp random default", "three_factor K=1": "ThreeFactor default",
    "ostl K=1": "OSTLRecurrent default", "uoro K=2": "UORO K=2",
}  # fmt: skip


class Bar(NamedTuple):
    """`measure(rows)` must not exceed `limit`; it is None where the run does not hold what it needs."""

    text: str
    limit: float
    measure: Callable[[Sequence[Row]], float | None]


class Found(NamedTuple):
    """A bar and what was measured."""

    text: str
    limit: float
    value: float | None

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self.value <= self.limit


def find(rows: Sequence[Row], case: str, rival: str) -> Row | None:
    """The row of a rival in the case whose name begins so."""
    return next((r for r in rows if r.case.startswith(case) and r.rival == rival and r.seconds), None)


def _time(case: str, rival: str, other: str) -> Callable[[Sequence[Row]], float | None]:
    def measure(rows: Sequence[Row]) -> float | None:
        a, b = find(rows, case, rival), find(rows, case, other)
        return median(ratios(a, b)) if a and b else None

    return measure


def _memory(case: str, rival: str, other: str, field: str = "working") -> Callable[[Sequence[Row]], float | None]:
    def measure(rows: Sequence[Row]) -> float | None:
        a, b = find(rows, case, rival), find(rows, case, other)
        return getattr(a, field) / max(getattr(b, field) or 0, 1) if a and b and getattr(a, field) else None

    return measure


def _line(rows: Sequence[Row], sweep: str, rival: str) -> list[Row]:
    """The cases of a sweep that one rival ran, by size."""
    return sorted((r for r in rows if r.sweep == sweep and r.rival == rival), key=lambda r: r.sizes[sweep])


def _slope(sweep: str, rival: str) -> Callable[[Sequence[Row]], float | None]:
    """The exponent of time in a size, from the smallest to the largest."""

    def measure(rows: Sequence[Row]) -> float | None:
        line = _line(rows, sweep, rival)
        if len(line) < 2:
            return None
        a, b = line[0], line[-1]
        return math.log(median(b.seconds) / median(a.seconds)) / math.log(b.sizes[sweep] / a.sizes[sweep])

    return measure


def _against(sweep: str, rival: str) -> Callable[[Sequence[Row]], float | None]:
    """The exponent as a multiple of BPTT's: what is above one in both is the machine's."""

    def measure(rows: Sequence[Row]) -> float | None:
        own, other = (_slope(sweep, name)(rows) for name in (rival, "BPTT"))
        return own / max(other, 1e-9) if own is not None and other is not None else None

    return measure


def _flat(rival: str) -> Callable[[Sequence[Row]], float | None]:
    """Working memory at the longest sequence against the shortest that has several windows."""

    def measure(rows: Sequence[Row]) -> float | None:
        line = _line(rows, "T", rival)
        return line[-1].working / line[0].working if len(line) > 1 else None

    return measure


def _floats(rows: Sequence[Row], field: str) -> float | None:
    """Bytes of `d_rtrl` on the large network, in floats per weight (synapses and gains), state (one) and sample."""
    row = find(rows, LARGE, "etrax d_rtrl K=1")
    weights = 0 if row is None else row.sizes["synapses"] + row.sizes["N"]
    return None if row is None else getattr(row, field) / (4 * weights * row.sizes["B"])


def _growth() -> list[Bar]:
    found = []
    for rule, k in (("d_rtrl", 64), ("pp_prop", 64)):
        name = f"etrax {rule} K={k}"
        found.append(Bar(f"{rule}: time in T, exponent", 1.1, _slope("T", name)))
        found.append(Bar(f"{rule}: memory at T 65,536 against T 128", 1.05, _flat(name)))
    for rule in ("d_rtrl", "pp_prop"):
        found.append(Bar(f"{rule}: time in B, exponent", 1.1, _slope("B", f"etrax {rule} K=32")))
        found.append(Bar(f"{rule}: time in synapses, exponent", 1.1, _slope("synapses", f"etrax {rule} K=5")))
        found.append(Bar(f"{rule}: the same against BPTT's", 1.05, _against("synapses", f"etrax {rule} K=5")))
    return found


BARS = [
    *(
        Bar(
            f"{cell.name} {'×'.join(map(str, cell.sizes.values()))}, an update a step: {rule} / by hand",
            cell.bar,
            _time(
                f"by hand {cell.name} {' '.join(f'{k}{v}' for k, v in cell.sizes.items())} ",
                f"etrax {rule} online",
                BY_HAND,
            ),
        )
        for cell in CELLS
        for rule in ("rtrl" if cell.name.startswith("dense") else "d_rtrl",)
    ),
    Bar(
        "LRU N10 D2 B2, whole-sequence gradient: d_rtrl / by hand",
        1.2,
        _time("tiny lru B2 N10 ", "etrax d_rtrl K=10", "gradient by hand"),
    ),
    *(
        Bar(
            f"online GRU: pp_prop as published{which} / braintrace pp_prop",
            1.0,
            _time(ONLINE, f"etrax pp_prop as published{which} K=1", f"{THEIRS} default"),
        )
        for which in (", z and n", "")  # theirs gives no other parameter a gradient
    ),
    *(
        Bar(f"GRU B16 H256 K{k}: d_rtrl / BPTT", limit, _time(f"windows {GRU}", f"etrax d_rtrl K={k}", "BPTT"))
        for k, limit in ((4, 1.3), (8, 1.15), (64, 0.9))
    ),
    Bar("GRU B16 H256 K64: d_rtrl / braintrace D_RTRL", 1 / 10, _time(GRU, OURS, "braintrace D_RTRL default")),
    Bar("GRU B16 H256 K64: d_rtrl / its windowed mode", 1 / 1.5, _time(GRU, OURS, "braintrace D_RTRL K=64")),
    Bar("GRU B1 H256 K64: d_rtrl / BPTT", 0.75, _time(GRU_1, OURS, "BPTT")),
    *(
        Bar(f"selective B4 D64 K{k}: d_rtrl / BPTT", limit, _time(SELECTIVE, f"etrax d_rtrl K={k}", "BPTT"))
        for k, limit in ((16, 2.0), (64, 1.5))
    ),
    *(
        Bar(
            f"LIF 3×512 feed-forward B{b} K64: {rule} / BPTT",
            limit,
            _time(f"stack lif B{b} ", f"etrax {rule} K=64", "BPTT"),
        )
        for b, rule, limit in STACKS
    ),
    *(
        Bar(f"LRU N256 H64 B{b} K64: d_rtrl / BPTT", limit, _time(f"time-invariant B{b} N256", OURS, "BPTT"))
        for b, limit in ((1, 0.75), (4, 0.55), (16, 0.75))
    ),
    *(
        Bar(
            f"LIF 512 and leaky readout B{b} K{k}: {rule} / BPTT",
            limit,
            _time(f"readout lif B{b} H512", f"etrax {rule} K={k}", "BPTT"),
        )
        for rule, k, b, limit in (
            ("d_rtrl no hop", 10, 32, 0.8),
            ("d_rtrl no hop", 10, 1, 0.55),
            ("d_rtrl", 50, 32, 1.6),
            ("d_rtrl", 50, 1, 0.55),
        )
    ),
    Bar(
        "LIF 512 and leaky readout B32 K10: d_rtrl no hop, MiB",
        5.0,
        lambda rows: (lambda r: r and r.working / 2**20)(
            find(rows, "readout lif B32 H512", "etrax d_rtrl no hop K=10")
        ),
    ),
    Bar("Mamba block B4 D64 K64: d_rtrl / BPTT", 1.8, _time("mamba B4 D64", OURS, "BPTT")),
    Bar("gated DeltaNet head B4 D64 K64: d_rtrl / BPTT", 1.5, _time("deltanet B4 D64", OURS, "BPTT")),
    Bar("embedding and minGRU B4 K64: d_rtrl / BPTT", 1.5, _time("embedded mingru B4", OURS, "BPTT")),
    *(
        Bar(
            f"LIF 256 under leaky readouts B{b} K50: d_rtrl / BPTT",
            limit,
            _time(f"leaky readouts B{b} ", "etrax d_rtrl K=50", "BPTT"),
        )
        for b, limit in ((1, 1.0), (32, 6.0))
    ),
    Bar(
        "two gated LRU layers N64 K64: d_rtrl(depth) / rtrl",
        1 / 3,
        _time("deep lru ", "etrax d_rtrl depth K=64", "etrax rtrl K=64"),
    ),
    Bar(
        "two gated LRU layers N64 K64: d_rtrl(depth) / rtrl, trace",
        1 / 3,
        _memory("deep lru ", "etrax d_rtrl depth K=64", "etrax rtrl K=64", "trace"),
    ),
    Bar(
        "GRU B16 H256, one window of 1,024 with checkpoints: tbptt / BPTT",
        1.0,
        _time("one window gru B16", "etrax tbptt remat K=1024", "BPTT"),
    ),
    Bar(
        "GRU B16 H256, one window of 1,024 with checkpoints: tbptt, MiB",
        12.0,
        lambda rows: (lambda r: r and r.working / 2**20)(find(rows, "one window gru B16", "etrax tbptt remat K=1024")),
    ),
    Bar("LSTM 256 B16 K32: d_rtrl / BPTT", 1.3, _time("lstm B16 H256", "etrax d_rtrl K=32", "BPTT")),
    Bar("four LRU layers B4 K64: d_rtrl / BPTT", 0.5, _time("layers lru B4 ", OURS, "BPTT")),
    Bar(
        "LIF 3×1024 feed-forward B4 K64: d_rtrl no hop / BPTT",
        0.6,
        _time("wide lif B4 ", "etrax d_rtrl no hop K=64", "BPTT"),
    ),
    *(
        Bar(f"ALIF 3×512 B32 K{k}: d_rtrl / BPTT", limit, _time(ALIF, f"etrax d_rtrl K={k}", "BPTT"))
        for k, limit in ((10, 4.5), (50, 2.2))
    ),
    Bar("ALIF 3×512 B32 T500: pp_prop / BPTT", 0.8, _time(ALIF, PP_PROP, "BPTT")),
    Bar("ALIF 3×512 B32 T500: pp_prop / BPTT, memory", 1 / 20, _memory(ALIF, PP_PROP, "BPTT")),
    *(
        Bar(
            f"online GRU: {a.split(' K')[0]} / braintrace {b.removesuffix(' default')}",
            1 / (4 if a == "d_rtrl K=1" else 2),
            _time(COSTLY if a[:4] in ("ostl", "uoro") else ONLINE, f"etrax {a}", f"braintrace {b}"),
        )
        for a, b in COUNTERPARTS.items()
    ),
    *(
        Bar(f"sparse LIF 131,072: pp_prop / braintrace{which}", 0.5, _time(LARGE, LEAN, f"{THEIRS} {how}"))
        for which, how in (("", "default"), (" windowed", "K=5"))
    ),
    *(
        Bar(
            f"sparse LIF 131,072: pp_prop / braintrace, {which}",
            1.0,
            _memory(LARGE, LEAN, f"{THEIRS} default", field),
        )
        for which, field in (("working memory", "working"), ("resident set", "resident"))
    ),
    Bar("sparse LIF 131,072: d_rtrl trace, floats per weight", 1.01, lambda rows: _floats(rows, "trace")),
    Bar("sparse LIF 131,072: d_rtrl all memory, floats per weight", 2.1, lambda rows: _floats(rows, "working")),
    *_growth(),
]


def judge(rows: Sequence[Row]) -> list[Found]:
    return [Found(bar.text, bar.limit, bar.measure(rows)) for bar in BARS]
