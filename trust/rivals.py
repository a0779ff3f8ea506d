"""Two processes that train in one checkpoint directory."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from etrax.train import CheckpointError

from . import runs
from .kills import EPOCHS, Life
from .processes import Child, Say, apart

REFUSALS = 5  # that are waited for before the first process is killed


@dataclass
class Rivals:
    """`refused` counts attempts that were told that the directory is in use."""

    runs: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def two_processes(directory: Path, count: int) -> Rivals:
    """The second one is refused while the first one runs, and goes on from where it was once that one was killed.

    In every other run both begin at once, and nobody is killed: one of them does the work.
    """
    found = Rivals()
    for seed in range(count):
        shutil.rmtree(directory, ignore_errors=True)
        truth = runs.Truth(*apart(runs.plain_truth, seed, EPOCHS))
        ends = _one_is_killed(directory, seed, found) if seed % 2 == 0 else _both_at_once(directory, seed, found)
        found.wrong += [f"run {seed} ended in other bits" for end in ends if end != truth.end]
        found.wrong += [] if ends else [f"run {seed} never ended"]
        found.runs += 1
    return found


def _attempts(directory: Path, seed: int, begin: Path | None = None) -> Child:
    """A process that tries until it is let in, once the file `begin` exists."""

    def work(say: Say) -> None:
        trainer = runs.make_trainer()
        while begin is not None and not begin.exists():
            time.sleep(0.02)
        while True:
            try:
                say("end", runs.end_of(runs.fit(trainer, seed, EPOCHS, directory)))
                return
            except CheckpointError as error:
                if "is in use by another run" not in str(error):
                    raise
                say("refused")
                time.sleep(0.02)

    return Child(work)


def _one_is_killed(directory: Path, seed: int, found: Rivals) -> list[str]:
    begin = directory.with_name(f"begin {seed}")
    second, first = _attempts(directory, seed, begin), Life(seed, directory)
    first.until(lambda: first.saved > 1)
    begin.touch()
    second.until(lambda: len(second.heard("refused")) >= REFUSALS)
    os.kill(first.pid, signal.SIGKILL)
    first.close()
    second.close()
    if not second.heard("refused"):
        found.wrong.append(f"run {seed}: the second process was let in")
    found.refused += len(second.heard("refused"))
    return [end for (end,) in second.heard("end")]


def _both_at_once(directory: Path, seed: int, found: Rivals) -> list[str]:
    both = [_attempts(directory, seed) for _ in range(2)]
    for one in both:
        one.close()
        found.refused += len(one.heard("refused"))
    return [end for one in both for (end,) in one.heard("end")]
