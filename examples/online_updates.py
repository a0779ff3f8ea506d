"""Learning from every sample: a stream that changes half-way, and a learner that adapts.

    python examples/online_updates.py

`learner.train(..., window=1)` updates after every step. `learner.online` does the same from a Python loop, one sample
at a time, with bounded latency and memory.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import etrax


def step(params, h, x):
    z = jax.nn.sigmoid(x @ params["wz"] + params["bz"])
    h = (1 - z) * h + z * jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def stream(steps):
    """The target is a running mean of the first input, then, from the middle on, of the second."""
    x = np.random.default_rng(0).standard_normal((steps, 2)).astype(np.float32)
    mean = np.zeros(2, np.float32)
    for t in range(steps):
        mean = 0.8 * mean + 0.2 * x[t]
        yield x[t], mean[:1] if t < steps // 2 else mean[1:]


def main(steps=4000, file="online_updates.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "w": jax.random.normal(keys[0], (2, 24)),
        "wz": 0.1 * jax.random.normal(keys[1], (2, 24)),
        "bz": jnp.full(24, -1.5),
        "out": jnp.zeros((24, 1)),
    }
    learner = etrax.compile(step, "d_rtrl", jnp.zeros(2), params=params, hidden=jnp.zeros(24))
    samples = list(stream(steps))

    print("one sample at a time, from a Python loop")
    online = learner.online(optax.adam(5e-3), loss)
    errors = [float(online.feed(jnp.asarray(x), jnp.asarray(y)).loss) for x, y in samples[: steps // 10]]
    print(f"  loss of the first samples {np.mean(errors[: len(errors) // 4]):.4f}, of the last "
          f"{np.mean(errors[-len(errors) // 4 :]):.4f}")  # fmt: skip

    print("the whole stream at once, still an update after every step")
    optimizer = optax.adam(5e-3)
    xs, ys = (jnp.asarray(np.stack(a)) for a in zip(*samples, strict=True))
    run = learner.train(optimizer, loss, window=1)
    *_, losses = run(params, optimizer.init(params), learner.init(), xs, ys)
    parts = np.asarray(losses).reshape(8, -1).mean(1)
    for n, value in enumerate(parts):
        note = "   the rule changes" if n == 4 else ""
        print(f"  steps {n * steps // 8:5d} to {(n + 1) * steps // 8 - 1:5d}: loss {value:.4f}{note}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(np.arange(80) * steps / 80, np.asarray(losses).reshape(80, -1).mean(1), label="error")
    axes.axvline(steps / 2, color="grey", linestyle="--", label="the rule changes")
    axes.set(xlabel="steps", ylabel="error before each update", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=150)
    return parts


if __name__ == "__main__":
    main()
