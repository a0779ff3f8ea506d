"""Learning from a reward alone: units explore, and a reward that was better than expected strengthens what led to it.

    python examples/reward.py

A network of leaky units is to move its output to a goal that a cue names. It is never told the goal, only how close it
came. Each unit adds noise of its own; `three_factor` multiplies the eligibility of its weights with that noise and the
reward above what was expected. One number for all units, without the noise, would tell *when*, but not *who*: it is
tried as well, and does not learn.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax

NOISE = 0.2


def step(params, state, x):
    """`x` holds the cue, and the noise of the units."""
    h = 0.7 * state["h"] + 0.3 * jnp.tanh(x["cue"] @ params["w"]) + x["noise"]
    return {"h": h}, h


def distance(h, goal):
    """How far the mean of each half of the units is from the goal."""
    return (((h.reshape(*h.shape[:-1], 2, -1).mean(-1)) - goal) ** 2).sum(-1, keepdims=True)


def explored(h, target):
    """The third factor, unit by unit: what the noise of this step has cost, times that noise."""
    cost = distance(h, target["goal"]) - distance(h - target["noise"], target["goal"])
    return {"h": cost * target["noise"] / NOISE**2}


def broadcast(h, target):
    return distance(h, target["goal"])[..., 0]


def loss(h, target):
    return distance(h, target["goal"]).mean()


def main(steps=3000, batch=16, units=20, file="reward.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 3)
    cue = jnp.repeat(jax.nn.one_hot(jax.random.randint(keys[0], (steps // 10, batch), 0, 4), 4), 10, axis=0)
    goals = jnp.array([[0.8, 0.8], [0.8, -0.8], [-0.8, 0.8], [-0.8, -0.8]])
    noise = NOISE * jax.random.normal(keys[1], (len(cue), batch, units))
    inputs, targets = {"cue": cue, "noise": noise}, {"goal": cue @ goals, "noise": noise}
    params = {"w": 0.1 * jax.random.normal(keys[2], (4, units))}
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    found = {}
    for name, modulator in (("a signal for each unit", explored), ("one number for all", broadcast)):
        rule, first = etrax.three_factor(modulator), jax.tree.map(lambda a: a[0], inputs)
        learner = etrax.compile(step, rule, first, params=params, hidden={"h": jnp.zeros((batch, units))})
        sgd = optax.sgd(0.03)
        train = learner.train(sgd, loss, window=1)
        losses = np.asarray(train(params, sgd.init(params), learner.init(), inputs, targets)[3])
        curve = losses.reshape(30, -1).mean(1)
        found[name] = curve[0], curve[-1]
        axes.plot(np.arange(1, 31) * len(losses) / 30, curve, label=name)
        print(f"{name}: distance {curve[0]:.2f} at the start, {curve[-1]:.2f} at the end")
    axes.set(xlabel="steps", ylabel="distance from the goal", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
