"""The generators of `make hostile`, on a few files of each kind; and that its judge sees what is wrong."""

import json

import jax
import pytest
from trust.hostile import __main__ as hostile
from trust.hostile.worker import KINDS, kind_of, outcome

import etrax
from etrax.cli import _limits
from etrax.tasks import _shared

FILES = {"artifact": 20, "save": 8, "run": 4, "nir": 15, "config": 10}

# Orbax reads in threads, of which some see their loop closed once another has failed; nir computes with what it is
# given.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("name", KINDS)
def test_files(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in (_shared, _limits):  # which the configs replace: put back afterwards
        monkeypatch.setattr(module, "default_budget", module.default_budget)
    with jax.enable_x64(False):  # as in the process of the script
        kind = kind_of(name, tmp_path)
        found = [(number, *outcome(kind, (77, number))) for number in range(FILES[name])]
    assert not [row for row in found if row[1] == "wrong"]
    assert any(row[1] == "words" for row in found)


class Lax:
    """What reads files without looking."""

    def __init__(self, feed):
        self.feed = feed

    def attempt(self, rng):
        return "a file", self.feed


def raises(error):
    def feed():
        raise error

    return feed


def takes(size):
    def feed():
        return None if b"1" * size else "nothing"

    return feed


@pytest.mark.parametrize(
    ("feed", "came"),
    [
        (raises(KeyError("format")), "KeyError"),
        (raises(RecursionError()), "RecursionError"),
        (raises(etrax.ArgumentError("")), "no sentence"),
        (raises(etrax.ArgumentError("x" * 10_000)), "no sentence"),
        (lambda: "other numbers", "other numbers"),
        (takes(700 << 20), "took"),
        (takes(1 << 20), ""),
        (raises(etrax.ArgumentError("a sentence.")), ""),
    ],
)
def test_judge(feed, came):
    found = outcome(Lax(feed), (0, 0))
    assert (found[0] == "wrong") == bool(came) and came in found[2]


def test_a_process_that_ends_is_counted(monkeypatch):
    """The file that ended it is wrong, and the next one is fed in a new process."""
    lines = ["begin", 0], ["end", 0, "words", "a", ""], ["begin", 1]
    rest = ["begin", 2], ["end", 2, "right", "b", ""]
    script = (
        "import sys, json, os\n"
        f"for line in {list(lines)!r} if sys.argv[-2] == '0' else {list(rest)!r}: print(json.dumps(line), flush=True)\n"
        "os.abort() if sys.argv[-2] == '0' else None"
    )
    start = hostile.subprocess.Popen
    monkeypatch.setattr(
        hostile.subprocess, "Popen", lambda command, **o: start([command[0], "-c", script, *command[2:]], **o)
    )
    found = hostile.feed("nir", 3, 5)
    assert (found.files, found.words, found.right) == (3, 1, 1)
    assert len(found.wrong) == 1 and "nir 5:1: the process ended (-6)" in found.wrong[0]


def test_results_are_what_was_fed():
    found = json.loads((hostile.RESULTS / "hostile.json").read_text(encoding="utf-8"))
    assert set(found) == set(KINDS) and sum(part["files"] for part in found.values()) >= 10_000
