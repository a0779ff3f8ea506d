"""Hundreds of models hold, and code that is broken on purpose is found."""

import re
from dataclasses import replace
from itertools import islice

import jax
import numpy as np
import pytest
from fuzz.cases import Case
from fuzz.claims import Checker, Failure, Refusal, check_model, refused
from fuzz.grammar import draw_model
from fuzz.learners import compiled
from fuzz.measure import close, tolerance_of
from fuzz.oracle import bptt
from fuzz.outer import wrong_derivative
from fuzz.run import run_seeds
from fuzz.shrink import same_failure, shrink
from fuzz.spec import Leaf, Model, Statement, size, statements

import etrax
import etrax.rules._d_rtrl as d_rtrl_file
from etrax.rules import Kind, Verdict

SEED, MODELS, PARTS = 20_000, 200, 25


def leaky(**changes):
    """h = 0.9 h + x @ w."""
    body = (Statement("v1", "matmul", ("x0", "p.w")), Statement("v2", "leaky", ("s.h", "v1")))
    model = Model({"w": Leaf((2, 3))}, {"h": Leaf((3,))}, (Leaf((2,)),), {}, body, {"h": "v2"}, ("v2",))
    return model._replace(**changes)


@pytest.mark.fast_seconds(6)
@pytest.mark.parametrize("part", range(PARTS))
def test_models_hold(part):
    for seed in range(SEED + part, SEED + MODELS, PARTS):
        totals = run_seeds(seed, models=1, shrink_seconds=10)
        assert not totals.failures, "\n".join(text for _, _, text in totals.failures)


