"""The page shows what the results say."""

import json

import pytest

from trust import page


def test_page_and_results_agree():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.rendered(text) == text, "run `make trust-page`"


@pytest.mark.parametrize("name", ["soak", "faults", "hostile"])
def test_results_hold_nothing_wrong(name):
    found = json.loads(page.RESULTS[name].read_text(encoding="utf-8"))
    parts = found["runs"] if name == "soak" else list(found.values())
    assert parts and all(part["wrong"] == [] for part in parts)


def test_a_figure_that_changed_is_seen(tmp_path, monkeypatch):
    found = json.loads(page.RESULTS["faults"].read_text(encoding="utf-8"))
    found["kills"]["kills"] += 1
    (tmp_path / "faults.json").write_text(json.dumps(found), encoding="utf-8")
    monkeypatch.setitem(page.RESULTS, "faults", tmp_path / "faults.json")
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.rendered(text) != text


def test_a_page_without_a_place_for_figures_is_refused():
    with pytest.raises(ValueError, match="no place for the figures of 'fuzz'"):
        page.rendered("# Trust")
