"""How long until the first gradient: import, analysis, compilation; again with JAX's persistent compilation cache.

python -m benchmarks.startup     writes benchmarks/results/startup.json; each run a process of its own
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

STORED = Path(__file__).parent / "results" / "startup.json"


def one() -> dict[str, float]:
    """Seconds of each stage in this process, for a GRU of 256 units under `d_rtrl`."""
    start = time.perf_counter()
    import jax

    imported_jax = time.perf_counter()
    import etrax

    imported = time.perf_counter()
    from benchmarks.gated import gru
    from benchmarks.workload import PLAIN, loss

    workload = gru(16, 256)
    inputs, targets = jax.block_until_ready(workload.data(128))
    ready = time.perf_counter()
    step = partial(workload.step, PLAIN)
    learner = etrax.compile(step, "d_rtrl", inputs[0], params=workload.params, hidden=workload.hidden)
    state = jax.block_until_ready(learner.init())
    analysed = time.perf_counter()
    run = learner.value_and_grad(loss, window=64)
    jax.block_until_ready(run(workload.params, state, inputs, targets))
    first = time.perf_counter()
    jax.block_until_ready(run(workload.params, state, inputs, targets))
    second = time.perf_counter()
    return {
        "import jax": imported_jax - start,
        "import etrax": imported - imported_jax,
        "etrax.compile, init": analysed - ready,
        "first gradient": first - analysed,
        "second gradient": second - first,
    }


def main() -> None:
    if "--one" in sys.argv:
        print(json.dumps(one()))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        for name, more in (("no cache", {}), ("cache, empty", cache), ("cache, filled", cache)):
            command = [sys.executable, "-m", "benchmarks.startup", "--one"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **more})
            found[name] = json.loads(done.stdout.splitlines()[-1])
            print(f"{name:14}", ", ".join(f"{k} {v:.2f} s" for k, v in found[name].items()))
    STORED.parent.mkdir(parents=True, exist_ok=True)
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
