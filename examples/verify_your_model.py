"""Is the gradient of my model right? Ask the report, then check it against BPTT, rule by rule.

    python examples/verify_your_model.py

Write your own `step` in place of this one. A verdict `exact` is a proof; what is approximate has a reason with the line
of the model that makes it so, and this table shows how much it matters for your data.
"""

import jax
import jax.numpy as jnp

import etrax


def step(params, state, x):
    """Two layers: a leaky one, then a recurrent one behind a normalisation."""
    low = jax.nn.sigmoid(params["leak"]) * state["low"] + jnp.tanh(x @ params["w1"])
    drive = low @ params["w2"] + state["high"] @ params["rec"]
    drive = (drive - drive.mean(-1, keepdims=True)) / jnp.sqrt(drive.var(-1, keepdims=True) + 1e-3)
    high = 0.8 * state["high"] + 0.2 * jnp.tanh(drive)
    return {"low": low, "high": high}, high @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=60, batch=8, width=24, window=5, file="verify_your_model.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 7)

    def weight(key, *shape):
        return jax.random.normal(key, shape) / shape[0] ** 0.5

    params = {
        "w1": weight(keys[0], 4, width),
        "leak": jnp.full(width, 1.0),
        "w2": weight(keys[1], width, width),
        "rec": weight(keys[2], width, width),
        "out": weight(keys[3], width, 2),
    }
    hidden = {name: jnp.zeros((batch, width)) for name in ("low", "high")}
    xs = jax.random.normal(keys[4], (steps, batch, 4))
    ys = jax.random.normal(keys[5], (steps, batch, 2))

    tables = {}
    for rule in ("tbptt", "d_rtrl", "rtrl"):
        learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden)
        print(learner.report)
        tables[rule] = etrax.testing.compare(learner, loss, params, hidden, xs, ys, window=window)
        print(f"\n{rule}: gradients in windows of {window} against BPTT over {steps} steps")
        print(tables[rule].check(), "\n")  # raises if an `exact` verdict is not met
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for n, (rule, table) in enumerate(tables.items()):
        places = jnp.arange(len(table.rows)) + 0.27 * (n - 1)
        axes.bar(places, [row.cosine for row in table.rows], 0.25, label=rule)
    axes.set(ylabel="cosine with BPTT", xticks=range(len(table.rows)), xticklabels=[row.path[-1] for row in table.rows])
    axes.set_ylim(top=1.25)
    axes.legend(loc="upper center", ncols=3)
    figure.savefig(file, dpi=150)
    return tables


if __name__ == "__main__":
    main()
