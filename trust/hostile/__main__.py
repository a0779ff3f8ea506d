"""`make hostile FILES=10000`: make and feed files of every kind; words or right answers only."""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .worker import KINDS

RESULTS = Path(__file__).parents[1] / "results"
SHARES = {"artifact": 0.3, "save": 0.1, "run": 0.1, "nir": 0.3, "config": 0.2}
STARTING = 300.0  # seconds that a process may take to its first file
SILENCE = 60.0  # seconds after which a process is taken to hang
ROOT = Path(__file__).parents[2]


@dataclass
class Fed:
    """Files of one kind: refused in words, read correctly, or wrong, each wrong one with its number and what it was."""

    files: int = 0
    words: int = 0
    right: int = 0
    wrong: list[str] = field(default_factory=list)


def feed(kind: str, count: int, seed: int) -> Fed:
    """In a process that is started anew behind a file that ended it."""
    found, start = Fed(), 0
    while start < count:
        start = _one_process(kind, seed, start, count, found)
    return found


def _one_process(kind: str, seed: int, start: int, stop: int, found: Fed) -> int:
    command = [sys.executable, "-m", "trust.hostile.worker", kind, str(seed), str(start), str(stop)]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, bufsize=0) as process,
    ):
        number = start - 1
        while line := _heard(process, STARTING if number < start else SILENCE):
            said = json.loads(line)
            number = said[1]
            if said[0] == "end":
                _count(found, kind, said)
                if number == stop - 1:
                    return stop
        process.kill()
        if number < start:
            log.seek(0)
            raise RuntimeError(f"the process for {kind} ended before its first file:\n{log.read().decode()[-3000:]}")
        found.files += 1
        found.wrong.append(f"{kind} {seed}:{number}: the process ended ({process.wait()}) or hung")
        return number + 1


def _heard(process: subprocess.Popen[bytes], patience: float) -> bytes:
    """The next line; nothing if the process has ended, or says nothing for long.

    Waited for in parts, of which those do not count in which somebody has stopped the process (SIGSTOP): that is no
    hang.
    """
    assert process.stdout is not None
    left = 4
    while left:
        if select.select([process.stdout], [], [], patience / 4)[0]:
            return process.stdout.readline()
        left -= not _is_stopped(process.pid)
    return b""


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # not on this system
        return False


def _count(found: Fed, kind: str, said: list[str]) -> None:
    _, number, came, what, wrong = said
    found.files += 1
    if came == "wrong":
        found.wrong.append(f"{kind} {number}, {what}: {wrong}")
        print(found.wrong[-1], flush=True)
    else:
        setattr(found, came, getattr(found, came) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trust.hostile", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--out", type=Path, default=RESULTS / "hostile.json")
    options = parser.parse_args()
    found = {}
    for kind in options.kinds:
        began = time.monotonic()
        count = max(1, round(options.files * SHARES[kind] / sum(SHARES[k] for k in options.kinds)))
        found[kind] = asdict(feed(kind, count, options.seed))
        shown = {k: v if isinstance(v, int) else len(v) for k, v in found[kind].items()}
        print(f"{kind}: {shown} in {time.monotonic() - began:.0f} s", flush=True)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if any(part["wrong"] for part in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
