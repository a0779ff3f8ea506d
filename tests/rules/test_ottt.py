"""OTTT: presynaptic traces, against data summed step by step and a dense Jacobian of the window's first step."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, O, T, loss
from tests.learn.harness import WINDOWS, agrees, assert_close, compiled, differs, gradients

import etrax

DECAY = 0.8


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_recursion(name, windows):
    agrees(name, etrax.ottt(DECAY), lambda n, k: reference.ottt(n, k, DECAY), windows)


def test_one_window_is_bptt():
    assert_close(gradients("lstm", etrax.ottt(DECAY), T)[0], reference.bptt("lstm"))


def test_it_matters():
    one = reference.ottt("gru", 1, DECAY)
    assert differs(one, reference.ottt("gru", 1, 0.7)) > 1e-3
    assert differs(one, reference.rflo("gru", 1, DECAY)) > 1e-3


def test_leaky_integrators_lose_nothing():
    """h' = λ h + u W + b with λ the rule's own leak: F is 1 at all times, so the gradient is BPTT's."""

    def step(params, h, x):
        h = DECAY * h + x @ params["w"] + params["b"]
        return h, jnp.tanh(h) @ params["wo"]

    rng = np.random.RandomState(0)
    params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in (("w", (I, H)), ("b", (H,)), ("wo", (H, O)))}
    x, target = jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, O)))
    learner = etrax.compile(step, etrax.ottt(DECAY), x[0], params=params, hidden=jnp.zeros((B, H)))
    (_, got), _ = learner.value_and_grad(loss, window=1)(params, learner.init(), x, target)
    _, want = etrax.testing.bptt(learner, loss)(params, jnp.zeros((B, H)), x, target)
    assert_close(got, want)


def test_memory_is_the_data_of_each_op():
    assert compiled("vanilla", etrax.ottt(DECAY)).report.memory["ottt"] == 8 * (B * (I + H) + 1)


def test_verdicts():
    verdicts = compiled("lru", etrax.ottt(DECAY)).report.verdicts
    assert {p[0] for p, v in verdicts.items() if v.kind == "exact"} == {"wo", "d"}
    assert all("leak of 0.8" in v.reason for v in verdicts.values() if v.kind != "exact")


@pytest.mark.parametrize("decay", [-0.1, 1.5, "fast", None])
def test_bad_decay(decay):
    with pytest.raises(ValueError, match="`ottt` takes a `decay` from 0 to 1"):
        etrax.ottt(decay)


def test_a_decay_beyond_all_numbers():
    with pytest.raises(etrax.ArgumentError, match="takes a `decay` from 0"):
        etrax.ottt(10**400)
