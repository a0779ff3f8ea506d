"""Which rows the fast suite takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rows import SECONDS, fast_rows, mark_exhaustive_rows, read
from tests.zoo import ZOO

GRID = [f"{rule}-{model}" for rule in "abcd" for model in "123456"]


def test_rows_that_fit_are_all_taken():
    assert fast_rows(GRID, dict.fromkeys(GRID, SECONDS / 30)) == set(GRID)


def test_rows_taken_fit_and_come_from_all_over_the_grid():
    kept = fast_rows(GRID, dict.fromkeys(GRID, SECONDS / 8))
    assert len(kept) == 8
    assert {row[0] for row in kept} == set("abcd")
    assert len({row[-1] for row in kept}) >= 5


def test_one_row_is_taken_however_long_it_is():
    assert len(fast_rows(GRID, dict.fromkeys(GRID, 10 * SECONDS))) == 1


def test_a_row_that_was_never_measured_counts_as_the_others_do():
    assert len(fast_rows(GRID, {GRID[0]: SECONDS / 8, GRID[1]: SECONDS / 8})) == 8


def test_every_family_of_the_zoo_is_in_the_fast_suite():
    kept = fast_rows(list(ZOO), dict.fromkeys(ZOO, 1.0), 8)
    assert {name.split("/")[0] for name in kept} == {name.split("/")[0] for name in ZOO}


def test_stored_tests_are_longer_than_what_they_may_take():
    assert all(sum(rows.values()) > SECONDS for rows in read().values())


class Row:
    """A row of a grid, as far as `rows.py` looks at it."""

    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, list(marks)

    def get_closest_marker(self, name):
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark):
        self.marks.append(mark.mark)


def test_every_rule_and_every_model_is_among_the_rows_of_a_grid_that_stay():
    marks = pytest.mark.slow.mark, pytest.mark.one_in(7).mark
    grid = [Row(f"t[{model}-{rule}]", *marks) for model in range(60) for rule in range(19)]
    mark_exhaustive_rows(grid)
    stay = [row.nodeid[2:-1].split("-") for row in grid if row.get_closest_marker("exhaustive") is None]
    assert len(stay) == -(-60 * 19 // 7)
    assert {model for model, _ in stay} == set(map(str, range(60)))
    assert {rule for _, rule in stay} == set(map(str, range(19)))


def test_fast_rows_of_a_grid_stay_fast():
    grid = [Row(f"t[{i}]", pytest.mark.one_in(2).mark) for i in range(4)]
    mark_exhaustive_rows(grid)
    assert all(row.get_closest_marker("exhaustive") is None for row in grid)


# Many budgets, of which some are met to the last digit by what the families' first rows take together.
TENTHS = """
from tests.rows import fast_rows
rows = [f"{family}/{k}" for family in "abcdefghij" for k in range(4)]
seconds = {row: 0.1 * (1 + k % 7) for k, row in enumerate(rows)}
for budget in range(20, 100):
    print(sorted(fast_rows(rows, seconds, budget / 10)))
"""


def test_every_process_takes_the_same_rows():
    def rows_of(seed):
        env = os.environ | {"PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", TENTHS]
        return subprocess.run(command, cwd=Path(__file__).parents[1], env=env, check=True, capture_output=True).stdout

    assert len({rows_of(seed) for seed in range(6)}) == 1
