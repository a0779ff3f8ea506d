"""Reinforcement learning from a stream, batch 1: a recurrent actor-critic in a T-maze, an update after every step.

    python examples/streaming_rl.py  # or, with a task of gymnax, ... 12 30000 4 MemoryChain-bsuite

A cue at the beginning of a corridor says which turn is rewarded at its end; on the way there is only noise to be seen.
`etrax.rl.eligibility` carries the credit: the trace of the return (λ) over the learner's gradient, which reaches back
to the cue: all of 8 seeds turn right. With truncated backpropagation through one step it does not, and 7 of 8 turn by
chance. Draws `streaming_rl.png`. Needs `pip install -e ".[train,viz]"`.
"""

import sys
from collections import namedtuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import etrax

FORWARD, DISCOUNT, LAMBDA = 0, 0.98, 0.9
# reset(key) -> state, what is seen of it; step(keys, state, action) -> both, reward, whether a new episode begins
World = namedtuple("World", "reset step features actions")


def maze(corridor):
    def shown(place, cue, time, noise):
        seen = jnp.where(place == 0, cue, jnp.where(place == corridor, 3, 2))
        return (place, cue, time, noise), jnp.append(jax.nn.one_hot(seen, 4), noise)

    def reset(key):
        return shown(jnp.array(0), jax.random.randint(key, (), 0, 2), jnp.array(0), jax.random.normal(key))

    def step(keys, state, action):
        """Forward in the corridor, a turn at its end; other actions lose time, and a little."""
        place, cue, time, _ = state
        turned, ahead = ((place == corridor) & (action != FORWARD)), ((place != corridor) & (action == FORWARD))
        reward = jnp.where(turned, jnp.where(action - 1 == cue, 1.0, -1.0), jnp.where(ahead, 0.0, -0.1))
        done = turned | (time + 1 >= 6 * corridor)
        here = shown(place + ahead, cue, time + 1, jax.random.normal(keys[0]))
        return *jax.tree.map(lambda a, b: jnp.where(done, a, b), reset(keys[1]), here), reward, done

    return World(reset, step, 5, 3)


def chain_of_gymnax(task, length):
    import gymnax

    env, settings = gymnax.make(task)
    settings = settings.replace(memory_length=length)
    order = lambda seen, state, *rest: (state, seen, *rest[:2])  # noqa: E731
    step = lambda keys, state, action: order(*env.step(keys[0], state, action, settings))  # noqa: E731
    size = env.observation_space(settings).shape[0]
    return World(lambda key: order(*env.reset(key, settings)), step, size, env.num_actions)


def step(params, h, x):
    """Gates that read the input decide what is kept; policy and value are read from both."""
    gate = jax.nn.sigmoid(x @ params["gate"] + params["bias"])
    h = (1 - gate) * h + gate * jnp.tanh(x @ params["w"])
    y = jnp.concatenate([h, x]) @ params["out"]
    return h, (y[:-1], y[-1])


def score(output, action):
    return jax.nn.log_softmax(output[0])[action] + 0.5 * output[1]


def initial(key, world, width):
    w, gate = 0.1 * jax.vmap(lambda k: jax.random.normal(k, (world.features, width)))(jax.random.split(key))
    return {"w": w, "gate": gate, "bias": -jnp.ones(width), "out": jnp.zeros((width + len(w), world.actions + 1))}


def train(rule, world, steps, seeds, width=16):
    """Whether an episode ended, and with a reward, at every step of every seed."""
    like = initial(jax.random.key(0), world, width)
    learner = etrax.compile(step, rule, jnp.zeros(world.features), params=like, hidden=jnp.zeros(width))
    traces = etrax.rl.eligibility(learner, score, decay=DISCOUNT * LAMBDA)
    optimizer = optax.adam(3e-3)

    def live(carry, key):
        params, opt_state, credit, place, x = carry
        keys = jax.random.split(key, 3)
        _, (logits, value) = step(params, credit.state.hidden, x)
        action = jax.random.categorical(keys[0], logits)
        place, seen, reward, done = world.step(keys[1:], place, action)
        credit, _ = traces.step(params, credit, x, action)
        _, (_, after) = step(params, credit.state.hidden, seen)
        error = reward + jnp.where(done, 0.0, DISCOUNT * after) - value
        updates, opt_state = optimizer.update(traces.gradient(credit, error), opt_state)
        params = optax.apply_updates(params, updates)
        credit = jax.tree.map(lambda a, b: jnp.where(done, a, b), traces.init(params), credit)
        return (params, opt_state, credit, place, seen), (done, done & (reward > 0))

    def life(key):
        own, first, others = jax.random.split(key, 3)
        params = initial(own, world, width)
        start = params, optimizer.init(params), traces.init(params), *world.reset(first)
        return jax.lax.scan(live, start, jax.random.split(others, steps))[1]

    return jax.jit(jax.vmap(life))(jax.random.split(jax.random.key(1), seeds))


def main(corridor=12, steps=60_000, seeds=5, task="T-maze", file="streaming_rl.png"):
    world = maze(corridor) if task == "T-maze" else chain_of_gymnax(task, corridor)
    (figure, axes), found = plt.subplots(figsize=(6, 3.5), layout="constrained"), {}
    for colour, (rule, name) in enumerate({"d_rtrl": "d_rtrl", "tbptt": "TBPTT(1)"}.items()):
        done, right = (np.asarray(a).reshape(seeds, 30, -1).sum(-1) for a in train(rule, world, steps, seeds))
        share = right / np.maximum(done, 1)
        axes.plot(np.arange(1, 31) * steps / 30, share.T, color=f"C{colour}", label=[name] + [None] * (seeds - 1))
        found[rule] = share[:, -3:].mean(1)
        print(f"{name:9s} right turns in the last tenth, by seed: {' '.join(f'{a:.2f}' for a in found[rule])}")
    axes.set(xlabel="steps", ylabel="right", ylim=(0, 1.02), title=f"{task} of {corridor} steps"), axes.legend()
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
