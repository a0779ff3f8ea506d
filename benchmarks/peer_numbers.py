"""Where braintrace's tests hold frozen gradients: how far both libraries are from finite differences.

    python -m benchmarks.peer_numbers CHECKOUT [--control] > numbers.jsonl

CHECKOUT is as for `benchmarks.peer_suite`; `--control` computes with the library of the checkout. The models and rules
are those of the test with frozen numbers, in double precision and in windows shorter than the sequence. A line has the
relative error of each parameter's gradient against central differences of the loss of the whole sequence.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from benchmarks.peer_suite import CHECKOUT, CONTROL, install

GOLDEN = "braintrace._algorithm.tests.axis_golden_test"
STEP = 1e-5


def differences(model, inputs) -> dict:
    """The gradient of the summed squares of all outputs by central differences, by path."""
    import brainstate
    import jax.numpy as jnp
    import numpy as np

    brainstate.nn.init_all_states(model, batch_size=1)
    hidden = {path: state.value for path, state in model.states(brainstate.HiddenState).items()}
    params = model.states(brainstate.ParamState)
    start = {path: np.asarray(state.value) for path, state in params.items()}

    def loss(values):
        for path, state in params.items():
            state.value = values[path]
        for path, state in model.states(brainstate.HiddenState).items():
            state.value = hidden[path]
        return sum((model(x) ** 2).sum() for x in inputs)

    def slope(path, index):
        move = np.zeros_like(start[path])
        move[index] = STEP
        up, down = (loss(start | {path: jnp.asarray(start[path] + s * move)}) for s in (1, -1))
        return (up - down) / (2 * STEP)

    return {path: np.array([slope(path, i) for i in np.ndindex(a.shape)]).reshape(a.shape) for path, a in start.items()}


def main(argv: list[str]) -> None:
    import jax
    import numpy as np

    os.environ[CHECKOUT] = str(Path(argv[0]).resolve())
    if "--control" in argv:
        os.environ[CONTROL] = "1"
    jax.config.update("jax_enable_x64", True)
    install()
    golden = importlib.import_module(GOLDEN)
    for model, (spec, n_in, _) in golden.MODELS.items():
        whole = differences(spec().factory(), spec().make_inputs(golden.T, n_in, seed=0))
        for case in (*golden.PRESETS, *golden.PATH_CASES):
            found = golden.compute_case(model, case)
            errors = {}
            for path, want in whole.items():
                got = np.asarray(next(v for k, v in found.items() if k.split("|")[0] == ".".join(map(str, path))))
                errors[".".join(path)] = float(np.linalg.norm(got - want) / np.linalg.norm(want))
            print(json.dumps({"model": model, "rule": case, "errors": errors}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
