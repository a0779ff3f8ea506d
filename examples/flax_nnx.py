"""A Flax NNX module with its memory in a variable, trained while it reads a stream.

python examples/flax_nnx.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import etrax


class Integrator(nnx.Module):
    """A leaky layer that holds its own state, with dropout, and a readout: an ordinary module."""

    def __init__(self, inputs, width, batch, rngs):
        self.read_in, self.read_out = nnx.Linear(inputs, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs)
        self.leak, self.drop = nnx.Param(jnp.full(width, 2.0)), nnx.Dropout(0.05, rngs=rngs)
        self.h = nnx.Variable(jnp.zeros((batch, width)))

    def __call__(self, x):
        self.h[...] = nnx.sigmoid(self.leak[...]) * self.h[...] + self.drop(nnx.tanh(self.read_in(x)))
        return self.read_out(self.h[...])


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=400, batch=16, width=32, file="flax_nnx.png"):
    """The loss in ten parts of the stream."""
    import matplotlib.pyplot as plt

    xs = jax.random.normal(jax.random.key(0), (steps, batch, 2))
    ys = jax.lax.scan(lambda s, x: (0.9 * s + x[:, :1],) * 2, jnp.zeros((batch, 1)), xs)[1]  # what to integrate
    model = Integrator(2, width, batch, nnx.Rngs(0))
    learner, optimizer = etrax.compile(model, "d_rtrl", xs[0]), optax.adam(3e-3)
    for path, verdict in learner.report.verdicts.items():
        print(f"{verdict.kind:12s}{'.'.join(map(str, path))}")
    train = learner.train(optimizer, loss, window=1)  # an update after every step
    params, _, state, losses = train(learner.params, optimizer.init(learner.params), learner.init(), xs, ys)
    etrax.write_back(model, params, state)  # the module goes on where the learner ended
    parts = [float(part.mean()) for part in jnp.array_split(losses, 10)]
    print("loss along the stream: " + " ".join(f"{part:.3f}" for part in parts))
    print(f"the module's next output has shape {model(xs[0]).shape}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(jnp.linspace(0, steps, 10), parts, marker="o")
    axes.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return parts


if __name__ == "__main__":
    main()
