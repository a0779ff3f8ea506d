"""A module of brainstate that learns in its own style: states inside, brainstate's own grad, braintools' optimizer.

    python examples/brainstate_style.py

`etrax.Stateful` wraps the module: calling it advances the module's states and the trace, and gradients have the keys
and units of its parameters. An update after every step, inside one `for_loop`.
Needs `pip install -e ".[brainpy,viz]"`.
"""

import brainstate
import braintools
import jax.numpy as jnp

import etrax


class Net(brainstate.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell, self.out = brainstate.nn.GRUCell(2, width), brainstate.nn.Linear(width, 1)

    def update(self, x):
        return self.out(self.cell(x))


def main(steps=400, batch=16, width=24, file="brainstate_style.png"):
    """The loss in ten parts of the stream."""
    import matplotlib.pyplot as plt

    brainstate.random.seed(0)
    xs = brainstate.random.randn(steps, batch, 2)
    ys = 0.5 * jnp.tanh(xs[:, :, :1] + jnp.roll(xs, 3, axis=0)[:, :, 1:])  # of this step, and of three steps ago
    net = Net(width)
    online = etrax.Stateful(net, "d_rtrl", xs[0], batch_size=batch)
    weights, optimizer = net.states(brainstate.ParamState), braintools.optim.Adam(lr=5e-3)
    optimizer.register_trainable_weights(weights)

    def learn(x, y):
        loss = lambda: jnp.mean((online(x) - y) ** 2)  # noqa: E731
        grads, value = brainstate.transform.grad(loss, weights, return_value=True)()
        optimizer.update(grads)
        return value

    losses = brainstate.transform.jit(lambda: brainstate.transform.for_loop(learn, xs, ys))()
    parts = [float(part.mean()) for part in jnp.array_split(losses, 10)]
    print("loss along the stream: " + " ".join(f"{part:.4f}" for part in parts))
    print(
        f"the module itself went along: its state is now {net.cell.h.value.shape}, mean {net.cell.h.value.mean():.3f}"
    )
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(jnp.linspace(0, steps, 10), parts, marker="o")
    axes.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return parts


if __name__ == "__main__":
    main()
