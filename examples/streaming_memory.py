"""Two tasks that need memory, learned from one stream by the same twenty lines, whatever the cell: GRU, minGRU, LRU.

    python examples/streaming_memory.py

Memory chain: a context is shown at the first step of an episode and has to be named at the last one. Trace
conditioning: a cue (CS) is over before what it announces (US) comes, and the US should then be no surprise. An
actor-critic learns after every step, with a trace of the return (λ) over the learner's gradient. Draws
`streaming_memory.png`. Needs `pip install -e ".[train,viz]"`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import etrax
from etrax.nn.pure import LRUCell, MinGRUCell


class Chain:
    """A world in gymnax's form: the context is seen at the first step, the action of the last one is judged."""

    length, features = 6, 4

    def reset(self, key, params):
        state = jnp.array(0), jax.random.choice(key, jnp.array([-1.0, 1.0]))
        return self.shown(*state), state

    def shown(self, time, context):
        return jnp.array([context * (time == 0), time == self.length - 1, time / self.length, 1.0])

    def step(self, key, state, action, params):
        time, context = state
        done = time == self.length - 1
        reward = done * jnp.where((action == 1) == (context > 0), 1.0, -1.0)
        state = jax.tree.map(lambda a, b: jnp.where(done, a, b), self.reset(key, params)[1], (time + 1, context))
        return self.shown(*state), state, reward, done, {}


class Conditioning:
    """A world that goes on for ever and that actions do not change: after a cue and an interval comes a reward."""

    interval, features = 8, 3

    def reset(self, key, params):
        return jnp.array([0.0, 0.0, 1.0]), self.trial(key)

    def trial(self, key):  # steps until the cue, and from it to the reward
        one, other = jax.random.split(key)
        return jax.random.randint(one, (), 12, 24), jax.random.randint(other, (), self.interval - 2, self.interval + 3)

    def step(self, key, state, action, params):
        reward = jnp.where(state[0] <= -state[1], 1.0, 0.0)
        state = jax.tree.map(lambda a, b: jnp.where(reward > 0, a, b), self.trial(key), (state[0] - 1, state[1]))
        return jnp.array([(state[0] <= 0) & (state[0] > -2), reward, 1.0]), state, reward, jnp.array(False), {}


class GRU(NamedTuple):
    inputs: int
    units: int

    def init(self, key):
        w = jax.random.normal(key, (3, self.inputs + self.units, self.units)) / np.sqrt(self.inputs + self.units)
        return {"z": w[0], "r": w[1], "c": w[2]}

    def hidden(self):
        return jnp.zeros(self.units)

    def step(self, params, h, x):
        z, r = (jax.nn.sigmoid(jnp.concatenate([x, h]) @ params[name]) for name in ("z", "r"))
        h = (1 - z) * h + z * jnp.tanh(jnp.concatenate([x, r * h]) @ params["c"])
        return h, h


CELLS = {"GRU": (GRU, etrax.snap(1)), "minGRU": (MinGRUCell, etrax.d_rtrl()), "LRU": (LRUCell, etrax.d_rtrl())}


def learn(cell, world, rule, steps, key, units=16):
    """A life in a world: rewards, ends of episodes, errors and step sizes, step by step."""
    cell = cell(world.features, units)
    width = world.features + cell.step(cell.init(key), cell.hidden(), jnp.zeros(world.features))[1].size

    def step(params, h, x):
        h, y = cell.step(params["cell"], h, x)
        y = jnp.concatenate([x, y]) @ params["out"]
        return h, (y[:2], y[2])

    params = {"cell": cell.init(key), "out": jnp.zeros((width, 3))}
    learner = etrax.compile(step, rule, jnp.zeros(world.features), params=params, hidden=cell.hidden())
    agent = etrax.rl.actor_critic(learner, optax.adam(3e-3), discount=0.95, trace_decay=0.9, entropy=0.01)
    return jax.jit(lambda key: etrax.rl.live_in_gymnax(agent, world, steps, key, env_params=())[1])(key)


def solved(world, life):
    """In 20 parts of a life: the share of chains that were named, or how much of the reward came as no surprise."""
    reward, done, error = (np.asarray(a).reshape(20, -1) for a in (life.reward, life.done, life.error))
    if isinstance(world, Chain):
        return ((reward > 0) & done).sum(1) / np.maximum(done.sum(1), 1)
    late = np.roll(np.asarray(life.reward), 1).reshape(20, -1) > 0
    return 1 - np.array([np.mean(e[at] ** 2) for e, at in zip(error, late, strict=True)])


def main(steps=20_000, file="streaming_memory.png"):
    (figure, axes), found = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained"), {}
    for ax, (name, world) in zip(axes, {"chain": Chain(), "conditioning": Conditioning()}.items(), strict=True):
        for cell, (make, rule) in CELLS.items():
            share = solved(world, learn(make, world, rule, steps, jax.random.key(1)))
            found[name, cell] = float(share[-4:].mean())
            ax.plot(np.arange(1, 21) * steps / 20, share, label=f"{cell}, {rule}")
            print(f"{name:13s} {cell:7s} {rule!s:10s} {found[name, cell]:.2f}", flush=True)
        ax.set(xlabel="steps", title=name, ylim=(-0.2, 1.05)), ax.legend()
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
