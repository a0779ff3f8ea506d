"""A comparison that fails for a reason outside: BPTT is no number, or the compiler is at fault."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax import _sums
from etrax.cli import main
from etrax.testing import _compare


@pytest.fixture
def faulty(monkeypatch):
    """Whatever the compiler of this machine does."""
    monkeypatch.setattr(_compare, "sums_go_wrong", lambda: True)


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
    with pytest.raises(etrax.testing.GradientError, match="BPTT's own gradient is not finite"):
        table.check()
    assert not table[("w",)].bptt_finite and compared(leaky)[("w",)].bptt_finite


def test_a_fault_of_the_compiler_is_named_where_a_check_fails(faulty, capsys):
    rows = compared(leaky).check().rows
    with pytest.raises(etrax.testing.GradientError, match=r"CPU compiler of jaxlib .* computes some sums"):
        etrax.testing.Comparison(rows, 2, -1.0).check()
    assert main(["doctor"]) == 0
    assert "arithmetic: wrong in places. The CPU compiler" in capsys.readouterr().out


def test_without_a_fault_the_model_is_asked_for(faulty, monkeypatch):
    monkeypatch.setattr(_compare, "sums_go_wrong", lambda: False)
    with pytest.raises(etrax.testing.GradientError, match="Please report the model"):
        etrax.testing.Comparison(compared(leaky).rows, 2, -1.0).check()


def test_sums_are_right_after_the_import():
    assert not _sums.sums_go_wrong()


RUN = """
import warnings
import jax, jax.numpy as jnp, numpy as np
{first}
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import etrax
    def step(w, h, x):
        y = 0.9 * h + w * x
        return y, {output}
    like = np.ones((256, 160), np.float32)
    learner = etrax.compile(step, "tbptt", like, params=np.ones(160, np.float32), hidden=like)
    learner.value_and_grad(lambda o, t: o.sum(), window=1)(learner.params, learner.init(), like[None])
print(sum("computes some sums" in str(w.message) for w in found), etrax._sums.sums_go_wrong())
"""


COMPUTED, OTHER = "jnp.ones(3) + 1", "--xla_cpu_enable_fast_math=false"
SUM, NONE = "w * (w * y).sum(-1)[:, None]", "y"


@pytest.mark.parametrize(
    "first, flags, output, late, told",
    [
        ("", "", SUM, False, 0),
        ("", OTHER, SUM, False, 0),
        (COMPUTED, "", SUM, True, 1),
        (COMPUTED, "", NONE, True, 0),
        (COMPUTED, _sums.FLAG, SUM, False, 0),
    ],
    ids=["imported first", "other flags", "computed first", "computed first, no such sum", "flag given"],
)
def test_the_flag_is_set_in_time_or_a_program_that_needs_it_is_warned_of(first, flags, output, late, told):
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", RUN.format(first=first, output=output)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    faulty = _sums.VERSION in _sums.FAULTY
    assert ran.stdout.split() == [str(told * faulty), str(late and faulty)], ran.stderr


C, X = np.ones((20, 16), np.float32), np.ones((256, 20, 16), np.float32)


@pytest.mark.parametrize(
    "function, held",
    [
        (lambda c, x: c * (c * x).sum(-1)[..., None], True),
        (lambda c, x: c + (c * x).mean(-1)[..., None], True),
        (lambda c, x: x - (c * jnp.tanh(x)).sum(-1)[..., None], True),
        (lambda c, x: jax.lax.scan(lambda h, y: (h + c * (c * y).sum(-1)[..., None], None), x, x[None])[0], True),
        (lambda c, x: (c * x).sum(-1), False),
        (lambda c, x: x.sum(-1)[..., None] * c, False),
        (lambda c, x: c * (c * x).sum(1)[:, None], False),
        (lambda c, x: c * (c * x[:100]).sum(-1)[..., None], False),
        (lambda c, x: c * jnp.einsum("bij,ij->bi", x, c)[..., None], False),
    ],
)
def test_such_sums_are_seen_in_a_program(function, held):
    """The cases are those that the compiler was seen to get wrong, and right."""
    assert _sums.holds_such_a_sum(jax.make_jaxpr(function)(C, X).jaxpr) == held
