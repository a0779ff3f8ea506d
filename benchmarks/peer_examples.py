"""braintrace's own example scripts with the import line changed, or as they are: how well they learn.

    python -m benchmarks.peer_examples CHECKOUT etrax drtrl/07-operator-lora.py '{"n_epochs": 15, "plot": false}' 0 1 2
    python -m benchmarks.peer_examples CHECKOUT braintrace drtrl/07-operator-lora.py ...

CHECKOUT is a clone of that library's repository, then come the library that computes, a script of its `examples`, the
arguments of the script's `main`, and seeds. Prints the loss by seed, the mean of the last tenth of the epochs. With
`etrax` every line `import braintrace`, and no other, is changed in a copy of the examples.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

LINE = re.compile(r"^( *)import braintrace$", re.MULTILINE)
OTHER = r"\1import etrax.compat.braintrace as braintrace"


def copied(checkout: Path, folder: Path, library: str) -> Path:
    """The examples, with the import line of the library."""
    copy = Path(shutil.copytree(checkout / "examples", folder / "examples"))
    for file in copy.rglob("*.py") if library == "etrax" else ():
        file.write_text(LINE.sub(OTHER, file.read_text(encoding="utf-8")), encoding="utf-8")
    return copy


def run(script: Path, arguments: dict[str, object], seed: int) -> float:
    import brainstate
    import numpy as np

    brainstate.random.seed(seed)
    np.random.seed(seed)  # the examples draw from it
    losses = np.ravel(runpy.run_path(str(script), run_name="example")["main"](**arguments)["losses"])
    return float(losses[-max(1, len(losses) // 10) :].mean())


def main(argv: list[str]) -> None:
    checkout, library, name, arguments, *seeds = argv
    if library not in ("etrax", "braintrace"):
        raise SystemExit(f"the library is {library!r}; there are etrax and braintrace")
    os.environ.setdefault("MPLBACKEND", "Agg")
    with tempfile.TemporaryDirectory() as folder:
        examples = copied(Path(checkout), Path(folder), library)
        script = examples / name
        sys.path[:0] = [str(script.parent), str(examples)]
        found = [run(script, json.loads(arguments), int(seed)) for seed in seeds or ["0"]]
    print(f"{library:10} {name}  loss by seed: {' '.join(f'{loss:.3f}' for loss in found)}")


if __name__ == "__main__":
    main(sys.argv[1:])
