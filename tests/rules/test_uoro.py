"""UORO: unbiased over keys, exact with one window, and the size it claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, T, loss
from tests.learn.harness import assert_close, compiled, gradients
from tests.learn.oracle import relative_error
from tests.rules.models import linear, rate, spiking

import etrax
from etrax.rules._uoro import random_signs

STEPS, DRAWS = 3, 6000

MODELS = {"rate": (rate, float), "spiking": (spiking, float), "complex": (linear, complex)}


def sample_gradients(name, window):
    """Gradients for many keys, BPTT's, and those of a rule without a trace."""
    step, kind = MODELS[name]
    rng = np.random.RandomState(2)
    draw = lambda *s: jnp.asarray(rng.standard_normal(s) + (1j * rng.standard_normal(s) if kind is complex else 0))
    params = {"wi": draw(2, 2), "wh": 0.5 * draw(2, 2), "b": draw(2).real, "wo": draw(2, 1)}
    x, target = jnp.asarray(rng.standard_normal((STEPS, 2, 2))), jnp.asarray(rng.standard_normal((STEPS, 2, 1)))
    hidden = jnp.zeros((2, 2), kind)
    learner = etrax.compile(step, etrax.uoro(0), x[0], params=params, hidden=hidden)
    state, run = learner.init(), learner.value_and_grad(loss, window=window)

    def one(key):
        trace = state.trace._replace(key=jax.random.key_data(key))
        return run(params, state._replace(trace=trace), x, target)[0][1]

    found = jax.vmap(one)(jax.random.split(jax.random.key(1), DRAWS))
    _, want = etrax.testing.bptt(learner, loss)(params, hidden, x, target)
    blind = etrax.compile(step, "tbptt", x[0], params=params, hidden=hidden)
    (_, without), _ = blind.value_and_grad(loss, window=window)(params, blind.init(), x, target)
    return found, want, without


def deviation(found, want):
    """|mean − want| in standard errors of the mean, over all numbers of a gradient."""
    as_real = lambda a: np.stack([np.real(a), np.imag(a)], -1)
    found, want = as_real(np.asarray(found)), as_real(np.asarray(want))
    error = found.std(0) / np.sqrt(DRAWS)
    return np.abs(found.mean(0) - want) / np.maximum(error, 1e-9)


@pytest.mark.parametrize(("name", "window"), [("rate", 1), ("rate", 2), ("spiking", 1), ("complex", 1)])
def test_unbiased(name, window):
    found, want, without = sample_gradients(name, window)
    worst = {k: deviation(found[k], want[k]).max() for k in want}
    assert all(w < 4.5 for w in worst.values()), worst
    # The same measure tells the gradient of a rule without a trace apart by far.
    assert max(deviation(found[k], without[k]).max() for k in want) > 20
    assert relative_error(found["wo"][0], want["wo"]) < 1e-10


@pytest.mark.parametrize("name", ["lstm", "alif_vjp", "lru", "two_layers"])
def test_one_window_is_bptt(name):
    assert_close(gradients(name, etrax.uoro(0), T)[0], reference.bptt(name))


def test_signs_differ_from_window_to_window_and_key_to_key():
    learner, case = compiled("vanilla", etrax.uoro(0)), CASES["vanilla"]
    step = jax.jit(learner.step)
    state, _ = step(case.params, learner.init(), case.x[0])
    again, _ = step(case.params, learner.init(), case.x[0])
    later, _ = step(case.params, state, case.x[0])
    assert np.array_equal(state.trace.back[0], again.trace.back[0])
    assert not np.array_equal(state.trace.key, later.trace.key)
    other = etrax.compile(case.model, etrax.uoro(jax.random.key(9)), case.x[0], params=case.params, hidden=case.hidden)
    assert not np.allclose(other.step(case.params, other.init(), case.x[0])[0].trace.back[0], state.trace.back[0])


def test_the_two_factors_are_balanced():
    _, state = gradients("gru", etrax.uoro(0), 2)
    back = np.sqrt(np.sum(np.square(state.trace.back[0]), 1))
    theta = np.sqrt(sum(np.square(t).reshape(B, -1).sum(1) for t in state.trace.theta.values()))  # samples first in all
    assert np.all(back / theta < 30) and np.all(theta / back < 30)


