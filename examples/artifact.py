"""A learner that moves: trained, saved in the middle of a stream, and continued from one file without its model.

    python examples/artifact.py

`learner.export` writes the whole update (step, trace, gradient, optimizer) as one StableHLO program with a manifest,
`etrax.save` writes what it works on. Whoever has the two needs neither the model's code nor the optimizer's, and gets
the same bits. Needs `pip install -e ".[train,export,viz]"`.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import etrax


def step(params, h, x):
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=400, width=32, file="artifact.png"):
    """The loss of all steps, and whether the artifact went on as the learner would have, bit for bit."""
    import matplotlib.pyplot as plt

    xs = jax.random.normal(jax.random.key(0), (steps, 2))
    ys = jax.lax.scan(lambda s, x: (0.9 * s + x[:1],) * 2, jnp.zeros(1), xs)[1]  # what to integrate
    keys = jax.random.split(jax.random.key(1))
    w, out = 0.3 * jax.random.normal(keys[0], (2, width)), 0.3 * jax.random.normal(keys[1], (width, 1))
    params, optimizer = {"w": w, "leak": jnp.zeros(width), "out": out}, optax.adam(3e-3)
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros(width))
    train, half = learner.train(optimizer, loss, window=1), steps // 2
    *values, first = train(params, optimizer.init(params), learner.init(), xs[:half], ys[:half])
    native = values
    for t in range(half, steps):  # for comparison: the learner, one sample at a time
        *native, _ = train(*native, xs[t : t + 1], ys[t : t + 1])

    with tempfile.TemporaryDirectory() as folder:
        names = ("params", "opt_state", "state")
        learner.export(Path(folder, "update.etrax"), optimizer, loss)
        etrax.save(Path(folder, "middle"), **dict(zip(names, values, strict=True)), learner=learner)
        update = etrax.load(Path(folder, "update.etrax"))  # from here on nothing of the above is needed
        found = etrax.restore(Path(folder, "middle"), like=dict(zip(names, values, strict=True)))
    print(update)
    values, losses = [found[name] for name in names], list(map(float, first))
    for x, y in zip(xs[half:], ys[half:], strict=True):
        *values, one, _ = update(*values, x, y)
        losses.append(float(one))
    same = all(bool((a == b).all()) for a, b in zip(*map(jax.tree.leaves, (values, native)), strict=True))
    print(f"loss {sum(losses[:20]) / 20:.3f} to {sum(losses[-20:]) / 20:.3f}; the same bits as the learner: {same}")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(losses)
    axes.axvline(half, color="grey", linestyle=":")
    axes.set(xlabel="steps (dotted: saved, and gone on with from a file)", ylabel="loss", yscale="log")
    figure.savefig(file, dpi=150)
    return losses, same


if __name__ == "__main__":
    main()
