"""Rules against second implementations from their papers, differentiated by hand in NumPy (`papers.py`)."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import spike_vjp
from tests.learn.harness import in_numpy
from tests.learn.oracle import relative_error
from tests.rules import papers

import etrax

B, I, H, O, T = 2, 2, 3, 2, 5
KEY = 4
WINDOWS = [pytest.param(2, id="2"), *(pytest.param(k, id=str(k), marks=pytest.mark.slow) for k in (1, 3))]


def leaky(p, h, x):
    h = papers.LEAK * h + (1 - papers.LEAK) * jnp.tanh(x @ p["wi"] + h @ p["wh"])
    return h, h @ p["wo"]


def ring(p, h, x):
    h = papers.LEAK * h + (1 - papers.LEAK) * jnp.tanh(x @ p["wi"] + 0.5 * jnp.roll(h, 1, -1))
    return h, h @ p["wo"]


def lif(p, v, x):
    z = spike_vjp(v - papers.THRESHOLD)
    v = papers.LEAK * v + x @ p["wi"] + z @ p["wh"] - papers.THRESHOLD * z
    return v, spike_vjp(v - papers.THRESHOLD) @ p["wo"]


def alif(p, s, x):
    v = papers.LEAK * s["v"] + x @ p["wi"] + s["z"] @ p["wh"] - papers.THRESHOLD * s["z"]
    a = papers.ADAPTATION * s["a"] + s["z"]
    z = spike_vjp(v - papers.THRESHOLD - papers.STRENGTH * a)
    return {"a": a, "v": v, "z": z}, z @ p["wo"]


def gru(p, h, x):
    z = jax.nn.sigmoid(x @ p["wz"] + h @ p["uz"])
    r = jax.nn.sigmoid(x @ p["wr"] + h @ p["ur"])
    n = jnp.tanh(x @ p["wn"] + (r * h) @ p["un"])
    h = z * h + (1 - z) * n
    return h, h @ p["wo"]


PLAIN = {"wh": (H, H), "wi": (I, H)}
GATES = {"un": (H, H), "ur": (H, H), "uz": (H, H), "wn": (I, H), "wr": (I, H), "wz": (I, H)}
# Step in JAX, step by hand, the weights that drive states in the order of their columns, states and neurons.
MODELS = {
    "leaky": (leaky, papers.leaky, PLAIN, 1, H), "lif": (lif, papers.lif, PLAIN, 1, H),
    "alif": (alif, papers.alif, PLAIN, 3, H), "gru": (gru, papers.gru, GATES, 1, H),
    "ring": (ring, papers.ring, {"wi": (I, 5)}, 1, 5),
}  # fmt: skip


@lru_cache
def data(name):
    _, _, shapes, states, neurons = MODELS[name]
    rng = np.random.RandomState(len(name))
    params = {k: 0.8 * rng.standard_normal(s) for k, s in {**shapes, "wo": (neurons, O)}.items()}
    h = 0.3 * rng.standard_normal((states, B, neurons))
    if states == 3:
        h[2] = h[2] > 0
    return params, h, rng.standard_normal((T, B, I)), rng.standard_normal((T, B, O))


@lru_cache
def runs(name):
    """Every sample by hand."""
    params, h, x, target = data(name)
    return [papers.run(MODELS[name][1], params, h[:, b].reshape(-1), x[:, b], target[:, b]) for b in range(B)]


def half_square(o, t):
    return 0.5 * ((o - t) ** 2).sum()


def learned(name, rule, k):
    params, h, x, target = jax.tree.map(jnp.asarray, data(name))
    hidden = dict(zip("avz", h, strict=True)) if len(h) == 3 else h[0]
    learner = etrax.compile(MODELS[name][0], rule, x[0], params=params, hidden=hidden)
    run = learner.value_and_grad(half_square, window=k, reduction="sum")
    (_, grads), state = in_numpy(run, params, learner.init(), x, target)
    return grads, state


def agrees(name, rule, k, by_hand):
    """`by_hand(run, sample)` is a flat gradient; the readout is exact under every rule."""
    grads, state = learned(name, rule, k)
    where, _ = papers.columns(MODELS[name][2])
    total = sum(by_hand(r, b) for b, r in enumerate(runs(name)))
    for key, at in where.items():
        assert relative_error(grads[key], total[at].reshape(grads[key].shape)) < 1e-12, (name, key)
    assert relative_error(grads["wo"], sum(r.readout for r in runs(name))) < 1e-12
    return state


SPIKING_AND_NOT = ["leaky", "lif", "alif", "gru"]
by_model = pytest.mark.parametrize("name", SPIKING_AND_NOT)
by_window = pytest.mark.parametrize("k", WINDOWS)


@by_model
def test_by_hand_is_right(name):
    """The derivatives by hand against BPTT by `jax.grad`."""
    step, params, h, x, target = MODELS[name][0], *jax.tree.map(jnp.asarray, data(name))

    def total(params):
        hidden, found = (dict(zip("avz", h, strict=True)) if len(h) == 3 else h[0]), 0.0
        for t in range(T):
            hidden, o = step(params, hidden, x[t])
            found += half_square(o, target[t])
        return found

    want = jax.grad(total)(params)
    got = sum(papers.bptt(r) for r in runs(name))
    for key, at in papers.columns(MODELS[name][2])[0].items():
        assert relative_error(got[at].reshape(want[key].shape), want[key]) < 1e-12


@by_window
@by_model
def test_e_prop(name, k):
    agrees(name, etrax.e_prop(0.7), k, lambda r, _: papers.e_prop(r, k, 0.7))


def matrix(name):
    neurons = MODELS[name][4]
    drawn = jax.random.normal(jax.random.fold_in(jax.random.key(KEY), 0), (O, neurons), np.float32)
    return np.asarray(drawn / neurons**0.5).astype(float)


@pytest.mark.parametrize("kappa", [0.0, pytest.param(0.7, marks=pytest.mark.slow)])
@by_window
@by_model
def test_e_prop_with_random_feedback(name, k, kappa):
    rule = etrax.e_prop(kappa, "random", key=KEY)
    agrees(name, rule, k, lambda r, _: papers.e_prop_with_feedback(r, [matrix(name)] * T, kappa))


@by_window
@by_model
def test_e_prop_with_adaptive_feedback(name, k):
    """Kolen and Pollack: the matrix moves as gradient descent moves the readout, once a window."""
    used, b = [], matrix(name)
    for window in papers.windows(T, k):
        used += [b] * len(window)
        moves = [np.outer(r.errors[t], r.steps[t].z) for r in runs(name) for t in window]
        b = 0.8 * b - 0.3 * sum(moves) / len(window)
    rule = etrax.e_prop(0.5, "adaptive", key=KEY, feedback_rate=0.3, feedback_decay=0.2)
    state = agrees(name, rule, k, lambda r, _: papers.e_prop_with_feedback(r, used, 0.5))
    assert relative_error(state.trace.source[0], b) < 1e-12


@by_window
@by_model
def test_rflo(name, k):
    agrees(name, etrax.rflo(0.8), k, lambda r, _: papers.rflo(r, k, 0.8))


@by_window
@by_model
def test_ottt(name, k):
    agrees(name, etrax.ottt(0.8), k, lambda r, _: papers.ottt(r, k, 0.8))


@by_window
@pytest.mark.parametrize(("name", "n"), [*((m, 1) for m in SPIKING_AND_NOT), ("alif", 2), ("ring", 2), ("ring", 3)])
def test_snap(name, n, k):
    agrees(name, etrax.snap(n), k, lambda r, _: papers.snap(r, k, n))


@by_window
@by_model
def test_uoro(name, k):
    """The same random signs: those of the key in the learner's state, sample by sample and state by state."""
    states = MODELS[name][3]
    key, signs = jax.random.key(KEY), []
    for _ in papers.windows(T, k):
        now, key = jax.random.split(key)
        bits = [jax.random.bits(jax.random.fold_in(now, n), (2, B, H), jnp.uint8)[0] for n in range(states)]
        draws = [jnp.where(b < 128, -1.0, 1.0) for b in bits]
        signs.append(np.stack(draws, 1).reshape(B, -1))
    agrees(name, etrax.uoro(KEY), k, lambda r, b: papers.uoro(r, k, [s[b] for s in signs]))
