"""Agents against loops written by hand, and against the definition of their traces by reverse mode over all steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

GAMMA, LAMBDA, STEPS = 0.9, 0.7, 9
RNG = np.random.default_rng(5)
XS = RNG.standard_normal((STEPS, 3))
REWARDS = RNG.standard_normal(STEPS)
DONE = np.zeros(STEPS, bool)
DONE[5] = True  # observation 5 is the first one of a new episode


def recurrent(params, h, x):
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"])
    y = h @ params["out"]
    return h, (y[:2], y[2])


def memoryless(params, h, x):
    y = x @ params["out"]
    return h, (y[:2], y[2])


RECURRENT = {"w": RNG.standard_normal((3, 4)), "leak": RNG.standard_normal(4), "out": RNG.standard_normal((4, 3))}
MEMORYLESS = {"out": RNG.standard_normal((3, 3))}


def compiled(step, params, hidden):
    return etrax.compile(step, "d_rtrl", XS[0], params=params, hidden=hidden)


def lived(agent, params=None):
    state, infos = agent.init(jax.random.key(0), params), []
    for x, reward, done in zip(XS, REWARDS, DONE, strict=True):
        state, info = agent.step(state, x, reward, done)
        infos.append(info)
    return state, infos


def test_trace_of_a_recurrent_actor_critic_is_a_discounted_gradient():
    """Frozen parameters: the trace before the last observation is the gradient of the discounted scores."""
    learner = compiled(recurrent, RECURRENT, np.zeros(4))
    agent = etrax.rl.actor_critic(learner, optax.sgd(0.0), discount=GAMMA, trace_decay=LAMBDA, value_weight=0.5)
    state, infos = lived(agent)
    actions = [int(info.action) for info in infos]

    def total(params):
        h, out = jnp.zeros(4), 0.0
        for x, action in list(zip(XS, actions, strict=True))[5 : STEPS - 1]:
            h, (logits, value) = recurrent(params, h, x)
            out = GAMMA * LAMBDA * out + jax.nn.log_softmax(logits)[action] + 0.5 * value
        return out

    wanted = jax.grad(total)(RECURRENT)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), state.credit.trace, wanted)


@pytest.mark.parametrize("entropy", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", ["sgd", "obgd"])
def test_actor_critic_by_hand(entropy, optimizer):
    """A model without memory, so that its gradients are those of one step: every update written out."""
    rule = optax.sgd(0.05) if optimizer == "sgd" else etrax.rl.obgd(0.5, 2.0)
    learner = compiled(memoryless, MEMORYLESS, np.zeros(()))
    agent = etrax.rl.actor_critic(learner, rule, discount=GAMMA, trace_decay=LAMBDA, entropy=entropy)
    state, infos = lived(agent)

    def score(w, x, action, error):
        _, (logits, value) = memoryless({"out": w}, None, x)
        log_policy = jax.nn.log_softmax(logits)
        return log_policy[action] + value - entropy * jnp.sign(error) * (jnp.exp(log_policy) * log_policy).sum()

    w, z = MEMORYLESS["out"], np.zeros((3, 3))
    for t in range(1, STEPS):
        value, after = (XS[k] @ w[:, 2] for k in (t - 1, t))
        error = REWARDS[t] + (0.0 if DONE[t] else GAMMA * after) - value
        np.testing.assert_allclose(infos[t].error, error, rtol=1e-9)
        z = GAMMA * LAMBDA * z + jax.grad(score)(w, XS[t - 1], int(infos[t - 1].action), error)
        step = 0.05 if optimizer == "sgd" else 0.5 / max(1.0, max(abs(error), 1.0) * np.abs(z).sum())
        np.testing.assert_allclose(infos[t].step_size, step, rtol=1e-6)
        w = w + step * error * z
        z = np.zeros_like(z) if DONE[t] else z
    np.testing.assert_allclose(state.params["out"], w, rtol=1e-9)


def test_q_learning_by_hand():
    learner = compiled(lambda p, h, x: (h, x @ p["out"]), MEMORYLESS, np.zeros(()))
    agent = etrax.rl.q_learning(learner, optax.sgd(0.1), discount=GAMMA, trace_decay=LAMBDA, exploration=0.5)
    state, infos = lived(agent)
    w, z, explored = MEMORYLESS["out"], np.zeros((3, 3)), 0
    for t in range(STEPS):
        if t:
            action = int(infos[t - 1].action)
            error = REWARDS[t] + (0.0 if DONE[t] else GAMMA * (XS[t] @ w).max()) - (XS[t - 1] @ w)[action]
            z = GAMMA * LAMBDA * z + np.outer(XS[t - 1], np.eye(3)[action])
            w = w + 0.1 * error * z
            z = np.zeros_like(z) if DONE[t] else z
        if int(infos[t].action) != (XS[t] @ w).argmax():
            z, explored = np.zeros_like(z), explored + 1
    np.testing.assert_allclose(state.params["out"], w, rtol=1e-9)
    assert 0 < explored < STEPS


def test_exploration_follows_a_schedule():
    learner = compiled(lambda p, h, x: (h, x @ p["out"]), MEMORYLESS, np.zeros(()))
    rate = lambda count: jnp.where(count < 4, 0.0, 1.0)
    agent = etrax.rl.q_learning(learner, optax.sgd(0.0), discount=GAMMA, trace_decay=LAMBDA, exploration=rate)
    runs = [[int(info.action) for info in lived(agent)[1]]]
    best = (XS @ MEMORYLESS["out"]).argmax(1)
    assert runs[0][:4] == best[:4].tolist() and runs[0][4:] != best[4:].tolist()


def test_one_decay_for_each_branch():
    learner = compiled(recurrent, RECURRENT, np.zeros(4))
    value = lambda output, target: output[1]
    both = etrax.rl.eligibility(learner, value, {"w": 0.5, "leak": 0.5, "out": 0.0})
    alone = {rate: etrax.rl.eligibility(learner, value, rate) for rate in (0.5, 0.0)}
    credits = [rule.init() for rule in (both, alone[0.5], alone[0.0])]
    for x in XS[:3]:
        credits = [rule.step(RECURRENT, c, x)[0] for rule, c in zip((both, *alone.values()), credits, strict=True)]
    mixed, slow, none = (c.trace for c in credits)
    np.testing.assert_allclose(mixed["w"], slow["w"])
    np.testing.assert_allclose(mixed["out"], none["out"])
    with pytest.raises(etrax.ArgumentError, match="does not begin like the parameters"):
        etrax.rl.eligibility(learner, value, {"v": 0.5})


class Counter(NamedTuple):
    """A world in gymnax's form: the observation counts, an episode has four steps, action 1 is rewarded."""

    default_params: None = None

    def reset(self, key, params):
        return jnp.array([0.0, 1.0, 0.0]), jnp.array(0)

    def step(self, key, state, action, params):
        done = state + 1 == 4
        state = jnp.where(done, 0, state + 1)
        return jnp.array([0.25, 0.0, 0.0]) * state + jnp.array([0.0, 1.0, 0.0]), state, action == 1, done, {}


