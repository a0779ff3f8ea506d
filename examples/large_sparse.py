"""A sparse recurrent network of the size of a small brain, learned online on a laptop.

    python examples/large_sparse.py [NEURONS]

Each of 100,000 neurons (a fly has about as many) hears ten others: a million synapses. A dense weight would be 40 GB;
this one is a table of senders and a weight for each synapse, in plain `jax.numpy`. The trace of `d_rtrl` has one number
for each synapse, and a step costs what its synapses cost.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax


def network(neurons, synapses, key=0):
    """The step of a network with fixed random connections."""
    senders = jnp.asarray(np.random.default_rng(key).integers(0, neurons, (neurons, synapses)))

    def step(params, h, x):
        heard = (jnp.tanh(h)[senders] * params["synapses"]).sum(-1)
        h = params["leak"] * h + heard + x[0] * params["into"]
        return h, jnp.tanh(h) @ params["out"] / neurons**0.5

    return step


def main(neurons=100_000, synapses=10, steps=400, window=10, file="large_sparse.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "synapses": 0.5 * jax.random.normal(keys[0], (neurons, synapses)) / synapses**0.5,
        "leak": jnp.full(neurons, 0.8),
        "into": jax.random.normal(keys[1], (neurons,)),
        "out": jax.random.normal(keys[2], (neurons,)) * 0.1,
    }
    x = jax.random.normal(keys[3], (steps, 1))
    y = jnp.convolve(x[:, 0], 0.9 ** jnp.arange(20), mode="full")[:steps] * 0.3  # a memory of twenty steps
    step = network(neurons, synapses)
    learner = etrax.compile(step, "d_rtrl", x[0], params=params, hidden=jnp.zeros(neurons))
    print(f"{learner!r}\nsynapses are {learner.report.verdicts[('synapses',)].kind}")
    adam, loss = optax.adam(0.03 / neurons**0.5), lambda o, t: (o - t) ** 2
    train = learner.train(adam, loss, window=window)
    opt_state, state, errors = adam.init(params), learner.init(), []
    begin = time.perf_counter()
    for part in np.array_split(np.arange(steps), 10):
        params, opt_state, state, losses = train(params, opt_state, state, x[part], y[part])
        errors.append(float(losses.mean() / (y[part] ** 2).mean()))  # 1: as if it said nothing
        print(f"after {part[-1] + 1:>5} steps: error {errors[-1]:.3f}, {time.perf_counter() - begin:.0f} s")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(np.linspace(0, steps, 10), errors, marker="o")
    axes.set(xlabel="steps", ylabel="error, relative", title=f"{neurons:,} neurons, {neurons * synapses:,} synapses")
    figure.savefig(file, dpi=150)
    return errors


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
