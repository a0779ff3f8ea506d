"""Every example runs on tiny settings and does what it says."""

import importlib
import warnings
from pathlib import Path

import jax
import pytest

EXAMPLES = sorted(p.stem for p in Path("examples").glob("*.py"))
# name: tiny settings, and what must hold of what `main` returns
CHECKS = {
    "first_learner": ({"steps": 40, "epochs": 4}, lambda found: found[-1] < found[0]),
    "online_updates": ({"steps": 800}, lambda parts: parts[3] < parts[0]),
    "fft_convolution": (
        {"steps": 20, "places": 6},
        lambda table: all(row.verdict.kind == "exact" for row in table.rows),
    ),
    "lru": ({"steps": 40, "width": 6}, lambda table: all(row.verdict.kind == "exact" for row in table.rows)),
    "verify_your_model": ({"steps": 20, "width": 6}, lambda tables: set(tables) == {"tbptt", "d_rtrl", "rtrl"}),
    "evidence": ({"size": 80, "epochs": 1, "batch": 16, "width": 12}, lambda found: 0 <= found["accuracy"] <= 1),
    "flax_nnx": ({"steps": 300, "width": 8, "batch": 4}, lambda parts: parts[-1] < parts[0]),
    "equinox_lstm": ({"steps": 10, "width": 4, "epochs": 8}, lambda found: all(b < a for a, b in found.values())),
    "brainpy_lif": ({"steps": 20, "width": 10, "epochs": 4, "batch": 8}, lambda found: found[-1] < found[0]),
}


def test_every_example_is_checked():
    assert set(CHECKS) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*x64")
def test_runs(name, capsys):
    settings, holds = CHECKS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that an example imports
        module = importlib.import_module(f"examples.{name}")
    with jax.enable_x64(False):  # as a user runs it
        assert holds(module.main(**settings))
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_fits_in_one_reading(name):
    lines = Path("examples", f"{name}.py").read_text().splitlines()
    assert len(lines) <= 120
    assert f"python examples/{name}.py" in "\n".join(lines[:8])
