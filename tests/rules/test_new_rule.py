"""What a new rule touches: its own file, one line of registration, one row of the conformance table."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.learn.table import ROWS

import etrax
from etrax.rules import RULES

SRC = Path(etrax.__file__).parent
FILE = '''
from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from ..runtime import Transport
from ._rule import Rule
from ._verdicts import no_trace_verdict


class Count(NamedTuple):
    """The number of steps."""

    steps: Array


def counting_transport(facts, sites=None, trace_dtype=None):
    return Transport(
        lambda: Count(jnp.zeros((), jnp.int32)),
        lambda trace, g, window: {},
        lambda trace, window: Count(trace.steps + window.steps),
    )


def counting(start: int = 0) -> Rule:
    return Rule("counting", counting_transport, no_trace_verdict, {"start": start})
'''
LINE = "from ._counting import counting as counting\n"
USED = """
import jax.numpy as jnp, etrax

step = lambda w, h, x: (0.9 * h + x @ w,) * 2
loss = lambda y, t: (y**2).sum()
x, w, h = jnp.ones((5, 2, 3)), jnp.ones((3, 4)), jnp.zeros((2, 4))
for rule in ("counting", etrax.counting(1), etrax.partition({}, default=etrax.counting())):
    learner = etrax.compile(step, rule, x[0], params=w, hidden=h, check_finite=True)
    (_, grads), state = learner.value_and_grad(loss, window=2)(w, learner.init(), x)
    assert grads.shape == w.shape and learner.report.memory[learner.rule.name] > 0
    assert str(learner.report.verdicts[()].kind) == "truncated"
    print(learner.rule, state.trace.trace)
"""


def test_a_file_and_a_line_make_a_rule(tmp_path):
    shutil.copytree(SRC, tmp_path / "etrax", ignore=shutil.ignore_patterns("__pycache__"))
    rules = tmp_path / "etrax" / "rules"
    (rules / "_counting.py").write_text(FILE)
    with (rules / "registered.py").open("a") as registered:
        registered.write(LINE)
    alone = {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", USED], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "counting(start=0) Count(steps=Array(5, dtype=int32))",
        "counting(start=1) Count(steps=Array(5, dtype=int32))",
        "partition({}, default=counting(start=0)) [Count(steps=Array(5, dtype=int32))]",
    ]


def test_every_rule_has_a_row():
    assert {row.rule.name for row in ROWS.values()} == set(RULES)


def test_a_rule_is_named_after_its_file():
    for name, rule in RULES.items():
        assert rule.__module__ == f"etrax.rules._{name}" and getattr(etrax, name) is rule
