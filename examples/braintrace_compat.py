"""A program written for braintrace with one import line changed, and the verdicts that it gets.

    python examples/braintrace_compat.py

Model, layers, `compile`, algorithms and the loop are as they were. New are verdicts: which gradients are BPTT's, and
which paths are missing from the others. Needs `pip install -e ".[brainpy,viz]"`.
"""

import brainstate
import braintools
import jax.numpy as jnp

import etrax.compat.braintrace as braintrace


class Net(brainstate.nn.Module):
    """A gated cell and a readout with a memory of its own, of that library's layers."""

    def __init__(self, width):
        super().__init__()
        self.cell = braintrace.nn.MGUCell(2, width)
        self.out = braintrace.nn.LeakyRateReadout(width, 1, tau=2.0)

    def update(self, x):
        return self.out(self.cell(x))


def train(algorithm, xs, ys, width, **options):
    """The losses of a stream, an update after every step, and the learner."""
    brainstate.random.seed(1)
    net = Net(width)
    learner = braintrace.compile(net, algorithm, xs[0], batch_size=xs.shape[1], **options)
    weights, optimizer = net.states(brainstate.ParamState), braintools.optim.Adam(lr=5e-3)
    optimizer.register_trainable_weights(weights)

    def learn(x, y):
        loss = lambda: jnp.mean((learner(x) - y) ** 2)  # noqa: E731
        grads, value = brainstate.transform.grad(loss, weights, return_value=True)()
        optimizer.update(grads)
        return value

    return brainstate.transform.jit(lambda: brainstate.transform.for_loop(learn, xs, ys))(), learner


def main(steps=1500, batch=16, width=16, delay=3, file="braintrace_compat.png"):
    """The loss in ten parts of the stream, by algorithm."""
    import matplotlib.pyplot as plt

    brainstate.environ.set(dt=1.0)
    brainstate.random.seed(0)
    xs = brainstate.random.randn(steps, batch, 2)
    ys = jnp.roll(xs[..., :1], delay, axis=0)  # what was seen some steps ago
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    found = {}
    for algorithm, options in ((braintrace.D_RTRL, {}), (braintrace.SnAp, {"n": 2})):
        losses, learner = train(algorithm, xs, ys, width, **options)
        parts = found[algorithm.__name__] = [float(part.mean()) for part in jnp.array_split(losses, 10)]
        print(f"{algorithm.__name__:8s}loss along the stream: " + " ".join(f"{part:.3f}" for part in parts))
        for path, verdict in learner.online.report.verdicts.items():
            print(f"  {verdict.kind:12s}{'.'.join(map(str, path))}")
        axes.plot(jnp.linspace(0, steps, 10), parts, marker="o", label=algorithm.__name__)
    axes.set(xlabel="steps", ylabel="loss", ylim=(0, None))
    axes.legend()
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
