"""A brainpy network with physical units, unchanged: LIF neurons, exponential synapses, a leaky readout.

    python examples/brainpy_lif.py

Nothing in the model is written for Etrax. Needs `pip install -e ".[brainpy]"` and optax.
"""

import brainpy.state as bps
import brainstate
import braintools
import jax.numpy as jnp
import numpy as np
import optax
import saiunit as u

import etrax


class Network(brainstate.nn.Module):
    def __init__(self, inputs, width, outputs):
        super().__init__()
        zeros = braintools.init.ZeroInit(unit=u.mA)
        self.neurons = bps.LIF(width, tau=20 * u.ms, V_th=1 * u.mV, V_rest=0 * u.mV, V_reset=0 * u.mV)
        self.synapses = bps.AlignPostProj(
            comm=brainstate.nn.Linear(
                inputs + width, width, w_init=braintools.init.KaimingNormal(scale=8.0, unit=u.mA), b_init=zeros
            ),
            syn=bps.Expon.desc(width, tau=10 * u.ms, g_initializer=zeros),
            out=bps.CUBA.desc(scale=1.0),
            post=self.neurons,
        )
        self.readout = bps.LeakyRateReadout(width, outputs, tau=20 * u.ms)

    def update(self, x):
        self.synapses(jnp.concatenate([x, self.neurons.get_spike()], -1))
        self.neurons()
        return self.readout(self.neurons.get_spike())


def loss(output, target):
    return optax.softmax_cross_entropy_with_integer_labels(output, target).mean()


def main(steps=60, batch=32, width=50, epochs=15, window=10, file="brainpy_lif.png"):
    import matplotlib.pyplot as plt

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, batch)
    rate = np.where(labels[:, None] == np.arange(20) % 2, 0.25, 0.05)  # two kinds of input, by which channels are busy
    xs = jnp.asarray(rng.random((steps, batch, 20)) < rate, float)
    ys = jnp.asarray(np.broadcast_to(labels, (steps, batch)), jnp.int32)
    with brainstate.environ.context(dt=1 * u.ms):
        learner = etrax.compile(Network(20, width, 2), "d_rtrl", xs[0], batch_size=batch)
        print(learner.report)
        optimizer = optax.adam(1e-2)
        update = learner.train(optimizer, loss, window=window)
        params, opt_state, found = learner.params, optimizer.init(learner.params), []
        for epoch in range(epochs):
            params, opt_state, _, losses = update(params, opt_state, learner.init(params), xs, ys)
            found.append(float(losses.mean()))
            print(f"epoch {epoch:3d}  loss {found[-1]:.4f}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(found, marker="o")
    axes.set(xlabel="pass over the data", ylabel="loss", ylim=(0, None))
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
