"""The oracles that ship: three ways to one gradient, held against a gradient worked out by hand and each other."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.oracle import relative_error

import etrax
from etrax.testing import GradientError, bptt, compare, dense_rtrl, finite_differences

T, B, I, H = 6, 2, 3, 4


def gated(p, h, x):
    z = jax.nn.sigmoid(x @ p["wz"] + h @ p["u"])
    h = (1 - z) * h + z * jnp.tanh(x @ p["w"])
    return h, h @ p["out"]


def complex_state(p, h, x):
    h = (0.8 + 0.3j) * h + (x @ p["w"]).astype(jnp.complex128) * p["gain"]
    return h, h.real.sum(-1, keepdims=True) * jnp.ones(2)


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def learner_of(step, shapes, hidden, rule="d_rtrl"):
    rng = np.random.RandomState(4)
    params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in shapes.items()}
    if step is complex_state:
        params["gain"] = params["gain"] * (1 + 0.5j)
    x, y = jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, 2)))
    return etrax.compile(step, rule, x[0], params=params, hidden=hidden), (params, hidden, x, y)


MODELS = {
    "gated": (gated, {"wz": (I, H), "u": (H, H), "w": (I, H), "out": (H, 2)}, jnp.zeros((B, H))),
    "complex": (complex_state, {"w": (I, H), "gain": (H,)}, jnp.zeros((B, H), complex)),
}


@pytest.mark.parametrize("name", MODELS)
def test_they_agree(name):
    learner, given = learner_of(*MODELS[name])
    _, by_reverse_mode = bptt(learner, loss)(*given)
    forward, measured = dense_rtrl(learner, loss)(*given), finite_differences(learner, loss)(*given)
    for key, want in by_reverse_mode.items():
        assert relative_error(forward[key], want) < 1e-10, key
        assert relative_error(measured[key], want) < 1e-6, key
        assert np.any(want)


def test_by_hand():
    """h ← a h + w x and ℓ = h² / 2: dℓ/dw = Σ_t h_t e_t with e ← a e + x, dℓ/da = Σ_t h_t f_t with f ← a f + h."""
    step = lambda p, h, x: (p["a"] * h + p["w"] * x,) * 2
    x = jnp.array([1.0, -0.5, 2.0, 0.3])
    params, start = {"a": jnp.float64(0.9), "w": jnp.float64(0.7)}, jnp.float64(0.2)
    h, e, f, want = 0.2, 0.0, 0.0, {"a": 0.0, "w": 0.0}
    for value in np.asarray(x):
        f, e = 0.9 * f + h, 0.9 * e + value
        h = 0.9 * h + 0.7 * value
        want = {"a": want["a"] + h * f, "w": want["w"] + h * e}
    learner = etrax.compile(step, "rtrl", x[0], params=params, hidden=start)
    half = lambda o, _: o**2 / 2
    given = params, start, x
    of_mean = dense_rtrl(learner, half)(*given)
    for found in (bptt(learner, half, "sum")(*given)[1], {k: 4 * g for k, g in of_mean.items()}):
        assert {k: float(v) for k, v in found.items()} == pytest.approx(want, rel=1e-12)


def test_masks():
    """A step that does not count is as if the loss there were zero; the state goes on."""
    learner, (params, hidden, x, y) = learner_of(*MODELS["gated"])
    mask = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    _, masked = bptt(learner, loss)(params, hidden, x, y, mask)
    assert relative_error(masked["w"], bptt(learner, loss)(params, hidden, x, y)[1]["w"]) > 1e-3

    def total(p):
        h, found = hidden, 0.0
        for t in range(T):
            h, output = gated(p, h, x[t])
            found += mask[t] * loss(output, y[t])
        return found / mask.sum()

    for key, want in jax.grad(total)(params).items():
        assert relative_error(masked[key], want) < 1e-12


@pytest.mark.parametrize("lanes", [False, True])
def test_resets(lanes):
    """BPTT of pieces that begin with the initial state, one for each lane; a learner's gradient is beside it."""
    learner, (params, hidden, x, y) = learner_of(*MODELS["gated"], rule="rtrl")
    hidden = hidden + 0.3
    flags = np.zeros((T, B), bool)
    flags[2], flags[4, 0] = True, True
    flags = flags if lanes else flags[:, 0]

    def total(p):
        found = 0.0
        for b in range(B):
            h = hidden[b]
            for t in range(T):
                h = hidden[b] if flags.reshape(T, -1)[t, b if lanes else 0] else h
                h, output = gated(p, h, x[t, b])
                found += loss(output, y[t, b])
        return found / (T * B)

    _, found = bptt(learner, loss)(params, hidden, x, y, None, flags, initial=hidden)
    for key, want in jax.grad(total)(params).items():
        assert relative_error(found[key], want) < 1e-12
    compare(learner, loss, params, hidden, x, y, window=4, reset=flags).check()


def test_compare_tells_a_wrong_gradient():
    right, given = learner_of(*MODELS["complex"])
    compare(right, loss, *given).check()
    blind, given = learner_of(*MODELS["gated"], rule="tbptt")
    found = compare(blind, loss, *given)
    assert found["u"].verdict.kind == "truncated" and found["u"].relative_error > 1e-3
    lying = replace(found, rows=(replace(found["u"], verdict=found["out"].verdict),))
    assert found["out"].verdict.kind == "exact"
    with pytest.raises(GradientError, match="'u': relative error"):
        lying.check()


def test_where_bptt_is_not_finite_nothing_is_blamed():
    step = lambda p, h, x: (jnp.exp(h * h) + x @ p["w"],) * 2
    params, xs = {"w": jnp.ones((I, H))}, jnp.ones((T, I))
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.ones(H))
    with pytest.raises(GradientError, match=r"BPTT's own gradient is not finite \(of 'w'\).*check_finite=True"):
        compare(learner, lambda o, y: (o**2).mean(), params, jnp.ones(H), xs, window=2).check()
