"""Draw, check, shrink and count, for a time or a number of models, in one or more processes."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import jax

from .cases import draw_cases
from .claims import Failure, check_model
from .coverage import CELLS, Cell, cells
from .evaluate import Evaluator
from .grammar import draw_model
from .report import script
from .shrink import same_failure, shrink
from .spec import mutable

SHRUNK = 3  # failures of one claim that are made short


@dataclass
class Totals:
    """Counts of a run."""

    models: int = 0
    runs: int = 0
    seconds: float = 0.0
    failures: list[tuple[int, Failure, str]] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    zeros: int = 0
    without_gradient: int = 0
    primitives: set[str] = field(default_factory=set)
    cells: set[Cell] = field(default_factory=set)

    def add(self, other: Totals) -> None:
        for name in ("models", "runs", "zeros", "without_gradient"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failures += other.failures
        self.refusals += other.refusals
        self.primitives |= other.primitives
        self.cells |= other.cells
        self.seconds = max(self.seconds, other.seconds)

    def __str__(self) -> str:
        lines = [
            f"{self.models} models, {self.runs} runs in {self.seconds:.0f} s, {len(self.failures)} failures, "
            f"{sum(self.refusals.values())} refusals",
            f"{len(self.primitives)} primitives: {' '.join(sorted(self.primitives))}",
            f"{len(self.cells)} of {CELLS} cells op × rule × structure",
            f"{self.without_gradient} runs whose gradient BPTT has not either",
            f"{self.zeros} parameters with a trace had no gradient yet, where BPTT has one",
        ]
        lines += [f"  refused {n} times: {text}" for text, n in self.refusals.most_common()]
        claims = Counter(failure.claim for _, failure, _ in self.failures)
        lines += [f"  failed {n} times: {claim}" for claim, n in claims.most_common()]
        return "\n".join(lines)


def run_seeds(
    first: int, step: int = 1, models: int | None = None, seconds: float | None = None, shrink_seconds: float = 60.0
) -> Totals:
    """Models of the seeds first, first + step, ... until their number or the time is used up."""
    jax.config.update("jax_enable_x64", True)
    start, totals, seen = time.monotonic(), Totals(), Counter[str]()
    seed = first
    gc.disable()  # there is much to look through and little to free; a sixth of the time
    while (models is None or totals.models < models) and (seconds is None or time.monotonic() - start < seconds):
        model, evaluator = draw_model(seed), Evaluator()
        cases = draw_cases(seed, model.batched, mutable(model))
        outcome = check_model(model, cases, evaluator)
        one = Totals(1, len(cases), zeros=outcome.zeros, without_gradient=outcome.without_gradient)
        totals.add(one)
        totals.refusals.update(refusal.message for refusal in outcome.refusals)
        totals.primitives |= evaluator.primitives
        totals.cells |= cells(model, cases)
        for failure in outcome.failures:
            seen[failure.claim] += 1
            text = ""
            if seen[failure.claim] <= SHRUNK and shrink_seconds:
                short, case = shrink(model, failure.case, same_failure(failure.claim), shrink_seconds)
                text = script(short, case, failure, seed)
            totals.failures.append((seed, failure, text))
            print(f"seed {seed}, {failure.case.rule}: {failure.claim}: {failure.detail[:200]}", flush=True)
        if totals.models % 50 == 0:
            jax.clear_caches()
            gc.collect()
        if totals.models % 250 == 0:
            print(f"{totals.models} models from seed {first}, {len(totals.failures)} failures", flush=True)
        seed += step
    gc.enable()
    totals.seconds = time.monotonic() - start
    return totals


def run(seed: int, models: int | None, seconds: float | None, workers: int, shrink_seconds: float = 60.0) -> Totals:
    """Spread the seeds over processes."""
    if workers == 1:
        return run_seeds(seed, 1, models, seconds, shrink_seconds)
    share = None if models is None else -(-models // workers)
    totals = Totals()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        parts = [pool.submit(run_seeds, seed + i, workers, share, seconds, shrink_seconds) for i in range(workers)]
        for part in parts:
            totals.add(part.result())
    return totals


def write_found(totals: Totals, folder: Path) -> list[Path]:
    """One program per failure that was made short."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for seed, _, text in totals.failures:
        if text:
            path = folder / f"model_{seed}.py"
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written
