"""A process that makes and feeds files of one kind, and says of each what came of it.

Everything that a file can do to a process is seen from outside: an end, a silence. Memory is seen from inside, by the
highest resident set since the file was begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import etrax

MEMORY = 600 << 20  # bytes that one file may take
SECONDS = 20.0  # of computing: the machine may be busy with something else
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
KINDS = ("artifact", "save", "run", "nir", "config")


def kind_of(name: str, place: Path) -> Any:
    from . import artifacts, checkpoints, configs, graphs

    made = {"artifact": artifacts.Artifacts, "save": checkpoints.Saves, "run": checkpoints.Runs, "nir": graphs.Graphs,
            "config": configs.Configs}  # fmt: skip
    return made[name](place)


def outcome(kind: Any, seed: tuple[int, int]) -> tuple[str, str, str]:
    """`words`, `right` or `wrong`; what was fed, and what is wrong about it."""
    what, feed = kind.attempt(np.random.default_rng(seed))
    _forget_peak()
    before, began = _peak(), time.process_time()
    try:
        wrong, came = feed(), "right"
    except etrax.EtraxError as error:
        wrong, came = _unclear(str(error)), "words"
    except Exception as error:
        wrong, came = f"{type(error).__name__}: {str(error)[:300]}", "wrong"
    if wrong is None and _peak() - before > MEMORY:
        wrong = f"took {(_peak() - before) >> 20} MB"
    if wrong is None and time.process_time() - began > SECONDS:
        wrong = f"took {time.process_time() - began:.0f} s"
    return ("wrong" if wrong else came), what, wrong or ""


def _unclear(text: str) -> str | None:
    """An error is short, and shows nothing that a terminal would obey."""
    if not text or len(text) > 4000 or OBEYED.search(text) or "Traceback" in text:
        return f"an error that is no sentence: {text[:300]!a}"
    return None


def _forget_peak() -> None:
    with contextlib.suppress(OSError):  # not on this system: the peak is then that of the process
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        return int(found[1]) << 10 if found else 0
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    name, seed, start, stop = sys.argv[1], *map(int, sys.argv[2:5])
    warnings.simplefilter("ignore")
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is none of the protocol
    with tempfile.TemporaryDirectory() as place:
        kind = kind_of(name, Path(place))
        for _ in range(3):  # what is compiled and imported once is no file's own
            outcome(kind, (seed, 2**31))
        used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]
        resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), used + (6 << 30)))
        for number in range(start, stop):
            say.write(json.dumps(["begin", number]) + "\n")
            say.write(json.dumps(["end", number, *outcome(kind, (seed, number))]) + "\n")
        os.chdir("/")


if __name__ == "__main__":
    main()
