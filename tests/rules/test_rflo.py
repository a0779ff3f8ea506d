"""RFLO: the window engine against J ← λ J + ∂h/∂θ, step by step."""

import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, T
from tests.learn.harness import WINDOWS, agrees, assert_close, compiled, differs, gradients, numbers

import etrax

DECAY = 0.8


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_recursion(name, windows):
    agrees(name, etrax.rflo(DECAY), lambda n, k: reference.rflo(n, k, DECAY), windows)


def test_one_window_is_bptt():
    assert_close(gradients("lstm", etrax.rflo(DECAY), T)[0], reference.bptt("lstm"))


def test_the_leak_matters():
    """The reference tells leaks apart, and the leak from the true recurrence."""
    one = reference.rflo("gru", 1, DECAY)
    assert differs(one, reference.rflo("gru", 1, 0.7)) > 1e-3
    assert differs(one, reference.d_rtrl("gru", 1)) > 1e-3


def test_memory_is_one_number_per_parameter_and_sample():
    learner = compiled("vanilla", etrax.rflo(DECAY))
    assert learner.report.memory["rflo"] == 8 * B * (I * H + H * H + H)
    assert numbers(learner.init().trace) == B * (I * H + H * H + H)


def test_no_trace_for_states_that_an_op_does_not_drive():
    """ALIF: an input drives v and the spike, never the threshold a of its own step; the readout drives r."""
    trace = compiled("alif_vjp", etrax.rflo(DECAY)).init().trace
    assert sorted(len(entries) for entries in trace.plain.entries) == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name):
    verdicts = compiled(name, etrax.rflo(DECAY)).report.verdicts
    plain = compiled(name, etrax.d_rtrl()).report.verdicts
    exact = {path[0] for path, v in verdicts.items() if v.kind == "exact"}
    assert exact == {"alif_vjp": set(), "alif_jvp": set(), "lru": {"wo", "d"}}.get(name, {"wo", "bo"})
    for path, verdict in verdicts.items():
        assert verdict.kind == "approximate" or verdict.kind == plain[path].kind
        if verdict.kind == "approximate":
            assert "leak of 0.8" in verdict.reason


@pytest.mark.parametrize("decay", [-0.1, 1.5, "fast", None, np.nan, True])
def test_bad_decay(decay):
    with pytest.raises(ValueError, match="`rflo` takes a `decay` from 0 to 1"):
        etrax.rflo(decay)


def test_the_name_alone_does_not_do():
    case = CASES["vanilla"]
    with pytest.raises(etrax.CompilationError, match=r"pass `etrax.rflo\(decay=\.\.\.\)`"):
        etrax.compile(case.model, "rflo", case.x[0], params=case.params, hidden=case.hidden)
