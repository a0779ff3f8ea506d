# %% [markdown]
# # Streams, and a reward that comes late
#
# A learner that updates after every sample follows a stream that changes. Here it is fed from a Python loop, as samples
# come from a sensor.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import etrax

memory = etrax.nn.pure.MinGRUCell(2, 24)


def step(params, hidden, x):
    hidden, h = memory.step(params["memory"], hidden, x)
    return hidden, h @ params["out"]


keys = jax.random.split(jax.random.key(0), 4)
params = {"memory": memory.init(keys[0]), "out": 0.1 * jax.random.normal(keys[1], (24, 1))}
learner = etrax.compile(step, "d_rtrl", jnp.zeros(2), params=params, hidden=memory.hidden())
print(repr(learner))

# %% [markdown]
# The target is a running mean of the first input; from the middle on, of the second.

# %%
x = np.random.default_rng(0).standard_normal((2000, 2)).astype(np.float32)
mean = np.zeros(2, np.float32)
online = learner.online(optax.adam(5e-3), lambda o, t: jnp.mean((o - t) ** 2))
errors = []
for t in range(len(x)):
    mean = 0.8 * mean + 0.2 * x[t]
    errors.append(float(online.feed(x[t], mean[:1] if t < 1000 else mean[1:]).loss))
blocks = np.reshape(errors, (40, -1)).mean(1)
assert blocks[18:20].mean() < blocks[0] and blocks[-2:].mean() < blocks[20:22].mean()
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(np.arange(40) * 50, blocks)
axes.axvline(1000, color="grey", linestyle="--")
_ = axes.set(xlabel="samples", ylabel="error before each update", ylim=(0, None))

# %% [markdown]
# With a reward instead of a target there are two traces: the learner's, and that of the return. `etrax.rl.eligibility`
# carries both. A cue comes at the first of six steps; at the last, one of two actions is rewarded, the one that the cue
# named.

# %%
STEPS = 6


def agent(params, hidden, x):
    hidden, h = memory.step(params["memory"], hidden, x)
    return hidden, h @ params["policy"]


policy = {"memory": memory.init(keys[2]), "policy": 0.1 * jax.random.normal(keys[3], (24, 2))}
actor = etrax.compile(agent, "d_rtrl", jnp.zeros(2), params=policy, hidden=memory.hidden())
traces = etrax.rl.eligibility(actor, lambda logits, action: jax.nn.log_softmax(logits)[action], decay=0.0)
adam = optax.adam(1e-2)


def episode(carry, key):
    params, opt_state = carry
    choose, cues = jax.random.split(key)
    cue = jax.random.randint(cues, (), 0, 2)
    credit = traces.init(params)
    for t in range(STEPS):
        seen = jax.nn.one_hot(cue, 2) * (t == 0)
        _, logits = actor.plain_step(params, credit.state.hidden, seen)
        action = jax.random.categorical(choose, logits)
        credit, _ = traces.step(params, credit, seen, action)
    reward = jnp.where(action == cue, 1.0, -1.0)
    updates, opt_state = adam.update(traces.gradient(credit, reward), opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), reward


_, rewards = jax.lax.scan(episode, (policy, adam.init(policy)), jax.random.split(jax.random.key(5), 1500))
right = (np.asarray(rewards).reshape(30, -1) > 0).mean(1)
print(f"right answers: {right[0]:.0%} of the first 50 episodes, {right[-5:].mean():.0%} of the last 250")
assert right[-5:].mean() > 0.9

# %% [markdown]
# The mathematics, and an agent in a maze: [Reinforcement learning from a stream](../streaming_rl.md).
