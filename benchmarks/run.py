"""Run the benchmarks.

python -m benchmarks.run                 all cases of default size; writes benchmarks/results
python -m benchmarks.run gru alif        cases whose names begin so; writes nothing
python -m benchmarks.run --size full     every size
python -m benchmarks.run --check         Etrax against the stored ratios; fails on a loss of more than a fifth
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
from benchmarks.bars import judge
from benchmarks.check import confirmed, without_peers
from benchmarks.harness import Case, Row, measure
from benchmarks.machine import Machine, measure_machine
from benchmarks.plots import draw
from benchmarks.suite import suite
from benchmarks.tables import bar_lines, case_lines, load, save

import etrax
from benchmarks import page, peer

RESULTS = Path(__file__).parent / "results"


def measured(case: Case, machine: Machine, most: int = 9) -> list[Row]:
    """One case, printed; what it leaves behind is dropped before the next."""
    rows = measure(case, machine, most)
    print("\n".join(case_lines(rows)), flush=True)
    jax.clear_caches()
    gc.collect()
    return rows


def check(cases: Sequence[Case], machine: Machine, stored: Path) -> int:
    before, lost = load(stored), []
    for case in without_peers(cases, {row.case for row in before}):
        _, found = confirmed(case, before, partial(measured, machine=machine))
        lost += found
    print(f"\n{len(lost)} lost more than a fifth against {stored.name}", *lost, sep="\n  ")
    return 1 if lost else 0


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Etrax against jax.grad, a hand-written recursion and braintrace.")
    parser.add_argument("cases", nargs="*", help="beginnings of the names of cases; all by default")
    parser.add_argument("--size", choices=("quick", "default", "full"), default="default")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="the same as --size quick")
    parser.add_argument("--check", action="store_true", help="compare with the stored ratios")
    parser.add_argument("--store", action="store_true", help="keep the results of these cases beside what is stored")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where results are stored")
    return parser.parse_args(given)


def store(path: Path, machine: Machine, rows: Sequence[Row]) -> None:
    """Rows of other cases stay: ratios are within a case, and a case is measured in one go."""
    cases = {row.case for row in rows}
    others = [row for row in load(path) if row.case not in cases] if path.exists() else []
    every = [*others, *rows]
    save(path, machine, every, judge(every))
    draw(every, path.with_suffix(".png"))
    if path == page.STORED:
        page.write()


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    warnings.simplefilter("ignore", etrax.RuleWarning)
    warnings.filterwarnings("ignore", module="braintrace")
    start = time.perf_counter()
    machine = measure_machine(512, 1 << 20, 3) if options.size == "quick" else measure_machine()
    print(f"matrix product {machine.flops / 1e9:.0f} GFlop/s, memory {machine.bandwidth / 1e9:.1f} GB/s")
    print(", ".join(f"{k} {v}" for k, v in machine.about.items()))
    cases = [c for c in suite(options.size) if not options.cases or c.name.startswith(tuple(options.cases))]
    stored = options.out / f"{options.size}.json"
    if options.check and not stored.is_file():
        print(f"There are no stored ratios in {stored.name}: run `make bench` on a quiet machine first.")
        return 2
    if options.check:
        return check(cases, machine, stored)
    if not peer.present():
        print(peer.NEEDED)
    most = 1 if options.size == "quick" else 9
    rows = [row for case in cases for row in measured(case, machine, most)]
    if options.size == "quick":
        print(
            "\nThese are toy sizes, to see that it runs: the bars hold for the sizes of `make bench`, which judges "
            "them."
        )
    else:
        print("\n".join(bar_lines([bar for bar in judge(rows) if bar.met is not None or not options.cases])))
    print(f"\n{time.perf_counter() - start:.0f} s")
    if options.store or (not options.cases and options.size != "quick"):
        store(stored, machine, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
