"""A first learner in plain JAX: one step, one compile, the report, and a few updates.

python examples/first_learner.py
"""

import jax
import jax.numpy as jnp
import optax

import etrax


def step(params, h, x):
    """A leaky layer with a learnable leak, and a readout."""
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"] + params["b"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=200, batch=16, epochs=30, file="first_learner.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "w": jax.random.normal(keys[0], (3, 32)),
        "b": jnp.zeros(32),
        "leak": jnp.full(32, 2.0),
        "out": 0.1 * jax.random.normal(keys[1], (32, 2)),
    }
    xs = jax.random.normal(keys[2], (steps, batch, 3))
    ys = jnp.stack([xs[..., 0].cumsum(0) / 10, jnp.roll(xs[..., 1], 3, 0)], -1)  # a sum, and an echo after 3 steps

    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros((batch, 32)))
    print(learner.report)

    optimizer = optax.adam(1e-2)
    update = learner.train(optimizer, loss, window=10)
    opt_state, found = optimizer.init(params), []
    for epoch in range(epochs):
        params, opt_state, _, losses = update(params, opt_state, learner.init(params), xs, ys)
        found.append(float(losses.mean()))
        if epoch % 10 == 0 or epoch == epochs - 1:
            print(f"epoch {epoch:3d}  loss {found[-1]:.4f}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(found, marker="o")
    axes.set(xlabel="pass over the data", ylabel="loss", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
