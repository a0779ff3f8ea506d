"""docs/peer_suite.md from the results of `benchmarks.peer_suite` and `benchmarks.peer_numbers`.

    python -m benchmarks.peer_page FOLDER

FOLDER holds, by version of braintrace, `ours-VERSION.jsonl` and `control-VERSION.jsonl` (what the suite wrote; the
control has at least what it collected), and `numbers-ours-VERSION.jsonl`, `numbers-control-VERSION.jsonl`; and
`notebooks-ours-VERSION.jsonl`, `notebooks-control-VERSION.jsonl` of `benchmarks.peer_notebooks`. The last result
of a test counts; a file `note.md` there says how the runs were made. Every collected test is on the page; a test
that fails without a judgement (benchmarks/peer_judgements.toml) is named there as such, and makes the command fail.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "peer_suite.md"
HEAD = """# The tests of braintrace, through Etrax

`python -m benchmarks.peer_suite CHECKOUT` runs the tests of braintrace with `etrax.compat.braintrace` in the place of
it; with `--control` it runs the library of the checkout itself. `python -m benchmarks.peer_page` makes this page of
what they found. Nothing of braintrace is part of this repository, and nothing of this is part of `make test`.

Every test that the control collects is accounted for:

"""
ROWS = {
    "collected": "collected",
    "passed": "passed",
    "failed": "failed, with a judgement below",
    "private": "use of a private name",
    "unimported": "in a file that cannot be imported without private names",
    "skipped": "skipped or expected to fail by the test itself",
    "deselected": "left out by the suite's own settings (`diagnostic`)",
    "not run": "no result",
}


class Row(TypedDict):
    """What a run noted of a test; `name` is the private name that it used."""

    test: str
    outcome: str
    name: str
    error: str


def load(file: Path) -> dict[str, Row]:
    """The last result of each test."""
    found: dict[str, Row] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["outcome"] != "collected" or row["test"] not in found:
            found[row["test"]] = row
    return found


def judgements() -> list[dict]:
    return tomllib.loads((HERE / "peer_judgements.toml").read_text(encoding="utf-8"))["judgement"]


def judge(test: str) -> str:
    """The title of the judgement whose longest beginning fits."""
    fits = [(len(start), one["title"]) for one in judgements() for start in one["tests"] if test.startswith(start)]
    return max(fits)[1] if fits else "Not judged"


class Suite:
    """The results of one version."""

    def __init__(self, folder: Path, version: str):
        self.version = version
        self.ours, self.control = (load(folder / f"{kind}-{version}.jsonl") for kind in ("ours", "control"))

    def outcome(self, test: str) -> str:
        row = self.ours.get(test)
        if self.control[test]["outcome"] == "deselected":
            return "deselected"
        if row is None:
            file = self.ours.get(test.split("::")[0])
            if file is not None and file["outcome"] == "uncollected":
                return "unimported"
            # A test over private objects has other parameters in its name here.
            same = {r["outcome"] for name, r in self.ours.items() if name.split("[")[0] == test.split("[")[0]}
            return "private" if same == {"private"} else "not run"
        return {"xfailed": "skipped", "xpassed": "skipped", "collected": "not run"}.get(row["outcome"], row["outcome"])

    def tests(self, outcome: str) -> list[str]:
        return [t for t in self.control if self.outcome(t) == outcome]

    def counts(self) -> Counter[str]:
        return Counter(map(self.outcome, self.control)) + Counter(collected=len(self.control))

    def controlled(self) -> tuple[int, int]:
        """Of the tests that fail here: how many the control ran, and how many of these it passed."""
        found = [self.control[t]["outcome"] for t in self.tests("failed")]
        ran = [o for o in found if o not in ("collected", "deselected")]
        return len(ran), ran.count("passed")


def names(tests: Iterable[str]) -> str:
    """Tests by file, one line a file."""
    by_file: dict[str, list[str]] = {}
    for test in sorted(tests):
        file, *rest = test.split("::")
        by_file.setdefault(file, []).append("::".join(rest))
    return "".join(f"- `{file}`: {', '.join(f'`{n}`' for n in found)}\n" for file, found in by_file.items())


def table(suites: list[Suite]) -> str:
    counts = [s.counts() for s in suites]
    lines = ["| | " + " | ".join(s.version for s in suites) + " |", "|---|" + "---|" * len(suites)]
    lines += [f"| {text} | " + " | ".join(str(c[key]) for c in counts) + " |" for key, text in ROWS.items()]
    return "\n".join(lines) + "\n"


def control_text(suites: list[Suite]) -> str:
    said = []
    for s in suites:
        ran, passed = s.controlled()
        whole = sum(r["outcome"] not in ("collected", "deselected") for r in s.control.values())
        said.append(
            f"Of the tests of {s.version} that fail here the library itself ran {ran} and passed {passed} "
            f"({whole} tests of the control ran in all)."
        )
    return "\n".join(said) + "\n"


def numbers_text(folder: Path, versions: list[str]) -> str:
    """Errors against finite differences, of both libraries."""
    version = next((v for v in reversed(versions) if (folder / f"numbers-ours-{v}.jsonl").exists()), None)
    if version is None:
        return ""
    both = [
        [json.loads(line) for line in (folder / f"numbers-{kind}-{version}.jsonl").read_text().splitlines()]
        for kind in ("ours", "control")
    ]
    lines = [
        f"\n## Where numbers differ\n\nRelative errors of gradients against central differences of the loss of the "
        f"whole sequence (`benchmarks.peer_numbers`, double precision, version {version}), for the models and rules of "
        "the test with frozen numbers, in windows of two or three steps out of eight (`singlestep`: one):\n",
        "| model | rule | parameter | Etrax | braintrace |",
        "|---|---|---|---|---|",
    ]
    for ours, theirs in zip(*both, strict=True):
        for name, error in ours["errors"].items():
            other = theirs["errors"][name]
            lines.append(f"| {ours['model']} | {ours['rule']} | {name} | {error:.2g} | {other:.2g} |")
    return "\n".join(lines) + "\n"


def judged_text(suites: list[Suite]) -> tuple[str, int]:
    """The judgements with their tests, and the number of tests that have none."""
    tests: dict[str, dict[str, list[str]]] = {}
    for s in suites:
        for test in s.tests("failed"):
            tests.setdefault(judge(test), {}).setdefault(test, []).append(s.version)
    known = {one["title"]: one for one in judgements()}
    order = sorted(tests, key=lambda title: -len(tests[title]))
    text = "\n## Judgements\n\n| | verdict | " + " | ".join(s.version for s in suites) + " |\n"
    text += "|---|---|" + "---|" * len(suites) + "\n"
    for title in order:
        by = [sum(s.version in versions for versions in tests[title].values()) for s in suites]
        text += f"| {title} | {known.get(title, {}).get('verdict', '')} | {' | '.join(map(str, by))} |\n"
    text += "\n*served*: more is possible here than the test expects; *other*: the same is had in another way; "
    text += "*lacking*: it is not here.\n"
    for title in order:
        why = known.get(title, {}).get("why", "Nobody has read these yet.")
        text += f"\n### {title}\n\n{why}\n\n{names(tests[title])}"
    return text, len(tests.get("Not judged", ()))


def private_text(suites: list[Suite]) -> str:
    """Files with tests of private names, and the names."""
    suite = suites[-1]
    by_file: dict[str, Counter[str]] = {}
    for test in suite.tests("private"):
        row = suite.ours.get(test)
        name = "(a parameter of the test)" if row is None else row["name"].split(".")[-1]
        by_file.setdefault(test.split("::")[0], Counter())[name] += 1
    for test in suite.tests("unimported"):
        by_file.setdefault(test.split("::")[0], Counter())["(the file)"] += 1
    lines = [f"\n## Private names\n\nBy file of {suite.version}, the tests that stop at a name that is not public:\n"]
    lines += ["| file | tests | names |", "|---|---|---|"]
    for file, found in sorted(by_file.items()):
        shown = ", ".join(f"`{name}` {count}" for name, count in found.most_common())
        lines.append(f"| `{file}` | {found.total()} | {shown} |")
    return "\n".join(lines) + "\n"


class Cell(TypedDict):
    """What became of a notebook's cell; `name` is the private name that it used."""

    notebook: str
    cell: int
    name: str
    error: str


