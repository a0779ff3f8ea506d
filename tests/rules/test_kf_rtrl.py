"""KF-RTRL: unbiased over keys, exact with one window, less noise than UORO, and the size it claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, T, loss
from tests.learn.harness import assert_close, compiled, gradients, numbers
from tests.learn.oracle import relative_error
from tests.rules.models import linear, rate, spiking

import etrax

STEPS, DRAWS = 5, 4000


def batch_last(params, h, x):
    """Samples along the last axis of states and data."""
    h = jnp.tanh(params["wi"].T @ x.T + params["wh"] @ h + params["b"][:, None])
    return h, (params["wo"].T @ h).T


MODELS = {"rate": (rate, float), "spiking": (spiking, float), "complex": (linear, complex), "last": (batch_last, float)}


def sampled(name, window, rule=etrax.kf_rtrl):
    """Gradients for many keys, and those of dense RTRL."""
    step, kind = MODELS[name]
    rng = np.random.RandomState(2)
    draw = lambda *s: jnp.asarray(rng.standard_normal(s) + (1j * rng.standard_normal(s) if kind is complex else 0))
    params = {"wi": draw(3, 2), "wh": 0.5 * draw(2, 2), "b": draw(2).real, "wo": draw(2, 1)}
    x, target = jnp.asarray(rng.standard_normal((STEPS, 4, 3))), jnp.asarray(rng.standard_normal((STEPS, 4, 1)))
    hidden = jnp.zeros((2, 4) if name == "last" else (4, 2), kind)

    def one(key):
        learner = etrax.compile(step, rule(key), x[0], params=params, hidden=hidden)
        return learner.value_and_grad(loss, window=window)(params, learner.init(), x, target)[0][1]

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), DRAWS))
    dense = etrax.compile(step, "rtrl", x[0], params=params, hidden=hidden)
    return found, etrax.testing.dense_rtrl(dense, loss)(params, hidden, x, target)


def deviation(found, want):
    """|mean − want| in standard errors of the mean, over all numbers of a gradient."""
    as_real = lambda a: np.stack([np.real(a), np.imag(a)], -1)
    found, want = as_real(np.asarray(found)), as_real(np.asarray(want))
    return np.abs(found.mean(0) - want) / np.maximum(found.std(0) / np.sqrt(DRAWS), 1e-9)


@pytest.mark.parametrize(("name", "window"), [("rate", 1), ("rate", 2), ("spiking", 1), ("complex", 1), ("last", 2)])
def test_unbiased(name, window):
    found, want = sampled(name, window)
    worst = {k: deviation(found[k], want[k]).max() for k in want}
    assert all(w < 4.5 for w in worst.values()), worst
    assert np.asarray(found["wh"]).std(0).max() > 1e-3  # it is an estimate
    for exact in ("wo", "b"):
        assert relative_error(found[exact][0], want[exact]) < 1e-9


def test_less_noise_than_rank_one():
    noise = [np.asarray(sampled("rate", 1, rule)[0]["wh"]).std(0).mean() for rule in (etrax.kf_rtrl, etrax.uoro)]
    assert noise[0] < 0.8 * noise[1]


@pytest.mark.parametrize("name", ["lstm", "alif_vjp", "lru", "two_layers"])
def test_one_window_is_bptt(name):
    assert_close(gradients(name, etrax.kf_rtrl(0), T)[0], reference.bptt(name))


def test_size():
    """û and A for input and recurrent weights, the whole influence of the bias, a key of two numbers."""
    trace = compiled("vanilla", etrax.kf_rtrl(0)).init().trace
    assert numbers(trace) == B * (I + H * H) + B * (H + H * H) + B * H * H + 2


def test_what_it_learned_is_its_key():
    case, learner = CASES["vanilla"], compiled("vanilla", etrax.kf_rtrl(0))
    state, _ = learner.step(case.params, learner.init(), case.x[0])
    again = learner.init(learned=learner.learned(state))
    assert np.array_equal(again.trace[0].key, state.trace[0].key)
    assert not np.array_equal(again.trace[0].key, learner.init().trace[0].key)


def test_verdicts():
    verdicts = compiled("vanilla", etrax.kf_rtrl(0)).report.verdicts
    kinds = {path[0]: str(verdict.kind) for path, verdict in verdicts.items()}
    assert kinds == {"wi": "approximate", "wh": "approximate", "b": "exact", "wo": "exact", "bo": "exact"}
