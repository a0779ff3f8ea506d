"""Every model of the zoo: verdicts, reasons, op families, tags; and the facts against dense Jacobians."""

import re
from functools import cache
from pathlib import Path

import pytest
from tests.zoo import REPORTED, UNUSED, ZOO
from tests.zoo import __file__ as zoo_file

import etrax
from etrax.compiler.analysis import analyse
from etrax.compiler.ir import Role
from etrax.rules import Kind
from etrax.rules._verdicts import no_trace_verdict, whole_influence_verdict

from .check import check_facts
from .oracle import step_of

FILES = {path.name for path in Path(zoo_file).parent.glob("*.py")}
CAUSES = (
    r"reaches several|act on other|acts on|feeds back|passes through|derivative rule|rounds a gradient|"
    r"units of the other|shared leaks"
)
REPORTS = {Kind.EXACT: "exact", Kind.UNUSED: UNUSED, Kind.APPROXIMATE: REPORTED, Kind.TRUNCATED: REPORTED}


@cache
def facts_of(name):
    for module in ZOO[name].needs:
        pytest.importorskip(module)
    return analyse(step_of(ZOO[name]()))


@pytest.mark.fast_seconds(60)
@pytest.mark.parametrize("name", ZOO)
def test_verdicts(name):
    facts, model, rule = facts_of(name), ZOO[name](), etrax.d_rtrl()
    for i, leaf in enumerate(facts.step.select(Role.PARAM)):
        verdict, want = rule.verdict(rule.facts_for(facts), i), model.expect[leaf.path]
        found = REPORTS[verdict.kind]
        assert found == want or (leaf.path in model.either and found != UNUSED), (leaf.path, verdict)
        sites = facts.sites_of(i)
        assert want == UNUSED or sites, f"{leaf.path} is used and has no site"
        assert all(facts.sites[j].source or facts.sites[j].call.primitive == "output" for j in sites)
        if found == REPORTED:
            lines = re.findall(r"(\w+\.py):(\d+) \(", verdict.reason)
            assert lines and {file for file, _ in lines} <= FILES, verdict.reason
            assert re.search(CAUSES, verdict.reason), verdict.reason
        assert no_trace_verdict(facts, i).kind == (
            verdict.kind if verdict.kind is Kind.UNUSED or not sites else no_trace_verdict(facts, i).kind
        )
        whole = (Kind.EXACT, Kind.UNUSED) if model.linear else (Kind.APPROXIMATE,)
        assert whole_influence_verdict(facts, i).kind in whole


TAGS = {
    "transitions/mean_field": ["dense"], "transitions/mean_field_learnt": ["dense"],
    "transitions/fixed_matrix": ["dense"],
    "transitions/normalised_state": ["dense"], "transitions/winner_takes_all": ["dense"],
    "transitions/ring_diffusion": ["sparse"], "transitions/delay_line": ["sparse"],
    "transitions/dense": ["diagonal"], "transitions/convolution": ["diagonal"], "cells/vanilla": ["diagonal"],
    "cells/gru": ["diagonal"], "cells/lstm": ["block"], "weights/matmul": ["diagonal"], "batch/leading": ["diagonal"],
    "batch/batch_last": ["diagonal"], "ops/segment_sum_recurrent": ["diagonal"], "size/no_hidden": [],
}  # fmt: skip


@pytest.mark.parametrize("name", TAGS)
def test_tags(name):
    assert [str(tag) for tag in facts_of(name).tags] == TAGS[name]


FAMILIES = {
    "weights/matmul": {"w": ["matmul"]}, "weights/two_ops": {"w": ["matmul"] * 2},
    "weights/tied": {"w": ["matmul"] * 2},
    "ops/bcoo": {"w": ["sparse product"]}, "ops/segment_sum": {"w": ["elementwise"]},
    "ops/csr": {"w": ["sparse product"]},
    "ops/csr_events": {"w": ["sparse product"]}, "transitions/convolution": {"w": ["matmul"], "k": ["convolution"]},
    "batch/leading": {"w": ["matmul"], "b": ["elementwise"], "a": ["elementwise"], "out": ["matmul"]},
    "size/one_number": {"w": ["elementwise"], "a": ["elementwise"]},
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    facts = facts_of(name)
    for i, leaf in enumerate(facts.step.select(Role.PARAM)):
        assert [facts.sites[j].rule.name for j in facts.sites_of(i)] == FAMILIES[name][leaf.path[0]]


# A hundred layers tell no more than one and take a minute and a half; others cannot be batched, as the oracle needs.
NOT_DENSE = {
    "size/two_hundred",
    "closures/callback_as_derivative",
    "closures/linear_function_with_its_transpose",
}
DENSE = [name for name in ZOO if name not in NOT_DENSE]


@pytest.mark.fast_seconds(4)
@pytest.mark.parametrize("name", DENSE)
def test_facts_against_dense_jacobians(name):
    check_facts(facts_of(name), ZOO[name]())
