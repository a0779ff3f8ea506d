"""SnAp and OSTL against J ← M ∘ (A J + C) with dense matrices, step by step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, O, T, loss
from tests.learn.harness import WINDOWS, agrees, assert_close, compiled, differs, gradients, in_numpy
from tests.learn.oracle import relative_error

import etrax
from etrax import Rule
from etrax.rules._snap import reaching_transport


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_ostl(name, windows):
    agrees(name, etrax.ostl(), lambda n, k: reference.snap(n, k, 1), windows)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_snap_2(name, windows):
    agrees(name, etrax.snap(2), lambda n, k: reference.snap(n, k, 2), windows)


def test_snap_1_is_ostl():
    assert_close(gradients("gru", etrax.snap(1), 3)[0], gradients("gru", etrax.ostl(), 3)[0], tol=0)


@pytest.mark.parametrize("name", ["lstm", "alif_vjp", "lru"])
def test_both_engines_agree_on_one_step(name):
    """The step-by-step engine with n = 1 against the closed form over windows."""
    rule = Rule("by steps", partial(reaching_transport, n=1), etrax.ostl().verdict)
    for k in (1, 3):
        assert_close(gradients(name, rule, k)[0], gradients(name, etrax.ostl(), k)[0])


def test_what_is_counted_matters():
    one = reference.snap("gru", 1, 1)
    assert differs(one, reference.d_rtrl("gru", 1)) > 1e-3
    assert differs(one, reference.snap("gru", 1, 2)) > 1e-3
    assert differs(reference.snap("gru", 1, 2), reference.rtrl("gru", 1)) < 1e-10


RING = 7


def ring(params, h, x):
    """Each neuron hears its left neighbour: what n steps reach grows by one neuron a step."""
    h = jnp.tanh(0.6 * h + params["g"] * jnp.roll(h, 1, -1) + x @ params["w"] + params["b"])
    return h, h @ params["wo"]


@pytest.fixture(scope="module")
def ring_data():
    rng = np.random.RandomState(3)
    shapes = {"w": (I, RING), "g": (RING,), "b": (RING,), "wo": (RING, O)}
    params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in shapes.items()}
    return params, jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, O)))


def dense_ring(params, x, target, n, window):
    """The masked recursion for w, by distance on the ring."""
    theta, back = jax.flatten_util.ravel_pytree(params)
    step = lambda t, h, x: ring(back(t), h, x)[0]
    own = {"w": jnp.broadcast_to(jnp.arange(RING), (I, RING)), "g": jnp.arange(RING), "b": jnp.arange(RING)}
    nobody = {"wo": jnp.full((RING, O), -1)}
    column = np.asarray(jax.flatten_util.ravel_pytree({**own, **nobody})[0])
    position = np.tile(np.arange(RING), B)
    mask = (position[:, None] - column[None]) % RING < n
    h, influence, total = jnp.zeros(B * RING), np.zeros((B * RING, theta.size)), np.zeros(theta.size)
    flat = lambda t, h, x: step(t, h.reshape(B, RING), x).reshape(-1)
    for s in range(0, T, window):

        def window_loss(t, h, s=s):
            total = 0.0
            for k in range(s, min(s + window, T)):
                new, out = ring(back(t), h.reshape(B, RING), x[k])
                h, total = new.reshape(-1), total + loss(out, target[k])
            return total

        g_theta, g_entry = jax.grad(window_loss, (0, 1))(theta, h)
        total += g_theta + g_entry @ influence
        for k in range(s, min(s + window, T)):
            c, d = jax.jacrev(flat, (0, 1))(theta, h, x[k])
            influence, h = mask * (np.asarray(d) @ influence + np.asarray(c)), flat(theta, h, x[k])
    return back(jnp.asarray(total / T))


@pytest.mark.parametrize("n", [1, 2, 3, RING])
def test_ring(ring_data, n):
    params, x, target = ring_data
    learner = etrax.compile(ring, etrax.snap(n), x[0], params=params, hidden=jnp.zeros((B, RING)))
    for k in (1, 3):
        (_, got), _ = in_numpy(learner.value_and_grad(loss, window=k), params, learner.init(), x, target)
        want = dense_ring(params, x, target, n, k)
        for name in params:
            assert relative_error(got[name], want[name]) < 1e-10, (name, k)
    kind = learner.report.verdicts["w",].kind
    assert kind == ("exact" if n >= RING else "approximate")
    # memory grows with n: n state scalars per element of y
    assert learner.report.memory["snap"] == 8 * n * (B * I * RING + 2 * B * RING)
    if n == RING:
        _, exact = etrax.testing.bptt(learner, loss)(params, jnp.zeros((B, RING)), x, target)
        assert relative_error(got["w"], exact["w"]) < 1e-10


def test_one_window_is_bptt():
    assert_close(gradients("two_layers", etrax.ostl(), T)[0], reference.bptt("two_layers"))


@pytest.mark.parametrize("name", [n if n == "gru" else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_exact_is_exact(name):
    for rule in (etrax.ostl(), etrax.snap(2), etrax.snap(3)):
        verdicts, got, want = compiled(name, rule).report.verdicts, gradients(name, rule, 1)[0], reference.bptt(name)
        for path, verdict in verdicts.items():
            error = relative_error(got[path[0]], want[path[0]])
            assert (error < 1e-10) == (verdict.kind == "exact"), (path, error, verdict)


def test_verdicts_say_what_is_masked():
    verdict = compiled("vanilla", etrax.snap(1)).report.verdicts["wh",]
    assert verdict.kind == "approximate" and "what positions do to each other" in verdict.reason
    assert compiled("gru", etrax.snap(1)).report.verdicts["wr",].kind == "truncated"
    assert compiled("gru", etrax.snap(2)).report.verdicts["wr",].kind == "exact"


def test_memory_of_ostl():
    """What a position does to itself through the recurrent weights needs the traces of both h and c."""
    assert compiled("lstm", etrax.ostl()).report.memory["ostl"] == 8 * B * 2 * 4 * (I * H + H * H + H)


@pytest.mark.parametrize("n", [0, -1, 1.0, "2", True, None])
def test_bad_n(n):
    with pytest.raises(ValueError, match="`snap` takes a whole number of steps, at least 1"):
        etrax.snap(n)
