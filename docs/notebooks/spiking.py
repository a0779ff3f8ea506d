# %% [markdown]
# # A spiking classifier, for snnTorch users
#
# | snnTorch | here |
# |---|---|
# | `snn.Leaky(beta)` in a loop over time | one step; the loop is Etrax's |
# | `surrogate.fast_sigmoid()` | `etrax.nn.surrogate.fast_sigmoid()`, or any `jax.custom_jvp` |
# | `loss.backward()` through all steps | `learner.train(...)`: forward in time |
# | memory grows with the number of steps | it does not |
#
# Neurons and readout are pure functions of `etrax.nn`; a network is a step that calls them.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import etrax
from etrax.nn import pure, surrogate

neurons = pure.LIF(20, 32, tau=10.0, spike=surrogate.fast_sigmoid(slope=10.0))
readout = pure.LeakyReadout(32, 2)


def step(params, hidden, x):
    lif, spikes = neurons.step(params["lif"], hidden["lif"], x)
    leaky, output = readout.step(params["readout"], hidden["readout"], spikes)
    return {"lif": lif, "readout": leaky}, output


# %% [markdown]
# Two classes of spike trains that differ in which half of the channels is busy.

# %%
rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 256).astype(np.int32)
rate = np.where((np.arange(20) < 10)[None] == (labels == 0)[:, None], 0.3, 0.1)
spikes = (rng.random((30, 256, 20)) < rate).astype(np.float32)  # time first: 30 steps, 256 samples, 20 channels

keys = jax.random.split(jax.random.key(0))
params = {"lif": neurons.init(keys[0]), "readout": readout.init(keys[1])}
hidden = {"lif": neurons.hidden(batch_size=32), "readout": readout.hidden(batch_size=32)}
learner = etrax.compile(step, "d_rtrl", spikes[0, :32], params=params, hidden=hidden)
for path, verdict in learner.report.verdicts.items():
    print(f"{'.'.join(path):10} {verdict.kind}")

# %% [markdown]
# Every weight is exact, also those behind the neurons: their influence on the readout is one leaky sum more. A
# `Trainer` runs over data sets.

# %%
data = etrax.train.Dataset.labelled(spikes, labels)
loss = lambda o, t: optax.softmax_cross_entropy_with_integer_labels(o, t).mean()
trainer = etrax.Trainer(learner, optax.adam(5e-3), loss, window=5, metrics={"accuracy": etrax.train.accuracy})
result = trainer.fit(data, epochs=4, progress=False)
accuracy = trainer.evaluate(result.params, data)["accuracy"]
print(f"accuracy {accuracy:.2f}")
assert accuracy > 0.9

# %% [markdown]
# What the trained neurons do: the spikes of one trial of each class.

# %%
figure, both = plt.subplots(1, 2, sharey=True, figsize=(7, 3), layout="constrained")
for kind, axes in enumerate(both):
    trial = spikes[:, np.flatnonzero(labels == kind)[:1]]
    _, z = jax.lax.scan(lambda s, x: neurons.step(result.params["lif"], s, x), neurons.hidden(1), trial)
    axes.eventplot([np.flatnonzero(unit) for unit in z[:, 0].T], colors="k", linelengths=0.8)
    axes.set(title=f"class {kind}", xlabel="step")
_ = both[0].set(ylabel="neuron")

# %% [markdown]
# `examples/conv_snn.py` is a convolutional network on Fashion-MNIST, `examples/evidence.py` a recurrent one. The same
# neurons are there as modules: `etrax.nn.LIF` (brainstate), `etrax.nn.nnx.LIF`, `etrax.nn.equinox.LIF`.
