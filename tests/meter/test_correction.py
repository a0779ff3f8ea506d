"""Corrected traces against traces of the changed parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

UNITS = 4


def leaky(params, h, x):
    h = jnp.exp(-jnp.exp(params["leak"])) * h + x @ params["w"]
    return h, h @ params["out"]


def turning(params, h, x):
    decay = jnp.exp(jax.lax.complex(-jnp.exp(params["leak"]), params["angle"]))
    h = decay * h + jnp.sqrt(1 - jnp.abs(decay) ** 2) * (x @ params["w"])
    return h, h.real @ params["out"]


def stacked(params, h, x):
    """Two leaky layers: a leak of the lower one acts on the traces above through all its units."""
    low = params["leak"] * h[0] + x @ params["w"]
    high = params["above"] * h[1] + jnp.tanh(low) @ params["v"]
    return (low, high), high @ params["out"]


def dense(params, h, x):
    h = jnp.tanh(x @ params["w"] + h @ params["v"] + params["leak"])
    return h, h @ params["out"]


def model(step):
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in
              {"w": (3, UNITS), "v": (UNITS, UNITS), "out": (UNITS, 1)}.items()}  # fmt: skip
    params["leak"] = jnp.asarray(rng.uniform(-3, -2, UNITS) if step is not stacked else rng.uniform(0.6, 0.9, UNITS))
    if step is turning:
        params["angle"] = jnp.asarray(rng.uniform(0.1, 1, UNITS))
    if step is stacked:
        params["above"] = jnp.asarray(rng.uniform(0.6, 0.9, UNITS))
    if step in (leaky, turning):
        del params["v"]
    zeros = jnp.zeros((2, UNITS), complex if step is turning else float)
    hidden = (zeros, zeros) if step is stacked else zeros
    return params, etrax.compile(step, "d_rtrl", jnp.ones((2, 3)), params=params, hidden=hidden)


def traces(learner, params, xs, reset=None):
    state = learner.init(params)
    for t, x in enumerate(xs):
        state, _ = learner.step(params, state, x, reset=None if reset is None else reset[t])
    return state


def apart(one, other):
    return [float(jnp.linalg.norm(a - b)) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]


@pytest.mark.parametrize("step", [leaky, turning])
@pytest.mark.parametrize("resets", [False, True])
def test_a_corrected_trace_is_that_of_the_changed_leaks(step, resets):
    params, learner = model(step)
    xs = jnp.asarray(np.random.default_rng(1).standard_normal((12, 2, 3)))
    reset = jnp.arange(12) == 5 if resets else None
    correction = learner.correction()
    memory = correction.follow(correction.init(learner.init()), params, learner.init(), xs, reset)
    change = {name: jnp.zeros_like(p) for name, p in params.items()}
    for name in ("leak", "angle") if step is turning else ("leak",):
        change[name] = jnp.asarray(np.random.default_rng(2).standard_normal(UNITS)) * 1e-4
    new = jax.tree.map(jnp.add, params, change)
    old, goal = traces(learner, params, xs, reset), traces(learner, new, xs, reset)
    corrected = correction.correct(memory, old, change)
    for before, after in zip(apart(old.trace, goal.trace), apart(corrected.trace, goal.trace), strict=True):
        assert after < 0.01 * before
    assert apart(corrected.hidden, old.hidden) == [0]
    # In pieces, memory goes on where it was.
    middle = traces(learner, params, xs[:7], None if reset is None else reset[:7])
    pieces = correction.follow(
        correction.init(learner.init()), params, learner.init(), xs[:7], None if reset is None else reset[:7]
    )
    pieces = correction.follow(pieces, params, middle, xs[7:], None if reset is None else reset[7:])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), pieces, memory)


def test_half_lives_from_20_to_300_steps():
    """While all parameters drift: some 0.5 % of the trace of w without a correction, below 0.05 % with it."""
    params, learner = model(leaky)
    xs = jnp.asarray(np.random.default_rng(3).standard_normal((900, 2, 3)))
    correction = learner.correction()

    @jax.jit
    def drift(params, rate):
        change = jax.tree.map(lambda p: jnp.full(p.shape, rate), params)

        def body(carry, x):
            params, plain, state, memory = carry
            memory = correction.follow(memory, params, state, x[None])
            (plain, _), (state, _) = learner.step(params, plain, x), learner.step(params, state, x)
            state = correction.correct(memory, state, change)
            return (jax.tree.map(jnp.add, params, change), plain, state, memory), None

        start = learner.init(params)
        last, plain, state, _ = jax.lax.scan(body, (params, start, start, correction.init(start)), xs)[0]
        return last, plain, state

    meter = learner.meter(lambda o, y: ((o - y) ** 2).mean(), 1, probes=4)
    for half_life in (20, 100, 300):
        params["leak"] = jnp.full(UNITS, np.log(np.log(2) / half_life))
        last, *states = drift(params, 0.01 / half_life)
        errors = []
        for state in states:
            reading = meter.measure(last, learner.init(last), xs, xs[..., :1], key=jax.random.key(0), now=state)
            errors.append(reading.staleness["w",].trace)
        assert 0.003 < errors[0] < 0.01 and errors[1] < 0.0005, errors


def test_a_leak_below_corrects_its_own_layer_only():
    params, learner = model(stacked)
    correction = learner.correction()
    assert str(correction) == "correction of the traces by 'above', 'leak'"
    xs = jnp.asarray(np.random.default_rng(1).standard_normal((12, 2, 3)))
    memory = correction.follow(correction.init(learner.init()), params, learner.init(), xs)
    change = {name: jnp.zeros_like(p) for name, p in params.items()} | {"leak": jnp.full(UNITS, 1e-4)}
    old = traces(learner, params, xs)
    corrected = correction.correct(memory, old, change)
    goal = traces(learner, jax.tree.map(jnp.add, params, change), xs)
    moved = [a > 0 for a in apart(corrected.trace, old.trace)]
    assert any(moved) and not all(moved)
    pairs = zip(moved, apart(old.trace, goal.trace), apart(corrected.trace, goal.trace), strict=True)
    assert all(after < 0.01 * before for own, before, after in pairs if own)


def test_a_model_without_leaks_is_refused():
    _, learner = model(dense)
    with pytest.raises(etrax.ArgumentError, match="no parameter is a leak"):
        learner.correction()