class CutShort(Counter):
    """The form of gymnax 1.0: episodes of four steps are cut short, none ends."""

    def step(self, *args):
        *others, done, info = super().step(*args)
        return *others, jnp.array(False), done, info


class Looped:
    """The same world in gymnasium's form; from step `broken` on, what it shows is not finite."""

    def __init__(self, broken=10**9):
        self.state, self.left = 0, broken

    def reset(self, seed=None):
        self.state = 0
        return self.shown(), {}

    def shown(self):
        return np.array([0.25 * self.state, 1.0, 0.0]) * (1.0 if self.left > 0 else np.nan)

    def step(self, action):
        self.left -= 1
        self.state += 1
        return self.shown(), float(action == 1), self.state == 4, False, {}


def agent_of_counters():
    learner = compiled(recurrent, RECURRENT | {"out": np.zeros((4, 3))}, np.zeros(4))
    return etrax.rl.actor_critic(learner, etrax.rl.obgd(), discount=0.9, trace_decay=0.8, entropy=0.3)


def test_lives_in_a_scan_and_learns():
    agent = agent_of_counters()
    scales = {"observations": etrax.rl.normalise(), "rewards": etrax.rl.scale_rewards(0.9)}
    live = jax.jit(lambda key: etrax.rl.live_in_gymnax(agent, Counter(), 4000, key, **scales)[1])
    life = live(jax.random.key(1))
    assert life.reward[-400:].mean() > 0.9 > life.reward[:400].mean()
    assert int(life.done.sum()) == 1000 and np.isfinite(life.step_size).all()


def test_an_episode_that_is_cut_short_ends():
    lives = [
        etrax.rl.live_in_gymnax(agent_of_counters(), world, 12, jax.random.key(1))[1]
        for world in (Counter(), CutShort())
    ]
    jax.tree.map(np.testing.assert_array_equal, *lives)
    assert int(lives[1].done.sum()) == 3


def test_lives_in_a_loop():
    agent = agent_of_counters()
    state, life = etrax.rl.live_in_gymnasium(agent, Looped(), 60, jax.random.key(1))
    assert int(life.done.sum()) == 15 and int(state.steps) == 60
    with pytest.raises(etrax.rl.WorldError, match="not finite at step 7") as broken:
        etrax.rl.live_in_gymnasium(agent, Looped(broken=7), 60, jax.random.key(1))
    before, _ = etrax.rl.live_in_gymnasium(agent, Looped(), 7, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, broken.value.state.params, before.params)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda learner: etrax.rl.actor_critic(learner, None, discount=0.9, trace_decay=0.9), "optimizer"),
        (lambda learner: etrax.rl.actor_critic(learner, optax.sgd(1), discount=2, trace_decay=0.9), "`discount`"),
        (lambda learner: etrax.rl.q_learning(learner, optax.sgd(1), discount=1, trace_decay=-1), "`trace_decay`"),
        (
            lambda learner: etrax.rl.q_learning(learner, optax.sgd(1), discount=1, trace_decay=0, exploration=3),
            "`exploration`",
        ),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(etrax.ArgumentError, match=text):
        make(compiled(recurrent, RECURRENT, np.zeros(4)))
