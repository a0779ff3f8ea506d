"""Whether `learner.memory` says beforehand what a run takes: its peak against the rise of the resident set.

python -m benchmarks.memory     writes benchmarks/results/memory.json; each case in a process of its own
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
from benchmarks.workload import PLAIN, Workload, loss

import etrax
from benchmarks import gated, sparse, spiking

STORED = Path(__file__).parent / "results" / "memory.json"
# Name: workload, rule, steps, window.
CASES: dict[str, tuple[Callable[[], Workload], str, int, int]] = {
    "GRU 256, batch 16, d_rtrl": (partial(gated.gru, 16, 256), "d_rtrl", 1024, 64),
    "LSTM 256, batch 32, d_rtrl": (partial(gated.lstm, 32, 256), "d_rtrl", 128, 32),
    "ALIF 3 × 512, batch 32, pp_prop": (partial(spiking.alif, 32), "pp_prop", 500, 10),
    "sparse LIF 131,072, batch 32, pp_prop": (partial(sparse.sparse_lif, 32), "pp_prop", 6, 2),
    "sparse LIF 131,072, batch 32, d_rtrl": (partial(sparse.sparse_lif, 32), "d_rtrl", 6, 1),
}


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def one(name: str) -> dict[str, Any]:
    """Predicted, and measured from before the arguments exist to the highest mark of a run that is not the first: that
    one also pays for threads and libraries.
    """
    make, rule, steps, window = CASES[name]
    workload = make()
    shapes = jax.eval_shape(lambda: workload.data(steps))
    x = jax.ShapeDtypeStruct(shapes[0].shape[1:], shapes[0].dtype)
    step = partial(workload.step, PLAIN)
    learner = etrax.compile(step, rule, x, params=workload.params, hidden=workload.hidden)
    predicted = learner.memory(window, steps=steps)
    run = jax.jit(learner.value_and_grad(loss, window=window))
    program = run.lower(workload.params, jax.eval_shape(learner.init), *shapes).compile()
    rise = 0
    for _ in range(2):
        gc.collect()
        before = _status("VmRSS:")
        data = (jax.tree.map(lambda a: a + 0, workload.params), learner.init(), *workload.data(steps))
        args = jax.block_until_ready(data)  # of its own, so that all that a run holds is counted
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        jax.block_until_ready(program(*args))
        rise = _status("VmHWM:") - before
        del args, data
    return {"case": name, "predicted": predicted.peak, "measured": rise}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(one(sys.argv[1])))
        return
    found = []
    # What is freed goes back at once, so that the second run is seen.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    for name in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        row = found[-1]
        ratio = row["predicted"] / row["measured"]
        mib = {k: row[k] / 2**20 for k in ("predicted", "measured")}
        print(f"{name:42} predicted {mib['predicted']:8.1f} MiB, measured {mib['measured']:8.1f}: {ratio:.3f}")
    STORED.parent.mkdir(parents=True, exist_ok=True)
    STORED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