@pytest.mark.parametrize("rule", [lambda g: jnp.clip(g, -0.1, 0.1), lambda g: jnp.arctan(g)], ids=["clip", "arctan"])
def test_a_derivative_rule_that_is_not_linear(rule):
    """The estimate is that of small gradients, which this rule leaves alone; the window has the rule as it is."""
    bound = jax.custom_vjp(lambda a: a)
    bound.defvjp(lambda a: (a, None), lambda _, g: (rule(g),))
    case, found = CASES["vanilla"], []
    for wrap in (bound, lambda a: a):

        def step(p, h, x, wrap=wrap):
            return case.model(p, wrap(h), x)

        learner = etrax.compile(step, etrax.uoro(0), case.x[0], params=case.params, hidden=case.hidden)
        found.append(
            (learner, *learner.value_and_grad(loss, window=2)(case.params, learner.init(), case.x, case.targets))
        )
    (learner, (_, grads), state), (_, _, want) = found
    for a, b in zip(jax.tree.leaves(state.trace), jax.tree.leaves(want.trace), strict=True):
        assert relative_error(a, b) < 1e-10
    assert "is not linear" in learner.report.verdicts["wi",].reason
    assert all(np.all(np.isfinite(g)) for g in grads.values())


def test_memory():
    learner = compiled("vanilla", etrax.uoro(0))
    assert learner.report.memory["uoro"] == 8 * B * (H + I * H + H * H + H) + 8  # and a key


def test_verdicts():
    verdicts = compiled("gru", etrax.uoro(0)).report.verdicts
    assert {p[0] for p, v in verdicts.items() if v.kind == "exact"} == {"wo", "bo"}
    assert all("on average" in v.reason for v in verdicts.values() if v.kind != "exact")


@pytest.mark.parametrize("key", [None, "key", 0.5, jnp.ones(3)])
def test_bad_key(key):
    with pytest.raises(ValueError, match="`uoro` needs `key=`"):
        etrax.uoro(key)


@pytest.mark.parametrize("name", ["rate", "complex"])
def test_a_derivative_that_can_only_be_run(name):
    """An adjoint that is a callback gives what the same adjoint gives that JAX can see into, draw by draw.

    One sample: those of a batch are not known to be apart where the analysis cannot look, and are balanced together.
    """
    step, kind = MODELS[name]
    rng = np.random.RandomState(5)
    shapes = {"wi": (2, 3), "wh": (3, 3), "wo": (3, 1)}
    params = {k: jnp.asarray(rng.standard_normal(s), kind) for k, s in shapes.items()}
    params["b"] = jnp.asarray(rng.standard_normal(3))
    x, target = jnp.asarray(rng.standard_normal((5, 1, 2))), jnp.asarray(rng.standard_normal((5, 1, 1)))

    def seen(g):
        return 0.7 * g

    def hidden_from_jax(g):
        return jax.pure_callback(lambda a: 0.7 * np.asarray(a), jax.ShapeDtypeStruct(g.shape, g.dtype), g)

    def gradient(adjoint):
        scaled = jax.custom_vjp(lambda h: h)
        scaled.defvjp(lambda h: (h, None), lambda _, g: (adjoint(g),))
        own = lambda p, h, x: step(p, scaled(h), x)
        learner = etrax.compile(own, etrax.uoro(3), x[0], params=params, hidden=jnp.zeros((1, 3), kind))
        return learner.value_and_grad(loss, window=2)(params, learner.init(), x, target)[0][1]

    want, got = gradient(seen), gradient(hidden_from_jax)
    for key, g in want.items():
        assert relative_error(got[key], g) < 1e-10, key


def test_signs_are_the_same_without_float64():
    """A run is repeated on a machine with another default precision; `jax.random.rademacher` would differ."""
    wide = random_signs(jax.random.key(3), (2, 50), jnp.float32)
    with jax.enable_x64(False):
        narrow = random_signs(jax.random.key(3), (2, 50), jnp.float32)
    np.testing.assert_array_equal(wide, narrow)
    assert set(np.unique(wide)) == {-1.0, 1.0} and abs(float(wide.mean())) < 0.4
