"""Reasons are short, and name the line at which positions meet; reports have all of what they leave out."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.verdict_models import MODELS
from benchmarks.verdicts import drawn
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import Role
from etrax.rules._wording import MOST

RULES = [
    etrax.d_rtrl(), etrax.d_rtrl(hops=1), etrax.pp_prop(), etrax.e_prop(), etrax.e_prop(0.5, "random", key=1),
    etrax.three_factor(), etrax.ostl(), etrax.ottt(0.9), etrax.tbptt(),
]  # fmt: skip
# Rows with the longest reasons of their kind; a run over the whole zoo has found none that is longer.
ROWS = (
    "fan_out/mlstm_stabilised", "fan_out/shared_gate_of_the_mean", "fan_out/rwkv", "stabilisers/log_space_attention",
    "stabilisers/gate_as_old_state", "stacks/alif_readout", "stacks/two_lru_layers", "stacks/readout_feeds_back",
    "delays/three_layers", "delays/axonal_delay", "as_written/convolution_of_groups", "control/scan_recurrent",
    "as_written/coarse_in_two_stages", "depth/top_down", "cells/gru", "readers/narrow_op", "readers/rounded",
    "delta_rules/many_keys", "closures/callback_as_derivative", "states/pooled_population",
)  # fmt: skip


def verdicts(facts):
    for rule in RULES:
        fitting = rule.facts_for(facts)
        for param in range(len(facts.step.select(Role.PARAM))):
            yield rule, rule.verdict(fitting, param)


def check(learner):
    for rule, verdict in verdicts(learner.facts):
        assert len(verdict.reason) <= MOST == 300, (rule, verdict)
        assert verdict.full.count("`") >= verdict.reason.count("`") or "full()" in verdict.reason
        assert not verdict.wordings or len(verdict.reason) <= len(verdict.full)


@pytest.mark.parametrize("name", MODELS)
def test_reasons_of_published_layers_are_short(name):
    step, params, hidden, x, _ = drawn(name)
    check(etrax.compile(step, "tbptt", x[0], params=params, hidden=hidden))


@pytest.mark.parametrize("name", ROWS)
def test_reasons_of_the_zoo_are_short(name):
    model = ZOO[name]()
    first = jax.tree.map(lambda a: a[0], model.make_inputs(2, 0))
    check(etrax.compile(model.step, "tbptt", *first, params=model.params, hidden=model.hidden))


def beside(count):
    """Weights side by side, behind a recurrent one."""

    def step(p, h, x):
        y = x + h @ p["feedback"]
        h = 0.9 * h + sum(jnp.tanh(k * y) @ w for k, w in enumerate(p["layers"], 1))
        return h, h

    params = {"feedback": jnp.ones((3, 3)), "layers": [jnp.ones((3, 3))] * count}
    return etrax.compile(step, "d_rtrl", jnp.ones((2, 3)), params=params, hidden=jnp.zeros((2, 3)))


def test_what_a_reason_leaves_out_is_in_the_full_report():
    learner = beside(12)
    verdict = learner.report.verdicts["feedback"]
    assert "and 9 more" in verdict.reason and "'layers[11]'" not in verdict.reason and len(verdict.full) > 600
    assert "'layers[11]'" in verdict.full and "'layers[11]'" in learner.report.full()
    assert verdict.reason in repr(verdict) and verdict.full not in repr(verdict)
    entry = next(p for p in learner.report.to_dict()["parameters"] if p["path"] == ["feedback"])["verdict"]
    assert entry["reason"] == verdict.reason and entry["full"] == verdict.full and "wordings" not in entry


def test_the_line_is_that_at_which_positions_meet():
    """Not that of a helper which cuts and pads before."""

    def shifted(window, x):
        return jnp.pad(jnp.split(window, [1], 1)[1], ((0, 0), (0, 1))).at[:, -1].set(x)

    def meet(p, s, x):
        window = shifted(s["window"], x @ p["w"])
        h = 0.5 * s["h"] + window.sum(1, keepdims=True) * x  # all positions of the window meet here
        return {"window": window, "h": h}, h

    state = {"window": jnp.zeros((2, 4)), "h": jnp.zeros((2, 3))}
    learner = etrax.compile(meet, "d_rtrl", jnp.ones((2, 3)), params={"w": jnp.ones(3)}, hidden=state)
    reason = learner.report.verdicts["w"].reason
    assert "(meet)" in reason and "(shifted)" not in reason.partition("not carried")[2]