CASES = [
    Case("d_rtrl", 1), Case("rtrl", 2, "mean"), Case("tbptt", 2, "mean", "steps"), Case("uoro", 100),
    Case("snap(2)", 2, extra="pieces"), Case("three_factor", 1), Case("d_rtrl", 2, extra="samples"),
    Case("pp_prop", 2, "sum", "samples"), Case("e_prop(random)", 100), 
    Case("rtrl", 1, extra="steps"), Case("e_prop(0.5)", 2), Case("partition", 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_plain_model_holds(case):
    found = Checker(leaky(batch="lead")).check(case)
    assert found == 0 or isinstance(found, Refusal)


def broken(change):
    """D-RTRL with a wrong transport."""
    right = d_rtrl_file.diagonal_transport

    def transport(*args, **kwargs):
        return change(right(*args, **kwargs))

    return transport


def wrong_credit(transport):
    def scaled(credit):
        return lambda *args: {k: 1.01 * v for k, v in credit(*args).items()}

    fused = replace(transport.fused, at_exit=scaled(transport.fused.at_exit))
    return replace(transport, credit=scaled(transport.credit), fused=fused)


def forgets(transport):
    return replace(transport, move=lambda trace, window: trace)


def raises(transport):
    def move(trace, window):
        raise KeyError(0)

    return replace(transport, move=move)


WRONG = [(wrong_credit, "exact is exact"), (forgets, "exact is exact"), (raises, "run raises KeyError")]


def failing_models(claim):
    """Models whose first failure is of this kind, with the case that shows it."""
    for model in map(draw_model, range(SEED, SEED + 40)):
        failures = check_model(model, [Case("d_rtrl", 1)]).failures
        if failures and failures[0].claim == claim:
            yield model, failures[0].case


@pytest.mark.parametrize(("change", "claim"), WRONG)
def test_a_wrong_transport_is_found(monkeypatch, change, claim):
    body = (*leaky().body, Statement("v3", "tanh", ("v2",)))  # D changes from step to step
    model, case = leaky(body=body, new={"h": "v3"}, output=("v3",)), Case("d_rtrl", 1)
    assert Checker(model).check(case) == 0
    monkeypatch.setattr(d_rtrl_file, "diagonal_transport", broken(change))
    assert Checker(model).check(case).claim == claim


@pytest.mark.slow
@pytest.mark.parametrize(("change", "claim"), WRONG)
def test_a_wrong_transport_is_made_short(monkeypatch, change, claim):
    monkeypatch.setattr(d_rtrl_file, "diagonal_transport", broken(change))
    some = islice(failing_models(claim), 4)
    model, case = min(some, key=lambda one: size(one[0]))  # the shortest, which takes least time
    short, case = shrink(model, case, same_failure(claim), 60)
    assert size(short) <= size(model) and len(list(statements(short.body))) <= 8
    assert isinstance(Checker(short).check(case), Failure)


def test_a_false_verdict_is_found(monkeypatch):
    monkeypatch.setattr(d_rtrl_file, "by_position_verdict", lambda *_, **__: Verdict(Kind.UNUSED, "no"))
    assert Checker(leaky()).check(Case("d_rtrl", 1)).claim == "unused means zero"
    monkeypatch.setattr(d_rtrl_file, "by_position_verdict", lambda *_, **__: Verdict(Kind.TRUNCATED, "no"))
    assert Checker(leaky()).check(Case("d_rtrl", 1)).claim == "truncated is BPTT inside the window"


def kept_by(**changes):
    """h = k h + x @ w with an array of numpy."""
    body = (Statement("v1", "matmul", ("x0", "p.w")), Statement("v2", "kept_by", ("s.h", "c.k", "v1")))
    return leaky(body=body, consts={"k": Leaf((3,), start="numpy")}, **changes)


def test_a_constant_that_is_read_again_is_found(monkeypatch):
    """A learner that compiles anew at each call reads the numbers of now."""
    case, right = Case("d_rtrl", 1, extra="constants"), Checker.gradient

    def anew(self, learner, case, built, *rest):
        return right(self, compiled(built, case.rule), case, built, *rest)

    monkeypatch.setattr(Checker, "gradient", anew)
    checker = Checker(kept_by())
    before = checker.built.consts["k"].copy()
    assert checker.check(case).claim.startswith("constants are those of compiling")
    np.testing.assert_array_equal(checker.built.consts["k"], before)
    assert Checker(kept_by()).check(Case("d_rtrl", 1)) == 0


class Stopped:
    """A learner through which no derivative passes, or none of training."""

    def __init__(self, learner, loss):
        self.learner, self.loss, self.init = learner, loss, learner.init

    def value_and_grad(self, loss, **options):
        return self.loss

    def train(self, *given, **options):
        run = self.learner.train(*given, **options)
        return lambda params, *rest: jax.lax.stop_gradient(run(params, *rest))


def test_a_derivative_that_is_zero_is_found():
    checker, case = Checker(leaky()), Case("tbptt", 2)
    learner = compiled(checker.built, case.rule)
    whole = bptt(checker.built, None, "sum")

    def right(params, state, xs, clock, mask):
        return whole(params, state.hidden, xs, mask)[:2], state

    def stopped(params, *rest):
        return right(jax.lax.stop_gradient(params), *rest)

    found = wrong_derivative(checker.run, Stopped(learner, stopped), case, checker.built, None)
    assert found[0] == "reverse mode through the loss is BPTT"
    found = wrong_derivative(checker.run, Stopped(learner, right), case, checker.built, None)
    assert found[0] == "derivatives through train are those of differences"


@pytest.mark.filterwarnings("ignore:`tbptt`. no credit")
def test_a_gradient_that_never_arrives_is_found():
    """The upper layer reads the old state below, and the rule carries nothing past a layer."""
    body = (
        Statement("v1", "matmul", ("x0", "p.w")), Statement("v2", "leaky", ("s.h", "v1")),
        Statement("v3", "matmul", ("s.h", "p.v")), Statement("v4", "one_leak_differs", ("s.up", "v3")),
    )  # fmt: skip
    params, hidden = {"w": Leaf((2, 3)), "v": Leaf((3, 2))}, {"h": Leaf((3,)), "up": Leaf((2,))}
    model = leaky(params=params, hidden=hidden, body=body, new={"h": "v2", "up": "v4"}, output=("v4",))
    assert Checker(model).never_credited(Case("tbptt", 1), 1) and not Checker(model).never_credited(Case("tbptt", 2), 1)
    zero = np.zeros((2, 3))
    claim = Checker(model).leaf_claim(Case("tbptt", 1), "approximate", zero, zero + 1, 1, 1.0, 1.0)
    assert claim == "what is approximate has a gradient"


@pytest.mark.parametrize("mask", ["", "samples"])
def test_a_model_that_jax_cannot_run_says_nothing(mask):
    checker = Checker(leaky(batch="lead"))
    checker.built = checker.built._replace(step=lambda p, h, x: h["h"][x])  # an index that is no integer
    assert checker.check(Case("d_rtrl", 1, mask=mask)) is None


def test_a_wrong_loss_and_state_are_found():
    checker, case = Checker(leaky()), Case("tbptt", 100)
    loss, grads, end = checker.bptt(case)
    verdicts = {("w",): Verdict(Kind.TRUNCATED, "")}
    state = lambda h: type("State", (), {"hidden": h})
    assert checker.compare(case, verdicts, (loss, grads, state(end)), (loss, grads, end)) is None
    assert "loss" in checker.compare(case, verdicts, (loss + 1, grads, state(end)), (loss, grads, end)).claim
    other = {"h": end["h"] + 1}
    assert "last state" in checker.compare(case, verdicts, (loss, grads, state(other)), (loss, grads, end)).claim
    nan = [np.nan * g for g in grads]
    assert "NaN" in checker.compare(case, verdicts, (loss, nan, state(end)), (loss, grads, end)).claim
    zero = [0 * g for g in grads]
    assert checker.compare(case._replace(window=2), verdicts, (loss, zero, state(end)), (loss, grads, end)).claim == (
        "no zero where BPTT is not"
    )
    off = [1.1 * g for g in grads]
    assert "window over" in checker.compare(case, verdicts, (loss, off, state(end)), (loss, grads, end)).claim


def test_refusals_need_a_known_reason():
    case = Case("d_rtrl", 1)
    error = etrax.CompilationError("the weight of `dot` is made of parameters with different rules (a by b)")
    assert isinstance(refused(case, error), Refusal)
    found = refused(case, etrax.CompilationError("inlining the step captured 3 constants"))
    assert isinstance(found, Failure) and re.search(r"captured … constants", found.claim)


def test_tolerances():
    assert tolerance_of(leaky()) == 1e-9
    assert tolerance_of(leaky(params={"w": Leaf((2, 3), "bfloat16")})) == 5e-2
    assert close(1.0, 1.0 + 1e-10, 1e-9) and not close(1.0, 1.0 + 1e-8, 1e-9)
    assert close([-np.inf, 1.0], [-np.inf, 1.0], 1e-9)
    assert not close([-np.inf, 1.0], [-np.inf, 2.0], 1e-9) and not close([np.inf, 1.0], [-np.inf, 1.0], 1e-9)
    assert not close([5.0, 1.0], [np.inf, 1.0], 1e-9) and not close([np.nan], [np.nan], 1e-9)


def test_rounding_of_a_gradient_that_is_zero_is_no_failure():
    """An output that is a sum of probabilities: all gradients are the rounding of the loss."""
    checker, case = Checker(leaky()), Case("d_rtrl", 1)
    assert checker.check(case) == 0
    noise, other = np.full((2, 3), 1e-17), np.full((2, 3), -2e-17)
    assert checker.leaf_claim(case, "exact", noise, other, 0, 2e-17, 3.0) == ""
    assert checker.leaf_claim(case, "exact", 1e8 * noise, other, 0, 2e-17, 3.0) == "exact is exact"


def test_another_gradient_may_be_too_large_for_half_precision():
    checker, case = Checker(leaky()), Case("ottt", 1)
    assert checker.check(case) == 0
    large, want = np.full((2, 3), np.inf, np.float16), np.full((2, 3), 7e3, np.float16)
    claims = {kind: checker.leaf_claim(case, kind, large, want, 0, 7e3, 1.0) for kind in ("approximate", "exact")}
    assert claims == {"approximate": "", "exact": "no NaN where BPTT has none"}
    assert checker.leaf_claim(case, "approximate", large * np.nan, want, 0, 7e3, 1.0)
    assert checker.leaf_claim(case, "approximate", large.astype(float), want, 0, 7e3, 1.0)


def test_no_more_than_the_rounding_of_narrow_leaves_is_excused():
    case, checker = Case("d_rtrl", 1), Checker(leaky(params={"w": Leaf((2, 3), "bfloat16")}))
    assert checker.check(case) == 0
    want = np.asarray(checker.bptt(case)[1][0], float)
    assert checker.is_rounding(case, False, 0, want, want) and not checker.is_rounding(case, False, 0, 1.1 * want, want)
    moved = np.linalg.norm(want - np.asarray(checker._wide.bptt(case)[1][0]))
    assert 0 < moved < 0.1 * np.linalg.norm(want)
    assert not Checker(leaky()).is_rounding(case, False, 0, want, want)
