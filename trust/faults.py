"""`make faults`: kills, a full disk, two processes in one directory, damaged files; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few cases of each fault, to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        # One compile serves every process, and gives all of them the same machine code.
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(Path(place) / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        found = _all(options.kills, options.seed, options.quick, Path(place))
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 1 if any(part["wrong"] for part in found.values()) else 0


def _all(kills: int, seed: int, quick: bool, place: Path) -> dict[str, Any]:
    import orbax.checkpoint  # noqa: F401  # here, so that no forked process has to import it

    from . import disk
    from .kills import kill_loop
    from .processes import apart
    from .rivals import two_processes

    kinds, sizes = list(disk.DAMAGES), list(range(24, 400, 16))
    kinds, sizes = (kinds[1:2], sizes[::8]) if quick else (kinds, sizes)
    found = {}
    _say("damaged files")
    found["damaged files"] = apart(disk.damaged, place / "damaged", kinds)
    _say("full disk")
    found["full disk"] = apart(disk.full, place / "disk", sizes)
    _say("two processes")
    found["two processes"] = asdict(two_processes(place / "shared", 1 if quick else 10))
    _say("kills")
    found["kills"] = asdict(kill_loop(kills, place / "run", seed, _say))
    return found


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
