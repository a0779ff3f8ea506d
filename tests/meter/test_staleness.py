"""Staleness against traces that are carried by hand, at moving parameters and at the last ones."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax


def leaky(params, h, x):
    h = params["a"] * h + x @ params["w"]
    return h, h


def squared(output, target):
    return ((output - target) ** 2).sum()


def stream(steps=40, rate=0.003):
    """A learner that updates at every step, its states before and after, and its parameters along the way."""
    rng = np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.uniform(0.7, 0.95, 4)), "w": jnp.asarray(rng.standard_normal((3, 4)))}
    xs, ys = rng.standard_normal((steps, 3)), rng.standard_normal((steps, 4))
    learner, optimizer = etrax.compile(leaky, "d_rtrl", xs[0], params=params, hidden=jnp.zeros(4)), optax.sgd(rate)
    train = learner.train(optimizer, squared, 1)
    before, opt_state, along = learner.init(), optimizer.init(params), []
    state = before
    for t in range(steps):
        along.append(params)
        params, opt_state, state, _ = train(params, opt_state, state, xs[t : t + 1], ys[t : t + 1])
    return learner, params, before, state, xs, ys, along


def by_hand(xs, along):
    """h, ∂h/∂a and ∂h/∂w of the leaky units after all steps, each step at its own parameters."""
    h, of_a, of_w = np.zeros(4), np.zeros(4), np.zeros((3, 4))
    for x, p in zip(xs, along, strict=True):
        a, w = np.asarray(p["a"]), np.asarray(p["w"])
        of_a, of_w, h = a * of_a + h, a * of_w + x[:, None], a * h + x @ w
    return h, of_a, of_w


def apart(one, other):
    return np.linalg.norm(one - other) / np.linalg.norm(other)


def test_against_traces_by_hand():
    learner, params, before, state, xs, ys, along = stream()
    meter = learner.meter(squared, window=1)
    reading = meter.measure(params, before, xs, ys, key=jax.random.key(0), now=state)
    h, a_then, w_then = by_hand(xs, along)
    _, a_now, w_now = by_hand(xs, [params] * len(xs))
    np.testing.assert_allclose(state.hidden, h, rtol=1e-9)
    assert reading.staleness["a",].trace == pytest.approx(apart(a_then, a_now), rel=1e-6)
    assert reading.staleness["w",].trace == pytest.approx(apart(w_then, w_now), rel=1e-6)
    # The gradient of the last step once more, from the hidden state of now: both have the same term of the step itself.
    a, w = np.asarray(params["a"]), np.asarray(params["w"])
    error = 2 * (a * h + xs[-1] @ w - ys[-1])
    one, other = (error * (a * of_w + xs[-1][:, None]) for of_w in (w_then, w_now))
    assert reading.staleness["w",].gradient == pytest.approx(apart(one, other), rel=1e-6)
    assert reading.staleness["w",].trace > 0.001 and "stale: trace" in str(reading)


def test_nothing_is_stale_where_nothing_moves():
    learner, params, before, _, xs, ys, _ = stream(rate=0.0)
    (_, _), now = learner.value_and_grad(squared, 1)(params, before, xs, ys)
    reading = learner.meter(squared, 1).measure(params, before, xs, ys, key=jax.random.key(0), now=now)
    assert all(s.trace < 1e-12 and s.gradient < 1e-12 for s in reading.staleness.values())
    plain = learner.meter(squared, 1).measure(params, before, xs, ys, key=jax.random.key(0))
    assert plain.staleness == {} and "stale" not in str(plain)


def test_a_faster_learner_is_staler():
    found = []
    for rate in (1e-9, 1e-8, 1e-7):
        learner, params, before, state, xs, ys, _ = stream(rate=rate)
        reading = learner.meter(squared, 1).measure(params, before, xs, ys, key=jax.random.key(0), now=state)
        found.append(reading.staleness["w",].trace)
    assert found == sorted(found) and found[0] < 0.1 * found[-1]


def test_bad_arguments():
    learner, params, before, _, xs, ys, _ = stream(steps=3)
    with pytest.raises(etrax.EtraxError, match="`state`"):
        learner.meter(squared, 1).measure(params, before, xs, ys, key=jax.random.key(0), now=jnp.zeros(3))
    other = learner.with_rule(etrax.directional())
    with pytest.raises(etrax.NotSupportedError, match="directional"):
        other.meter(squared, 1).measure(params, other.init(), xs, ys, key=jax.random.key(0), now=other.init())
