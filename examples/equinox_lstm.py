"""An Equinox LSTM with a readout, trained online by D-RTRL and by exact RTRL: gradients in the module's own tree.

python examples/equinox_lstm.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import etrax


class Reader(eqx.Module):
    """Equinox's own cell, and a readout."""

    cell: eqx.nn.LSTMCell
    readout: eqx.nn.Linear

    def __init__(self, inputs, width, key):
        one, two = jax.random.split(key)
        self.cell, self.readout = eqx.nn.LSTMCell(inputs, width, key=one), eqx.nn.Linear(width, 1, key=two)


def call(model, hidden, x):
    """How the module is called: a batch of samples, the state, the output."""
    hidden = jax.vmap(model.cell)(x, hidden)
    return hidden, jax.vmap(model.readout)(hidden[0])


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=40, batch=8, width=8, epochs=40, file="equinox_lstm.png"):
    """First and last loss of each rule."""
    import matplotlib.pyplot as plt

    xs = jax.random.normal(jax.random.key(0), (steps, batch, 2))
    ys = jnp.cumsum(xs[..., :1], 0) / 4
    found = {}
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for rule in ("d_rtrl", "rtrl"):
        model, hidden = Reader(2, width, jax.random.key(1)), (jnp.zeros((batch, width)),) * 2
        learner = etrax.compile(model, rule, xs[0], hidden=hidden, call=call)
        gradient, optimizer, losses = learner.value_and_grad(loss, window=5), optax.adam(1e-2), []
        opt_state = optimizer.init(learner.params)
        for _ in range(epochs):
            params = eqx.filter(model, eqx.is_inexact_array)
            (value, grads), _ = gradient(params, learner.init(), xs, ys)
            updates, opt_state = optimizer.update(grads, opt_state)
            model = eqx.apply_updates(model, updates)  # as with any gradient in Equinox
            losses.append(float(value))
        print(f"{rule:8s} loss {losses[0]:.3f} to {losses[-1]:.3f}")
        found[rule] = losses[0], losses[-1]
        axes.plot(losses, label=rule)
    axes.set(xlabel="pass over the data", ylabel="loss", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
