"""The figures of `docs/trust.md`, written between markers from the results that the scripts left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "trust.md"
RESULTS = {
    "fuzz": ROOT / "fuzz" / "results.json",
    "soak": ROOT / "trust" / "results" / "soak.json",
    "faults": ROOT / "trust" / "results" / "faults.json",
    "hostile": ROOT / "trust" / "results" / "hostile.json",
}


def _soak(found: dict[str, Any]) -> str:
    runs = found["runs"]
    rows = [
        f"| `{r['rule']}` | {r['dtype']} | {r['steps']:,} | {r['grown'] / 2**20:.1f} MB | {_yes(r['finite'])} "
        f"| {r['trace_error']:.1e} | {r['allowed_error']:.1e} |"
        for r in runs
    ]
    wrong = sum(bool(r["wrong"]) for r in runs)
    return "\n".join([
        f"{sum(r['steps'] for r in runs):,} steps in {len(runs)} streams, an update at each; {wrong} of them wrong.",
        "",
        "| rule | type | steps | memory gained | finite | trace off by | allowed |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ])  # fmt: skip


def _faults(found: dict[str, Any]) -> str:
    kills, disk, pair, files = (found[k] for k in ("kills", "full disk", "two processes", "damaged files"))
    by = ", ".join(f"{n} while {phase}" for phase, n in kills["by_phase"].items())
    small = "small tmpfs disks" if disk["by"] == "tmpfs" else f"cases of {disk['by']}"
    return "\n".join([
        "| fault | how often | found |",
        "|---|---|---|",
        f"| SIGKILL at a random moment ({by}) | {kills['kills']} kills in {kills['runs']} runs "
        f"| {kills['resumes']} resumes, all compared bit for bit: {len(kills['wrong'])} wrong, "
        f"{kills['epochs_lost']} saved epochs lost; {kills['unfinished']} half-written saves left behind, none used |",
        f"| full disk | {disk['sizes']} {small}, {disk['full']} of them too small | {len(disk['wrong'])} wrong |",
        f"| two processes in one directory | {pair['runs']} runs | {pair['refused']:,} attempts refused, "
        f"{len(pair['wrong'])} wrong |",
        f"| damaged files | {files['damages']} damages, every file in every way | {files['refused']} refused, "
        f"{files['harmless']} in bytes that nothing is read from, {len(files['wrong'])} wrong |",
    ])  # fmt: skip


READ = {
    "artifact": "artifacts (`etrax.load`)",
    "save": "saved values (`etrax.restore`)",
    "run": "checkpoints of a run (`Trainer.fit`)",
    "nir": "NIR files (`etrax.nir.read`)",
    "config": "configs (`etrax train`)",
}


def _hostile(found: dict[str, Any]) -> str:
    rows = [
        f"| {READ[kind]} | {f['files']:,} | {f['words']:,} | {f['right']:,} | {len(f['wrong'])} |"
        for kind, f in found.items()
    ]
    return "\n".join([
        f"{sum(f['files'] for f in found.values()):,} files; {sum(len(f['wrong']) for f in found.values())} wrong.",
        "",
        "| read as | files | refused in words | read correctly | wrong |",
        "|---|---|---|---|---|",
        *rows,
    ])  # fmt: skip


def _fuzz(found: dict[str, Any]) -> str:
    """Whatever numbers the fuzzer wrote at the top of its results, by the names it gave them."""
    shown = {k: v for k, v in found.items() if isinstance(v, int | float | str) and not isinstance(v, bool)}
    rows = [f"| {k.replace('_', ' ')} | {v:,} |" if isinstance(v, int) else f"| {k} | {v} |" for k, v in shown.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "fuzz": _fuzz, "soak": _soak, "faults": _faults, "hostile": _hostile,
}  # fmt: skip


def figures(name: str) -> str:
    path = RESULTS[name]
    if not path.exists():
        return f"Not run yet: `make {name}` writes `{path.relative_to(ROOT).as_posix()}`."
    return SECTIONS[name](json.loads(path.read_text(encoding="utf-8")))


def rendered(text: str) -> str:
    """The page with each section's figures as the results have them."""
    for name in SECTIONS:
        begin, end = f"<!-- {name}: written by trust/page.py -->", f"<!-- end of {name} -->"
        found = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        if not found.search(text):
            raise ValueError(f"{PAGE.name} has no place for the figures of {name!r}: {begin} … {end}")
        text = found.sub(lambda _, n=name, b=begin, e=end: f"{b}\n\n{figures(n)}\n\n{e}", text)
    return text


def write() -> None:
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
