"""A spiking network from a NIR file, trained online and written back to NIR.

    python examples/nir_graph.py [FILE]

Without a file it makes one itself: LIF neurons that read their own spikes, and a leaky readout. Needs
`pip install -e ".[nir,train]"`.
"""

import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import nir
import numpy as np
import optax

import etrax


def make(file, inputs=8, width=32, outputs=2, dt=1e-3):
    rng = np.random.default_rng(0)

    def weight(rows, columns, gain):
        return (gain * rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    ones, out = np.ones(width, np.float32), np.ones(outputs, np.float32)
    nodes = {
        "input": nir.Input([inputs]),
        "fc": nir.Affine(weight(width, inputs, 30.0), 0 * ones),
        "lif": nir.LIF(tau=20 * dt * ones, r=ones, v_leak=0 * ones, v_threshold=ones),
        "rec": nir.Linear(weight(width, width, 3.0)),
        "to": nir.Linear(weight(outputs, width, 1.0)),
        "li": nir.LI(tau=20 * dt * out, r=out, v_leak=0 * out),
        "output": nir.Output([outputs]),
    }
    edges = [("input", "fc"), ("fc", "lif"), ("lif", "rec"), ("rec", "lif"), ("lif", "to"), ("to", "li")]
    nir.write(file, nir.NIRGraph(nodes, [*edges, ("li", "output")]))


def loss(output, target):
    return optax.softmax_cross_entropy_with_integer_labels(10 * output, target).mean()


def main(file=None, steps=50, batch=32, epochs=20, window=5, dt=1e-3, picture="nir_graph.png"):
    import matplotlib.pyplot as plt

    if file is None:
        file = Path(tempfile.mkdtemp()) / "network.nir"
        make(file, dt=dt)
    step, params, hidden = etrax.nir.read(file, dt=dt, surrogate="triangle", batch_size=batch)
    inputs = nir.read(file).nodes[step.inputs[0]].input_type["input"]

    rng = np.random.default_rng(1)  # two kinds of input, by which channels are busy
    labels = rng.integers(0, 2, batch)
    side = np.arange(np.prod(inputs)).reshape(1, *inputs) % 2
    rate = np.where(side == labels.reshape(-1, *(1,) * len(inputs)), 0.3, 0.1)
    xs = jnp.asarray(rng.random((steps, *rate.shape)) < rate, jnp.float32)
    ys = jnp.asarray(np.broadcast_to(labels, (steps, batch)), jnp.int32)

    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
    print(learner.report)
    optimizer = optax.adam(1e-2)
    update, opt_state, found = learner.train(optimizer, loss, window=window), optimizer.init(params), []
    for epoch in range(epochs):
        params, opt_state, _, losses = update(params, opt_state, learner.init(params), xs, ys)
        found.append(float(losses.mean()))
        print(f"epoch {epoch:3d}  loss {found[-1]:.4f}")
    trained = Path(file).with_suffix(".trained.nir")
    nir.write(trained, etrax.nir.write(learner, params))
    print(f"written to {trained}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(found, marker="o")
    axes.set(xlabel="pass over the data", ylabel="loss", ylim=(0, None))
    figure.savefig(picture, dpi=150)
    return found, trained


if __name__ == "__main__":
    main(*sys.argv[1:])
