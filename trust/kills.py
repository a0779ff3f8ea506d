"""A run that is killed again and again, at random moments, and goes on each time."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import runs
from .processes import Child, Say, apart

EPOCHS = 24  # of one run
PHASES = ("starting", "training", "saving")


@dataclass
class Kills:
    """What the loop found. `unfinished` counts the kills that left a half-written save."""

    kills: int = 0
    by_phase: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    resumes: int = 0
    runs: int = 0
    unfinished: int = 0
    epochs_lost: int = 0
    wrong: list[str] = field(default_factory=list)


class Life(Child):
    """One process that trains until it ends or is killed."""

    def __init__(self, seed: int, directory: Path):
        def train(say: Say) -> None:
            runs.told(say)
            say("end", runs.end_of(runs.fit(runs.make_trainer(), seed, EPOCHS, directory)))

        super().__init__(train)

    @property
    def phase(self) -> str:
        if not self.heard("loaded"):
            return "starting"
        return "saving" if self.said[-1][0] == "saving" else "training"

    @property
    def saved(self) -> int:
        return max((epoch for epoch, _ in self.heard("saved")), default=0)


def kill_loop(kills: int, directory: Path, seed: int, say: Callable[[str], None]) -> Kills:
    """Each finished run is held against one that was never stopped, and begins another one."""
    found, chance = Kills(), random.Random(seed)
    while found.kills < kills:
        run, saved = seed + found.runs, 0
        truth = runs.Truth(*apart(runs.plain_truth, run, EPOCHS))
        shutil.rmtree(directory, ignore_errors=True)
        killed = True
        while killed:
            life = Life(run, directory)
            killed = found.kills < kills and _kill(life, chance)
            life.close()
            _judge(found, truth, life, saved)
            saved = max(saved, life.saved)
            if killed:
                found.kills += 1
                found.by_phase[life.phase] += 1
                found.unfinished += any(directory.glob("*tmp*"))
                if found.kills % 20 == 0:
                    say(f"{found.kills} kills, {found.runs} runs finished, {len(found.wrong)} wrong")
        if [[truth.end]] != life.heard("end"):
            found.wrong.append(f"run {run} ended in other bits")
        found.runs += 1
    return found


def _kill(life: Life, chance: random.Random) -> bool:
    """At a random moment after some saves, half of them in a save; one in ten before the run has begun.

    False if the run ended before.
    """
    when, saves = chance.random(), chance.randrange(4)
    if when < 0.1:
        alive = life.listen(chance.uniform(0.0, 1.0))
    else:
        alive = life.until(lambda: life.phase != "starting" and len(life.heard("saved")) >= saves)
        if alive and when < 0.6:
            alive = life.until(lambda: life.phase == "saving")
        alive = alive and life.listen(chance.uniform(0.0, 0.4))
    if not alive or life.heard("end"):
        return False
    os.kill(life.pid, signal.SIGKILL)
    return True


def _judge(found: Kills, truth: runs.Truth, life: Life, saved: int) -> None:
    """Each life begins where the last one had come to, in the bits that the uninterrupted run had there."""
    for epoch, bits in life.heard("loaded"):
        found.resumes += epoch > 0
        if epoch < saved:
            found.epochs_lost += saved - epoch
            found.wrong.append(f"epoch {saved} was saved, and the next process began from {epoch}")
        if epoch and bits != truth.after[str(epoch)]:
            found.wrong.append(f"resumed after epoch {epoch} in other bits")
