"""The page about braintrace's tests: each collected test is counted once, a failure without a judgement is named."""

import json

import pytest

from benchmarks import peer_page

CONTROL = {
    "a_test.py::test_passes": "passed",
    "a_test.py::test_fails": "passed",
    "a_test.py::test_private": "collected",
    "a_test.py::test_over[x]": "collected",
    "a_test.py::test_skips": "collected",
    "a_test.py::test_late": "deselected",
    "a_test.py::test_lost": "collected",
    "b_test.py::test_of_a_file": "collected",
}
OURS = {
    "a_test.py::test_passes": "passed",
    "a_test.py::test_fails": "failed",
    "a_test.py::test_private": "private",
    "a_test.py::test_over[Private0]": "private",
    "a_test.py::test_skips": "xfailed",
    "a_test.py::test_lost": "collected",
    "b_test.py": "uncollected",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for kind, rows in (("ours", OURS), ("control", CONTROL)):
        lines = [{"test": t, "outcome": o, "name": "_p" * (o == "private"), "error": ""} for t, o in rows.items()]
        lines.append({"test": "a_test.py::test_passes", "outcome": "collected", "name": "", "error": ""})
        (tmp_path / f"{kind}-0.2.8.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(peer_page, "PAGE", tmp_path / "page.md")
    return tmp_path


def test_every_collected_test_is_counted_once(folder):
    counts = peer_page.Suite(folder, "0.2.8").counts()
    assert counts.pop("collected") == len(CONTROL) == counts.total()
    assert counts == {
        "passed": 1, "failed": 1, "private": 2, "skipped": 1, "deselected": 1, "unimported": 1, "not run": 1,
    }  # fmt: skip


def test_a_failure_without_a_judgement_is_an_error(folder, monkeypatch):
    assert peer_page.main([str(folder)]) == 1
    assert "`a_test.py`: `test_fails`" in peer_page.PAGE.read_text().split("### Not judged")[1]
    one = {"title": "Other words", "verdict": "other", "why": "It says so.", "tests": ["a_test.py"]}
    monkeypatch.setattr(peer_page, "judgements", lambda: [one])
    assert peer_page.main([str(folder)]) == 0
    page = peer_page.PAGE.read_text()
    assert "It says so." in page and "the library itself ran 1 and passed 1" in page


def test_judgements_are_whole_and_the_longest_beginning_counts(monkeypatch):
    found = peer_page.judgements()
    assert len({one["title"] for one in found}) == len(found)
    for one in found:
        assert one["verdict"] in ("served", "other", "lacking") and one["why"].endswith(".") and one["tests"]
    starts = [start for one in found for start in one["tests"]]
    assert len(set(starts)) == len(starts)
    assert peer_page.judge("_algorithm/uoro_test.py::TestReproducibility::test_zeroing_x") == "`projection_eps`"
    assert peer_page.judge("no_test.py::test_x") == "Not judged"