def cells(file: Path) -> list[Cell]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def notebooks_text(folder: Path) -> str:
    """The cells of notebooks that do not run, and why; of those that the library itself fails in, how many."""
    text = ""
    for file in sorted(folder.glob("notebooks-ours-*.jsonl")):
        version = file.stem.removeprefix("notebooks-ours-")
        ours, control = cells(file), cells(folder / f"notebooks-control-{version}.jsonl")
        there = {(row["notebook"], row["cell"]) for row in control if row["error"]}
        failed = [row for row in ours if row["error"]]
        both = [row for row in failed if (row["notebook"], row["cell"]) in there]
        text += f"\n## Notebooks\n\nOf {len(ours)} code cells in the notebooks of version {version} "
        text += f"(`benchmarks.peer_notebooks`) {len(ours) - len(failed)} run. "
        text += (
            f"In the notebooks of the others the library itself fails in {len(there)} cells, of which {len(both)} are "
        )
        text += "among them. The rest:\n\n"
        text += "| notebook | cell | why |\n|---|---|---|\n"
        for row in failed:
            if row not in both:
                text += f"| `{row['notebook']}` | {row['cell']} | {cell_reason(row)} |\n"
    return text


def cell_reason(row: Cell) -> str:
    """Why a cell does not run here: the judgement of it, or the private name that it uses."""
    judged = tomllib.loads((HERE / "peer_judgements.toml").read_text(encoding="utf-8"))["cells"]
    why = judged.get(f"{row['notebook']}:{row['cell']}")
    return why or (f"private name `{row['name'].split('.')[-1]}`" if row["name"] else "Nobody has read this yet.")


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    versions = sorted(f.stem.removeprefix("ours-") for f in folder.glob("ours-*.jsonl"))
    suites = [Suite(folder, version) for version in versions]
    judged, unjudged = judged_text(suites)
    note = folder / "note.md"
    said = f"\n{note.read_text(encoding='utf-8').strip()}\n" if note.exists() else ""
    parts = [HEAD, table(suites), "\n", control_text(suites), said, numbers_text(folder, versions), judged]
    parts += [private_text(suites), notebooks_text(folder)]
    PAGE.write_text("".join(parts), encoding="utf-8")
    print(f"{PAGE}: {unjudged} tests without a judgement")
    return unjudged > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
