"""Sparse connections of brainevent, with one weight per synapse: spikes of a hundred axons, each with ten targets.

    python examples/sparse_connections.py

The synapses are learned online, spike by spike, under a leaky readout; `d_rtrl` is exact here, with a trace for each
synapse and not for each pair of neurons. Needs `pip install -e ".[brainpy]"` and optax.
"""

import brainevent
import brainpy.state as bps
import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import saiunit as u

import etrax


class Network(brainstate.nn.Module):
    def __init__(self, at, width, outputs):
        super().__init__()
        weights = jnp.asarray(np.random.default_rng(0).gamma(2.0, 1.5, at.shape), jnp.float32)
        self.connections = brainevent.FixedNumPerPre((weights, jnp.asarray(at)), shape=(len(at), width))
        self.synapses = brainstate.ParamState(weights)
        self.neurons = bps.LIF(width, tau=20 * u.ms, V_th=1 * u.mV, V_rest=0 * u.mV, V_reset=0 * u.mV)
        self.readout = bps.LeakyRateReadout(width, outputs, tau=20 * u.ms)

    def update(self, spikes):
        current = brainevent.BinaryArray(spikes) @ self.connections.with_data(self.synapses.value)
        self.neurons(current * u.mA)
        return self.readout(self.neurons.get_spike())


def loss(output, target):
    return optax.softmax_cross_entropy_with_integer_labels(output, target).mean()


def main(steps=60, batch=32, axons=100, width=100, epochs=15, window=10, file="sparse_connections.png"):
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, batch)
    rate = np.where(labels[:, None] == np.arange(axons) % 2, 0.12, 0.04)  # which half of the axons is busy
    xs = jnp.asarray(rng.random((steps, batch, axons)) < rate, float)
    ys = jnp.asarray(np.broadcast_to(labels, (steps, batch)), jnp.int32)
    at = np.stack([rng.choice(width, 10, replace=False) for _ in range(axons)]).astype(np.int32)
    brainstate.random.seed(0)
    with brainstate.environ.context(dt=1 * u.ms):
        learner = etrax.compile(Network(at, width, 2), "d_rtrl", xs[0], batch_size=batch)
        print(learner.report)
        optimizer = optax.adam(1e-2)
        update = learner.train(optimizer, loss, window=window)
        params, opt_state, found = learner.params, optimizer.init(learner.params), []
        for epoch in range(epochs):
            params, opt_state, _, losses = update(params, opt_state, learner.init(params), xs, ys)
            found.append(float(losses.mean()))
            print(f"epoch {epoch:3d}  loss {found[-1]:.4f}")
    leaf = lambda tree, shape: next(np.asarray(a) for a in jax.tree.leaves(tree) if a.shape == shape)  # noqa: E731
    change = leaf(params, (axons, 10)) - leaf(learner.params, (axons, 10))
    favours = np.subtract(*leaf(params, (width, 2)).T)[at]  # of a synapse's target: the first answer above zero
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(found, marker="o")
    left.set(xlabel="pass over the data", ylabel="loss", ylim=(0, None))
    for half, name in ((0, "axons busy for the first answer"), (1, "for the second")):
        right.scatter(favours[half::2], change[half::2], s=6, alpha=0.6, label=name)
    right.set(xlabel="what the target neuron says: second or first answer", ylabel="change of the synapse")
    right.legend(fontsize=8)
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
