"""Excitation and inhibition: a recurrent network under Dale's law, trained online to remember a pulse.

    python examples/ei_network.py

Four fifths of the units excite, one fifth inhibits, whatever is learned: the recurrent weight is |w| with a sign for
each sender. The law is written into the step; Etrax differentiates through it without being told.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax


def signs(units):
    """+1 for senders that excite, -1 for those that inhibit."""
    return jnp.where(jnp.arange(units) < units * 4 // 5, 1.0, -1.0)


def step(params, h, x):
    rate = jax.nn.relu(h)
    recurrent = jnp.abs(params["w"]) * signs(h.shape[-1])[:, None]
    h = 0.9 * h + 0.1 * (rate @ recurrent + x @ params["into"] + params["bias"])
    return h, rate @ params["out"]


def init(key, units):
    keys = jax.random.split(key, 3)
    balanced = jnp.where(signs(units) > 0, 1.0, 4.0)[:, None] / units  # inhibition is rarer, and stronger
    return {
        "w": balanced * jnp.abs(jax.random.normal(keys[0], (units, units))),
        "into": jax.random.normal(keys[1], (2, units)),
        "bias": jnp.full(units, 0.1),
        "out": jax.random.normal(keys[2], (units, 1)) / units**0.5,
    }


def pulses(key, steps, batch):
    """A pulse on one of two channels now and then; the target is which it was last, +1 or -1."""
    keys = jax.random.split(key)
    on = jax.random.bernoulli(keys[0], 0.05, (steps, batch, 1))
    which = jax.nn.one_hot(jax.random.randint(keys[1], (steps, batch), 0, 2), 2)
    x = 3.0 * on * which
    last = jax.lax.scan(lambda s, p: (jnp.where(p.any(-1, keepdims=True), p @ jnp.array([[1.0], [-1.0]]) / 3, s),) * 2,
                        jnp.zeros((batch, 1)), x)[1]  # fmt: skip
    return x, last


def main(steps=6000, batch=16, units=50, window=10, file="ei_network.png"):
    import matplotlib.pyplot as plt

    x, y = pulses(jax.random.key(1), steps, batch)
    params = init(jax.random.key(0), units)
    learner = etrax.compile(step, "d_rtrl", x[0], params=params, hidden=jnp.zeros((batch, units)))
    print(learner.report)
    adam, loss = optax.adam(3e-3), lambda o, t: jnp.mean((o - t) ** 2)
    train = learner.train(adam, loss, window=window)
    params, _, _, losses = train(params, adam.init(params), learner.init(), x, y)
    losses = np.asarray(losses)
    parts = [float(p.mean()) for p in np.array_split(losses, 10)]
    print("error in tenths of the stream:", " ".join(f"{p:.2f}" for p in parts))
    w = np.asarray(jnp.abs(params["w"]) * signs(units)[:, None])
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
    left.plot(np.linspace(0, steps, 10), parts, marker="o")
    left.set(xlabel="steps", ylabel="error", ylim=(0, None))
    most = np.abs(w).max()
    right.imshow(w, cmap="RdBu_r", vmin=-most, vmax=most)
    right.set(title="recurrent weights", xlabel="to", ylabel="from: excitatory above, inhibitory below")
    figure.savefig(file, dpi=150)
    return parts, w


if __name__ == "__main__":
    main()
