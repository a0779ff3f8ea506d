"""An NNX module that learns in its own style: `nnx.grad`, `nnx.Optimizer` and `nnx.jit` around `etrax.Stateful`.

    python examples/nnx_style.py

The learner is an NNX module itself: it holds the cell, its carry and the trace, and calling it advances all of them.
Its optimizer updates after every step of a stream. Needs `pip install -e ".[flax,train,viz]"`.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import etrax


class Net(nnx.Module):
    """Flax's own cell and a readout, called as Flax's cells are: `(carry, x) -> (carry, output)`."""

    def __init__(self, width, rngs):
        self.cell, self.out = nnx.GRUCell(2, width, rngs=rngs), nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, carry, x):
        carry, y = self.cell(carry, x)
        return carry, self.out(y)


@nnx.jit
def learn(online, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda online: jnp.mean((online(x) - y) ** 2))(online)
    optimizer.update(online, grads)
    return loss


def main(steps=1000, batch=16, width=16, delay=2, file="nnx_style.png"):
    """The loss in ten parts of the stream."""
    import matplotlib.pyplot as plt

    xs = jax.random.normal(jax.random.key(0), (steps, batch, 2))
    ys = jnp.roll(xs[..., :1], delay, axis=0)  # what was seen some steps ago
    online = etrax.Stateful(Net(width, nnx.Rngs(0)), "d_rtrl", xs[0], hidden=jnp.zeros((batch, width)))
    optimizer = nnx.Optimizer(online, optax.adam(5e-3), wrt=nnx.Param)
    losses = jnp.stack([learn(online, optimizer, x, y) for x, y in zip(xs, ys, strict=True)])
    parts = [float(part.mean()) for part in jnp.array_split(losses, 10)]
    print("loss along the stream: " + " ".join(f"{part:.3f}" for part in parts))
    print(f"the module itself went along: its readout is now {online.module.out.kernel[...].shape}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(jnp.linspace(0, steps, 10), parts, marker="o")
    axes.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return parts


if __name__ == "__main__":
    main()
