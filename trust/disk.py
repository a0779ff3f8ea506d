"""A disk that is full, and files that are not what was written."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etrax.train import CheckpointError

from . import runs

EPOCHS = 6


@dataclass
class Disk:
    """`by` says how the disk was made small, `full` how often a save failed for it."""

    by: str = "tmpfs"
    sizes: int = 0
    full: int = 0
    wrong: list[str] = field(default_factory=list)


def full(place: Path, sizes: list[int]) -> dict[str, Any]:
    """Disks of several sizes (KiB): the run ends in an error of ours, and goes on once there is room."""
    trainer = runs.make_trainer()
    truth, found = runs.truth(trainer, 0, EPOCHS), Disk()
    place.mkdir()
    for size in sizes:
        found.sizes += 1
        with _small(place, size, found) as enlarge:
            saved: list[int] = []
            try:
                result = runs.fit(trainer, 0, EPOCHS, place / "run", callback=lambda e, s=saved: s.append(e.epoch))
            except CheckpointError as error:
                found.full += 1
                if error.result is not None and error.result.reason != "unsaved":
                    found.wrong.append(f"{size} KiB: the error has lost what the run had reached")
                if any((place / "run").glob("*tmp*")):
                    found.wrong.append(f"{size} KiB: a failed save keeps its room")
                enlarge()
                again: list[int] = []
                result = runs.fit(trainer, 0, EPOCHS, place / "run", callback=lambda e, s=again: s.append(e.epoch))
                if saved and again[0] != saved[-1] + 1:
                    found.wrong.append(f"{size} KiB: epoch {saved[-1]} was saved, the run went on with {again[0]}")
            if runs.end_of(result) != truth.end:
                found.wrong.append(f"{size} KiB: other bits")
    return vars(found)


@contextlib.contextmanager
def _small(place: Path, size: int, found: Disk) -> Iterator[Callable[[], None]]:
    """A file system of so many KiB, or, where nothing may be mounted, a limit on the size of each file in bytes."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        finally:
            subprocess.run(["umount", str(place)], check=True)
        return
    found.by = "a limit on the size of files"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        shutil.rmtree(place / "run", ignore_errors=True)


@dataclass
class Damaged:
    """Each damage was refused, or is in a byte that nothing is read from: the run then ends in the right bits."""

    damages: int = 0
    refused: int = 0
    harmless: int = 0
    wrong: list[str] = field(default_factory=list)


def _flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[int(at * (len(data) - 1))] ^= 0x10
    path.write_bytes(data)


def _link(path: Path) -> None:
    outside = path.with_name(f"{path.name}.moved")
    path.rename(outside)
    path.symlink_to(outside)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped near its begin": lambda path: _flip(path, 0.1),
    "flipped in the middle": lambda path: _flip(path, 0.5),
    "flipped at its end": lambda path: _flip(path, 1.0),
    "gone": lambda path: path.unlink(),
    "a link": _link,
    "huge": lambda path: os.truncate(path, 1 << 40),
}
ALWAYS_REFUSED = ("a link", "huge")


def damaged(place: Path, kinds: list[str]) -> dict[str, Any]:
    """Every file of a checkpoint, damaged in every way."""
    trainer = runs.make_trainer()
    truth, found = runs.truth(trainer, 0, EPOCHS), Damaged()
    whole, broken = place / "whole", place / "broken"
    runs.fit(trainer, 0, EPOCHS - 1, whole)
    last = whole / str(EPOCHS - 1)
    for path in sorted(p.relative_to(whole) for p in last.rglob("*") if p.is_file()):
        for kind in kinds:
            shutil.rmtree(broken, ignore_errors=True)
            shutil.copytree(whole, broken)
            DAMAGES[kind](broken / path)
            found.damages += 1
            try:
                end = runs.end_of(runs.fit(trainer, 0, EPOCHS, broken))
            except CheckpointError:
                found.refused += 1
                continue
            found.harmless += 1
            if end != truth.end or kind in ALWAYS_REFUSED:
                found.wrong.append(f"{path}, {kind}: used")
    return vars(found)
