"""A Flax Linen network used through `apply`, with a `TrainState`: an update at every step, by D-RTRL and by TBPTT.

    python examples/flax_linen.py

The network says what it saw some steps ago. Backpropagation through one step never sees that far; the trace of
`d_rtrl` carries what the weights did then, in a memory that does not grow. Needs `pip install -e ".[flax,train,viz]"`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

import etrax


class Net(nn.Module):
    """Flax's own cell and a readout, called as Flax's cells are: `(carry, x) -> (carry, output)`."""

    width: int

    @nn.compact
    def __call__(self, carry, x):
        carry, y = nn.GRUCell(self.width)(carry, x)
        return carry, nn.Dense(1)(y)


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=2000, batch=16, width=16, delay=4, file="flax_linen.png"):
    """The loss in ten parts of the stream, by rule."""
    import matplotlib.pyplot as plt

    xs = jax.random.normal(jax.random.key(0), (steps, batch, 2))
    ys = jnp.roll(xs[..., :1], delay, axis=0)
    net, carry = Net(width), jnp.zeros((batch, width))
    variables = net.init(jax.random.key(1), carry, xs[0])
    found = {}
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for rule in ("tbptt", "d_rtrl"):
        learner = etrax.compile(net, rule, xs[0], params=variables, hidden=carry)
        gradient = learner.value_and_grad(loss, window=1)

        @jax.jit
        def learn(state, memory, x, y, gradient=gradient):
            (value, grads), memory = gradient(state.params, memory, x, y)
            return state.apply_gradients(grads=grads), memory, value  # as with any gradient in Flax

        state = TrainState.create(apply_fn=net.apply, params=variables, tx=optax.adam(3e-3))
        memory, losses = learner.init(), []  # the carry and the trace
        for t in range(steps):
            state, memory, value = learn(state, memory, xs[t : t + 1], ys[t : t + 1])
            losses.append(value)
        found[rule] = [float(part.mean()) for part in jnp.array_split(jnp.stack(losses), 10)]
        print(f"{rule:8s}loss along the stream: " + " ".join(f"{part:.3f}" for part in found[rule]))
        axes.plot(jnp.linspace(0, steps, 10), found[rule], marker="o", label=rule)
    for path, verdict in learner.report.verdicts.items():
        print(f"{verdict.kind:12s}{'.'.join(map(str, path))}")
    axes.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
