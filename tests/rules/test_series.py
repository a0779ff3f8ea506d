"""Maps in series under every rule by position, in partitions, under a budget: gradients against BPTT in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.oracle import bptt, relative_error
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths
from etrax.rules import _series

T = 7
NAMES = ["series/low_rank", "series/norm_scale_with_deviation", "series/embedding_normalised"]


def learner_of(name, rule):
    model = ZOO[name]()
    first = jax.tree.map(lambda a: a[0], model.make_inputs(T, 0))
    return model, etrax.compile(model.step, rule, *first, params=model.params, hidden=model.hidden)


def errors(name, learner, window):
    """The relative error of each parameter's gradient."""
    model = ZOO[name]()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    run = Evaluator()
    want = dict(leaves_with_paths(bptt(model, inputs, targets, run)))
    gradient = learner.value_and_grad(model.loss, window=window)
    (_, grads), _ = run(gradient, model.params, learner.init(), inputs, targets)
    return {path[0]: relative_error(g, want[path]) for path, g in leaves_with_paths(grads)}


def kinds(learner):
    return {path[0]: str(verdict.kind) for path, verdict in learner.report.verdicts.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "rule", [etrax.e_prop(), etrax.ostl(), etrax.snap(1), etrax.d_rtrl(credit="state"), etrax.auto()], ids=str
)
def test_exact_under_every_rule_by_position(name, rule):
    _, learner = learner_of(name, rule)
    assert set(kinds(learner).values()) == {"exact"}
    assert max(errors(name, learner, 1).values()) < 1e-9


@pytest.mark.parametrize("rule", [etrax.pp_prop(), etrax.rflo(0.8), etrax.ottt(0.8), etrax.e_prop(0.5)], ids=str)
def test_a_trace_under_rules_that_approximate(rule):
    """What lies before the last map has a trace, where it had none."""
    _, learner = learner_of("series/low_rank", rule)
    assert kinds(learner)["A"] == "approximate"
    assert kinds(learner.with_rule(replace(rule, facts_for=lambda facts: facts.as_written)))["A"] == "truncated"


@pytest.mark.parametrize("rule", [etrax.tbptt(), etrax.rtrl(), etrax.uoro(0)], ids=lambda rule: rule.name)
def test_other_rules_run_the_step_as_it_is_written(rule):
    _, learner = learner_of("series/low_rank", rule)
    assert learner.facts.written is None and len(learner.facts.sites) == 3


def test_memory_is_that_of_the_product():
    """B·I·H numbers of the product and of the gate; predicted, and there."""
    model, learner = learner_of("series/low_rank", "d_rtrl")
    numbers = 2 * model.params["A"].shape[0] * model.params["B"].shape[1] * model.hidden.shape[0]
    held = sum(a.nbytes for a in jax.tree.leaves(learner.init().trace))
    assert held == numbers * 8 == learner.rule.size(learner.facts)


@pytest.mark.parametrize("bound, value", [("CHEAP_BYTES", 100.0), ("MOST_ROWS", 3)])
def test_what_is_too_large_is_left_as_it_is(monkeypatch, bound, value):
    monkeypatch.setattr(_series, bound, value)
    name = "series/low_rank" if bound == "CHEAP_BYTES" else "series/embedding_of_gates"
    _, learner = learner_of(name, etrax.d_rtrl(hops=0))
    assert learner.facts.written is None
    assert kinds(learner)["A" if bound == "CHEAP_BYTES" else "E"] == "truncated"


def test_partition_of_maps_in_series():
    """One trace follows one rule: maps under different rules stay apart; one that does not learn is no rule."""
    whole = etrax.partition({"A": etrax.d_rtrl(), "B": etrax.d_rtrl()}, default="tbptt")
    apart = etrax.partition({"A": etrax.rtrl()}, default=etrax.d_rtrl())
    idle = etrax.partition({"B": etrax.frozen()}, default=etrax.d_rtrl())
    for rule, exact in ((whole, {"A", "B"}), (apart, {"A", "B", "gate"}), (idle, {"A", "gate"})):
        _, learner = learner_of("series/low_rank", rule)
        assert {name for name, kind in kinds(learner).items() if kind == "exact"} == exact
        found = errors("series/low_rank", learner, 3)
        assert all(found[name] < 1e-9 for name in exact)
    assert learner.facts.written is not None


def test_lanes_that_start_again():
    """A reset of one lane: the gradient is that of the lanes' own sequences."""
    model, learner = learner_of("series/low_rank", "d_rtrl")
    (x,), target = model.make_inputs(T, 0), model.make_target(T, 0)
    reset = np.zeros((T, x.shape[1]), bool)
    reset[3, 1] = True

    def loss(output, target):
        return ((output - target) ** 2).sum()

    run = learner.value_and_grad(loss, window=2, reduction="sum")
    (_, got), _ = run(model.params, learner.init(), x, target, reset=jnp.asarray(reset))

    def total(params):
        def step(h, xs):
            x, target, flags = xs
            h, output = model.step(params, jnp.where(flags[:, None], model.hidden, h), x)
            return h, loss(output, target)

        return jax.lax.scan(step, model.hidden, (x, target, reset))[1].sum()

    want = jax.grad(total)(model.params)
    assert all(relative_error(got[name], want[name]) < 1e-9 for name in want)


@pytest.mark.parametrize(
    ("name", "param"),
    [
        ("not_linear_between", "A"), ("norm_between", "A"), ("read_elsewhere", "A"), ("times_data_between", "A"),
        ("low_rank_recurrence", "A"), ("embedding_times_input", "E"), ("embedding_centred_over_samples", "E"),
        ("embedding_scaled_by_lane", "E"), ("embedding_norm_of_zero", "E"),
    ],
)  # fmt: skip
def test_near_misses_are_no_series(name, param):
    _, learner = learner_of(f"series/{name}", etrax.d_rtrl(hops=0))
    assert kinds(learner)[param] in ("approximate", "truncated")
