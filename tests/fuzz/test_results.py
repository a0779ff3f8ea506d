"""Counts of long runs add up in a file."""

import json

from fuzz.results import Run, keep


def test_runs_are_added_and_one_of_the_same_seed_is_replaced(tmp_path):
    path = tmp_path / "results.json"
    keep(Run(seed=2, models=10, runs=15, failures=1, refusals=0, primitives=7, cells=20), path)
    keep(Run(seed=1, models=5, runs=6, failures=0, refusals=2, primitives=9, cells=12), path)
    keep(Run(seed=2, models=20, runs=30, failures=0, refusals=1, primitives=8, cells=25), path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [r["seed"] for r in found.pop("each")] == [1, 2]
    assert found == {
        "models": 25, "runs": 36, "failures": 0, "refusals": 3,
        "primitives_of_the_widest_run": 9, "cells_of_the_widest_run": 25,
    }  # fmt: skip
