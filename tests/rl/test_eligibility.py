"""Traces of the return against their definition: sums of discounted gradients, by reverse mode over all steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

STEPS, DECAY = 7, 0.8
RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.standard_normal((3, 4)), "leak": RNG.standard_normal(4), "out": RNG.standard_normal((4, 3))}
XS, ACTIONS = RNG.standard_normal((STEPS, 3)), RNG.integers(0, 2, STEPS)


def step(params, h, x):
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"])
    y = h @ params["out"]
    return h, (y[:2], y[2])


def score(output, action):
    """The logarithm of the action's probability, and the value."""
    logits, value = output
    return jax.nn.log_softmax(logits)[action] + 0.5 * value


def discounted(params, xs, actions):
    """The sum over t of DECAY^(T - t) s_t, one step after the other."""
    h, total = jnp.zeros(4), 0.0
    for x, action in zip(xs, actions, strict=True):
        h, output = step(params, h, x)
        total = DECAY * total + score(output, action)
    return total


@pytest.fixture(scope="module")
def learner():
    return etrax.compile(step, "d_rtrl", jnp.zeros(3), params=PARAMS, hidden=jnp.zeros(4))


def test_is_the_gradient_of_the_discounted_sum(learner):
    traces = etrax.rl.eligibility(learner, score, DECAY)

    def one(credit, sample):
        credit, found = traces.step(PARAMS, credit, *sample)
        return credit, found

    credit, scores = jax.jit(lambda: jax.lax.scan(one, traces.init(), (XS, ACTIONS)))()
    wanted, grads = jax.value_and_grad(discounted)(PARAMS, XS, ACTIONS)
    weights = DECAY ** np.arange(STEPS)[::-1]
    np.testing.assert_allclose(weights @ scores, wanted, rtol=1e-12)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    jax.tree.map(close, credit.trace, grads)
    jax.tree.map(lambda g, z: close(g, -0.3 * z), traces.gradient(credit, 0.3), grads)
    assert int(credit.state.step) == STEPS


def test_td_lambda_of_a_linear_critic():
    """Without a state that matters: Sutton's TD(λ), update after update."""
    gamma, alpha = 0.9, 0.1
    learner = etrax.compile(
        lambda w, h, x: (h, x @ w), "d_rtrl", jnp.zeros(3), params=jnp.zeros(3), hidden=jnp.zeros(())
    )
    traces = etrax.rl.eligibility(learner, lambda value, target: value, gamma * DECAY)
    rewards = RNG.standard_normal(STEPS - 1)
    w, credit, wanted, z = jnp.zeros(3), traces.init(), np.zeros(3), np.zeros(3)
    for x, after, reward in zip(XS, XS[1:], rewards, strict=False):
        credit, value = traces.step(w, credit, x)
        w = w - alpha * traces.gradient(credit, reward + gamma * after @ w - value)
        z = gamma * DECAY * z + x
        wanted = wanted + alpha * (reward + gamma * after @ wanted - x @ wanted) * z
    np.testing.assert_allclose(w, wanted, rtol=1e-12)


def test_bad_arguments(learner):
    with pytest.raises(etrax.ArgumentError, match="`eligibility` takes a `decay` from 0 to 1"):
        etrax.rl.eligibility(learner, score, 1.1)
    with pytest.raises(etrax.EtraxError, match="loss_fn"):
        etrax.rl.eligibility(learner, None, 0.9)
    with pytest.raises(etrax.EtraxError, match="learner"):
        etrax.rl.eligibility(step, score, 0.9)
