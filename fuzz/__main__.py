"""`python -m fuzz --seconds 120`: random models against BPTT; exit code 1 on a failure."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Failures are repeated with XLA: many small programs, each run once.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")


def main(arguments: list[str] | None = None) -> int:
    from .results import Run, keep
    from .run import run, write_found

    today = int(datetime.date.today().strftime("%Y%m%d")) * 1_000_000
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=None, help="how long (120 unless --models is given)")
    parser.add_argument("--models", type=int, default=None, help="how many models")
    parser.add_argument("--seed", type=int, default=today, help="first seed; by default one of the day")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to make one failure short; 0 for none")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "found", help="folder of reproducers")
    parser.add_argument("--results", type=Path, default=None, help="add the counts to this file, for docs/trust.md")
    given = parser.parse_args(arguments)
    seconds = 120.0 if given.seconds is None and given.models is None else given.seconds
    totals = run(given.seed, given.models, seconds, given.workers, given.shrink)
    print(f"seed {given.seed}")
    print(totals)
    for path in write_found(totals, given.out):
        print(path)
    if given.results is not None:
        keep(
            Run(
                given.seed, totals.models, totals.runs, len(totals.failures), sum(totals.refusals.values()),
                len(totals.primitives), len(totals.cells),
            ),
            given.results,
        )  # fmt: skip
    return 1 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
