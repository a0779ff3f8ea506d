"""Which rows the fast suite takes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.rows import SECONDS, fast_rows, read
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
