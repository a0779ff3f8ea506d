"""The code cells of braintrace's notebooks through `etrax.compat.braintrace`, and through that library as the control.

    python -m benchmarks.peer_notebooks CHECKOUT [--control] [-o cells.jsonl]

CHECKOUT is a clone of that library: its `docs` have the notebooks, of which nothing is copied into this repository. The
cells of a notebook run one after another in a process of their own, with our module in the place of theirs as in
`benchmarks.peer_suite`, also those after a cell that failed. Each leaves a line with its error.
`benchmarks.peer_page` puts the cells that fail on docs/peer_suite.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.peer_suite import CHECKOUT, CONTROL, install, private_name

SECONDS = 600  # for one cell


def cells_of(notebook: Path) -> list[str]:
    """The code cells without lines that are for the shell or for IPython."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return ["\n".join(line for line in text.split("\n") if not line.lstrip().startswith(("%", "!"))) for text in code]


def run(notebook: Path) -> None:
    """Run the cells in this process and print what became of each."""
    import matplotlib

    matplotlib.use("Agg")
    install()
    os.chdir(notebook.parent)
    space = {"__name__": "__main__"}
    signal.signal(signal.SIGALRM, _late)
    for number, text in enumerate(cells_of(notebook)):
        error: BaseException | None = None
        signal.alarm(SECONDS)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, f"{notebook.name}, cell {number}", "exec"), space)
        except (Exception, SystemExit) as raised:
            error = raised
        signal.alarm(0)
        row = {"notebook": notebook.name, "cell": number, "name": private_name(error) or "", "error": _said(error)}
        print(json.dumps(row), flush=True)


def _late(*_: object) -> None:
    raise TimeoutError(f"no end in {SECONDS} seconds")


def _said(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {str(error)[:600]}"


def main(argv: list[str]) -> int:
    checkout, *rest = argv
    os.environ[CHECKOUT] = str(Path(checkout).resolve())
    if rest[:1] == ["--control"]:
        os.environ[CONTROL], rest = "1", rest[1:]
    if rest[:1] == ["--notebook"]:  # the process of one notebook
        run(Path(rest[1]))
        return 0
    here = [sys.executable, "-W", "ignore", "-m", "benchmarks.peer_notebooks", checkout]
    for notebook in sorted(Path(checkout, "docs").resolve().rglob("*.ipynb")):
        done = subprocess.run([*here, "--notebook", str(notebook)], stdout=subprocess.PIPE, text=True, check=False)
        if rest[:1] == ["-o"]:
            with Path(rest[1]).open("a", encoding="utf-8") as file:
                file.write(done.stdout)
        failed = [row for row in map(json.loads, done.stdout.splitlines()) if row["error"]]
        print(notebook.name, [(row["cell"], row["error"][:80]) for row in failed], file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
