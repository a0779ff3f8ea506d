"""The scaling page is what the script makes of its figures, and the large network trains at a smaller size."""

import json

import pytest
from benchmarks.scaling import DATA, PAGE, collectives, in_process
from benchmarks.scaling_page import page


def test_the_page_is_made_of_the_figures():
    assert PAGE.read_text(encoding="utf-8") == page(json.loads(DATA.read_text()))


def test_what_travels_is_what_the_mathematics_asks_for():
    rows = json.loads(DATA.read_text())["rows"]
    for r in rows["strong, neurons"] + rows["weak, neurons"]:
        if r["devices"] > 1:
            activity = r["batch"] * r["neurons"]
            assert r["travels"].keys() <= {"all-gather", "reduce-scatter", "all-reduce"}
            assert sum(r["travels"].values()) <= 8 * 4 * activity  # a few arrays of activity, whatever the connections
    assert all(r["travels"].keys() <= {"all-reduce"} for r in rows["strong, batch"])


def test_collectives_are_read_from_a_program():
    text = "%a = f32[8,16]{1,0} all-gather(%b), x\n %c = (f32[2]{0}, f64[]) all-reduce(%d, %e)\n %f = f32[2]{0} add(%a)"
    assert collectives(text) == {"all-gather": 512, "all-reduce": 16}


@pytest.mark.slow
def test_many_neurons_learn_on_eight_devices():
    found = in_process(8, "train_large", 4096, 8, 32)
    assert found["last"] < found["first"]
    assert found["trace"] < 4 * 4096 * 2
