"""Evidence accumulation with adaptive spiking neurons (ALIF), learned online: which side had more cues?

    python examples/evidence.py

Cues come, then a delay, then the network has to answer. Windows are far shorter than that: what the neurons did during
the cues is credited through eligibility traces, carried by their slow thresholds.
"""

import jax
import jax.numpy as jnp
import optax

import etrax
from etrax import tasks


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    (v,), (dv,) = primals, tangents
    return spike(v), 0.3 * jnp.maximum(0, 1 - jnp.abs(v)) * dv


def step(params, s, x):
    v = 0.9 * s["v"] - s["z"] + x @ params["w"] + s["z"] @ params["rec"]
    a = 0.98 * s["a"] + s["z"]
    z = spike(v - 1.0 - 0.3 * a)
    y = 0.9 * s["y"] + z @ params["out"]
    return {"v": v, "a": a, "z": z, "y": y}, y


def loss(output, target):
    return optax.softmax_cross_entropy_with_integer_labels(output, target).mean()


def main(size=1024, epochs=12, batch=64, width=64, window=8, rule="d_rtrl", file="evidence.png"):
    import matplotlib.pyplot as plt

    train, test = tasks.split(tasks.short_evidence(key=0, size=size), test=0.2, seed=0)
    features = train.inputs.shape[-1]
    keys = jax.random.split(jax.random.key(1), 3)
    params = {
        "w": jax.random.normal(keys[0], (features, width)) / features**0.5,
        "rec": 0.3 * jax.random.normal(keys[1], (width, width)) / width**0.5,
        "out": jax.random.normal(keys[2], (width, train.classes)) / width**0.5,
    }
    hidden = {name: jnp.zeros((batch, width)) for name in "vaz"} | {"y": jnp.zeros((batch, train.classes))}
    learner = etrax.compile(step, rule, jnp.zeros((batch, features)), params=params, hidden=hidden)
    print(learner.report)
    trainer = etrax.Trainer(
        learner, optax.adam(5e-3), loss, window=window, update="sequence", metrics={"accuracy": etrax.train.accuracy}
    )
    result = trainer.fit(train, epochs, validation=test, monitor="val_accuracy")
    found = trainer.evaluate(result.params, test)
    print(f"held-out accuracy {found['accuracy']:.3f}, windows of {window} out of {train.steps} steps")
    shown, s, rows = test.inputs[:, :1], jax.tree.map(lambda a: a[:1], hidden), []
    for x in shown:
        s, _ = step(result.params, s, x)
        rows.append(s["z"][0])
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(6, 4), layout="constrained")
    above.imshow(shown[:, 0].T, aspect="auto", cmap="Greys", interpolation="none")
    above.set(ylabel="input", title=f"one trial; {found['accuracy']:.0%} of held-out ones are answered correctly")
    below.imshow(jnp.stack(rows).T, aspect="auto", cmap="Greys", interpolation="none")
    below.set(xlabel="steps", ylabel="neuron")
    figure.savefig(file, dpi=150)
    return found


if __name__ == "__main__":
    main()
