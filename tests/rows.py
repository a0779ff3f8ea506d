"""Which rows of a test with many rows run in the fast suite: as many as fit into a few seconds, spread over all.

`tests/durations.json` holds how long the rows of longer tests took when all ran (`make durations` writes it anew); a
row that is not there counts as the mean of its test. Rows that do not fit are marked slow, and run in `make test-slow`.
Tests that stand for whole classes of models have more seconds, by `@pytest.mark.fast_seconds(n)`; a test without stored
durations runs whole.

A grid of every model with every rule would keep the slow suite busy for a night. `@pytest.mark.one_in(n)` leaves one
row in n of it to `make test-slow` and marks the others exhaustive: `make test-exhaustive` runs them. With n prime to
the length of the inner axis, every model and every rule is among the rows that stay.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "durations.json"
SECONDS = 0.5  # of the rows of one test
GOLDEN = 0.618033988749895


def read():
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def test_and_row(nodeid):
    test, _, row = nodeid.partition("[")
    return test, row.removesuffix("]")


def fast_rows(rows, seconds, budget=SECONDS):
    """One row of each family (`family/name`), and others that fit.

    Taken in steps of the golden ratio, they favour none of the lists that a grid was made of. Every worker of a run
    must take the same rows, so seconds are added in the order of the rows: a sum in the order of a set, which differs
    from process to process, ends in another last digit and lets another row fit.
    """
    order = [rows[i] for i in sorted(range(len(rows)), key=lambda i: (i * GOLDEN) % 1)]
    first = {row.split("/")[0] if "/" in row else "": row for row in reversed(order)}
    kept = dict.fromkeys(first.values())
    mean = sum(seconds.values()) / len(seconds)
    spent = sum(seconds.get(row, mean) for row in kept)
    for row in order:
        took = seconds.get(row, mean)
        if row not in kept and spent + took <= budget:
            kept[row] = None
            spent += took
    return set(kept)


def mark_slow_rows(items):
    stored, tests = read(), defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            test, row = test_and_row(item.nodeid)
            tests[test].append((row, item))
    for test, found in tests.items():
        if test in stored:
            marker = found[0][1].get_closest_marker("fast_seconds")
            budget = marker.args[0] if marker else SECONDS
            kept = fast_rows([row for row, _ in found], stored[test], budget)
            for row, item in found:
                if row not in kept:
                    item.add_marker(pytest.mark.slow)


def mark_exhaustive_rows(items):
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("one_in") is not None:
            grids[test_and_row(item.nodeid)[0]].append(item)
    for rows in grids.values():
        (n,) = rows[0].get_closest_marker("one_in").args
        for i, item in enumerate(rows):
            if i % n and item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.exhaustive)


class Durations:
    """A plugin that writes down how long every row took, with what its fixtures took."""

    def __init__(self):
        self.seconds = Counter()

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workerinput"):
            return
        found = defaultdict(dict)
        for nodeid, seconds in sorted(self.seconds.items()):
            test, row = test_and_row(nodeid)
            found[test][row] = round(seconds, 2)
        stored = read() | {test: rows for test, rows in found.items() if sum(rows.values()) > SECONDS}
        FILE.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")
