"""The rules learn: on tasks with a delay longer than the window they end within 3 points of BPTT, `tbptt` does not.

The trainings are those of `benchmarks/learning.py`, with two seeds. Scores are in per cent, on sequences that were not
trained on: accuracy, or the variance explained where the target is a number.
"""

from statistics import mean

import pytest

from benchmarks import learning

SEEDS = (0, 1)
POINTS = 3.0


def score(task: str, rule: str) -> float:
    return mean(result.score for result in learning.learn(learning.PROBLEMS[task], rule, SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("task", learning.PROBLEMS)
def test_rules_learn_as_well_as_bptt(task):
    bptt = score(task, "bptt")
    assert bptt > 95, "the yardstick itself must have learned"
    found = {rule: score(task, rule) for rule in ("d_rtrl", "pp_prop", "e_prop", "tbptt")}
    without_trace = found.pop("tbptt")
    assert {rule: s for rule, s in found.items() if s < bptt - POINTS} == {}
    assert without_trace < bptt - 15, "the control: without a trace the delay is not bridged"
