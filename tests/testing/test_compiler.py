"""A comparison that fails for a reason outside: BPTT is no number, or the compiler is at fault."""

import jax.numpy as jnp
import pytest

import etrax
from etrax.cli import main
from etrax.testing import _compiler


@pytest.fixture
def faulty(monkeypatch):
    """Whatever the compiler of this machine does."""
    _compiler.compiler_fault.cache_clear()
    monkeypatch.setattr(_compiler, "sums_go_wrong", lambda: True)
    yield
    _compiler.compiler_fault.cache_clear()


def compared(step, tolerance=None):
    params, hidden, xs = {"w": jnp.full(3, 0.3)}, jnp.zeros(3), jnp.ones((6, 3))
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
    loss = lambda output, target: (output**2).mean()
    return etrax.testing.compare(learner, loss, params, hidden, xs, window=2, tolerance=tolerance)


def leaky(params, h, x):
    h = 0.9 * h + jnp.sin(params["w"] * x)
    return h, h


def test_bptt_that_is_no_number_is_named():
    table = compared(lambda p, h, x: (0.9 * h + p["w"] * x, jnp.log(-x) + h))
    with pytest.raises(etrax.testing.GradientError, match="BPTT's own gradient is NaN or infinite for 'w'"):
        table.check()
    assert table[("w",)].undefined and not compared(leaky)[("w",)].undefined


def test_a_fault_of_the_compiler_is_named_where_a_check_fails(faulty, capsys):
    rows = compared(leaky).check().rows
    with pytest.raises(etrax.testing.GradientError, match="CPU compiler of this jaxlib computes some sums"):
        etrax.testing.Comparison(rows, 2, -1.0).check()
    assert main(["doctor"]) == 0
    assert "compiler: The CPU compiler" in capsys.readouterr().out


def test_without_a_fault_the_model_is_asked_for(faulty, monkeypatch):
    monkeypatch.setattr(_compiler, "sums_go_wrong", lambda: False)
    with pytest.raises(etrax.testing.GradientError, match="Please report the model"):
        etrax.testing.Comparison(compared(leaky).rows, 2, -1.0).check()


def test_the_trial_says_yes_or_no():
    assert _compiler.sums_go_wrong() in (True, False)
