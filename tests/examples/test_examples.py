"""Every example runs on tiny settings and does what it says."""

import importlib
import io
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

EXAMPLES = sorted(p.stem for p in Path("examples").glob("*.py"))
# name: tiny settings, and what must hold of what `main` returns
CHECKS = {
    "first_learner": ({"steps": 40, "epochs": 4, "file": io.BytesIO()}, lambda found: found[-1] < found[0]),
    "online_updates": ({"steps": 800, "file": io.BytesIO()}, lambda parts: parts[3] < parts[0]),
    "fft_convolution": (
        {"steps": 20, "places": 6, "file": io.BytesIO()},
        lambda table: all(row.verdict.kind == "exact" for row in table.rows),
    ),
    "lru": (
        {"steps": 40, "width": 6, "file": io.BytesIO()},
        lambda table: all(row.verdict.kind == "exact" for row in table.rows),
    ),
    "verify_your_model": (
        {"steps": 20, "width": 6, "file": io.BytesIO()},
        lambda tables: set(tables) == {"tbptt", "d_rtrl", "rtrl"},
    ),
    "evidence": (
        {"size": 80, "epochs": 1, "batch": 16, "width": 12, "file": io.BytesIO()},
        lambda found: 0 <= found["accuracy"] <= 1,
    ),
    "flax_nnx": ({"steps": 300, "width": 8, "batch": 4, "file": io.BytesIO()}, lambda parts: parts[-1] < parts[0]),
    "nnx_style": (
        {"steps": 200, "width": 8, "batch": 8, "delay": 1, "file": io.BytesIO()},
        lambda parts: parts[-1] < parts[0],
    ),
    "flax_linen": (
        {"steps": 300, "width": 8, "batch": 8, "delay": 1, "file": io.BytesIO()},
        lambda found: all(parts[-1] < parts[0] for parts in found.values()),
    ),
    "braintrace_compat": (
        {"steps": 150, "width": 6, "batch": 8, "delay": 1, "file": io.BytesIO()},
        lambda found: set(found) == {"D_RTRL", "SnAp"} and all(parts[-1] < parts[0] for parts in found.values()),
    ),
    "equinox_lstm": (
        {"steps": 10, "width": 4, "epochs": 8, "file": io.BytesIO()},
        lambda found: all(b < a for a, b in found.values()),
    ),
    "streaming_rl": (
        {"corridor": 2, "steps": 3000, "seeds": 2, "file": io.BytesIO()},
        lambda found: found["d_rtrl"].min() > 0.9 > found["tbptt"].mean(),
    ),
    "streaming_memory": (
        {"steps": 10_000, "file": io.BytesIO()},
        lambda found: min(found.values()) > 0.9,
    ),
    "meta_step_sizes": ({"steps": 1500, "file": io.BytesIO()}, lambda found: found["exact"] > 1.3),
    "reading": ({"symbols": 2001, "width": 16, "parts": 4, "file": io.BytesIO()}, lambda bits: bits[-1] < bits[0]),
    "reward": (
        {"steps": 600, "batch": 8, "units": 4, "file": io.BytesIO()},
        lambda found: found["a signal for each unit"][1] < 0.8 * found["a signal for each unit"][0],
    ),
    "ei_network": (
        {"steps": 400, "batch": 4, "units": 10, "file": io.BytesIO()},
        lambda found: (found[1][:8] >= 0).all() and (found[1][8:] <= 0).all() and found[0][-1] < found[0][0],
    ),
    "conv_snn": (
        {"folder": "nowhere", "size": 200, "epochs": 1, "batch": 10, "channels": (4, 8), "file": io.BytesIO()},
        lambda found: np.mean(found[0][-5:]) < np.mean(found[0][:5]),
    ),
    "stream_threads": (
        {"samples": 400, "rate": 1000, "file": io.BytesIO()},
        lambda report: (
            len(report["delays"]) == 400
            and len(report["updates"]) + report["left out"] == 400
            and np.median(report["delays"]) < 0.2
        ),
    ),
    "stream_asyncio": (
        {"samples": 400, "rate": 1000, "file": io.BytesIO()},
        lambda report: len(report["delays"]) == len(report["updates"]) == 400 and np.median(report["delays"]) < 0.2,
    ),
    "artifact": ({"steps": 60, "width": 6, "file": io.BytesIO()}, lambda found: found[1] and len(found[0]) == 60),
    "brainstate_style": (
        {"steps": 100, "width": 6, "batch": 4, "file": io.BytesIO()},
        lambda parts: parts[-1] < parts[0],
    ),
    "own_rule": (
        {"steps": 20, "width": 6, "file": io.BytesIO()},
        lambda found: 0.99 < found["w"][-1] <= 1.001 and found["w"][-1] > found["w"][0],
    ),
    "large_sparse": (
        {"neurons": 60, "synapses": 4, "steps": 100, "file": io.BytesIO()},
        lambda errors: errors[-1] < errors[0],
    ),
    "nir_graph": (
        {"steps": 20, "epochs": 4, "batch": 8, "picture": io.BytesIO()},
        lambda found: found[0][-1] < found[0][0],
    ),
    "sparse_connections": (
        {"steps": 20, "width": 30, "axons": 30, "epochs": 4, "batch": 8, "file": io.BytesIO()},
        lambda found: found[-1] < found[0],
    ),
    "brainpy_lif": (
        {"steps": 20, "width": 10, "epochs": 4, "batch": 8, "file": io.BytesIO()},
        lambda found: found[-1] < found[0],
    ),
}


# It starts processes of its own: `tests/mesh/test_processes.py` runs it.
ELSEWHERE = {"two_processes"}


def test_every_example_is_checked():
    assert set(CHECKS) | ELSEWHERE == set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(CHECKS))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*x64")
def test_runs(name, capsys):
    import matplotlib.pyplot as plt

    settings, holds = CHECKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that an example imports
        module = importlib.import_module(f"examples.{name}")
    with jax.enable_x64(False):  # as a user runs it
        assert holds(module.main(**settings))
    plt.close("all")
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_fits_in_one_reading(name):
    lines = Path("examples", f"{name}.py").read_text().splitlines()
    assert len(lines) <= 120
    assert f"python examples/{name}.py" in "\n".join(lines[:8])
