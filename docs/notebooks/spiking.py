# %% [markdown]
# # A spiking classifier, for snnTorch users
#
# The network of the first snnTorch tutorials, learned forward in time: two layers of leaky neurons, spikes as inputs,
# and a cross-entropy at every step of the spikes that come out.
#
# | snnTorch | here |
# |---|---|
# | a loop over time around `snn.Leaky` | one step; the loop is Etrax's |
# | `snn.Leaky(beta=0.9)` | `pure.LIF(inputs, neurons, tau=-1 / math.log(0.9))`, its weight and bias included |
# | `learn_beta=True` | `learn_leak=True` (one for the layer), `learn_leak="unit"` (one for each neuron) |
# | the reset subtracts the threshold, without a gradient | `detach_reset=True`; with `False`, BPTT goes through it |
# | `snn.RLeaky` | `pure.RecurrentLIF` |
# | `surrogate.fast_sigmoid()` | `surrogate.fast_sigmoid()` of `etrax.nn`, or any `custom_jvp` or `custom_vjp` |
# | `spikegen.rate`, `latency`, `delta` | `rate_spikes`, `latency_spikes`, `delta_spikes` of `etrax.tasks` |
# | data of shape (time, batch, channels) | the same |
# | `ce_rate_loss` | a cross-entropy: Etrax takes the loss at every step |
# | `ce_count_loss` | count spikes in a state of the step, and mark the last step (`etrax.tasks.last_only`) |
# | `loss.backward()` through all steps | `learner.train(...)` or a `Trainer`: forward in time |
# | memory grows with the number of steps | it does not |
# | `export_to_nir`, `import_from_nir` | [`etrax.nir`](../nir.md) |
#
# Neurons are pure functions of `etrax.nn`; a network is a step that calls them.

# %%
import math

import jax
import matplotlib.pyplot as plt
import optax

import etrax
from etrax import tasks
from etrax.nn import pure, surrogate

spike = surrogate.fast_sigmoid(25.0)
leaky = {"tau": -1 / math.log(0.9), "learn_leak": True, "detach_reset": True, "spike": spike}
first, second = pure.LIF(64, 100, **leaky), pure.LIF(100, 10, **leaky)


def step(params, hidden, x):
    lower, spikes = first.step(params["first"], hidden["first"], x)
    upper, output = second.step(params["second"], hidden["second"], spikes)
    return {"first": lower, "second": upper}, output


# %% [markdown]
# Handwritten digits, 8 × 8 pixels, each pixel a spike train of 25 steps whose rate is its brightness. A fifth is held
# out.

# %%
digits = tasks.small_digits("whole")
spikes = tasks.rate_spikes(digits.inputs[0], steps=25, key=0)
train, test = tasks.split(tasks.labelled(spikes, digits.targets[0], classes=10), test=0.2)
print(train)

keys = jax.random.split(jax.random.key(0))
params = {"first": first.init(keys[0]), "second": second.init(keys[1])}
hidden = {"first": first.hidden(batch_size=32), "second": second.hidden(batch_size=32)}
learner = etrax.compile(step, "d_rtrl", spikes[0, :32], params=params, hidden=hidden)
for path, verdict in learner.report.verdicts.items():
    print(f"{'.'.join(path):11} {verdict.kind}")

# %% [markdown]
# Every parameter is exact, also those of the first layer: a layer with one leak and a detached reset is a leaky sum of
# the spikes below it, and one sum more is carried. Without `detach_reset`, or under a third layer, the first layer
# would be *approximate*. A `Trainer` runs over data sets; `gradient=etrax.testing.bptt` puts BPTT in the same loop.

# %%
loss = lambda o, t: optax.softmax_cross_entropy_with_integer_labels(o, t).mean()
found = {}
for method, gradient in {"d_rtrl": None, "BPTT": etrax.testing.bptt}.items():
    trainer = etrax.Trainer(
        learner, optax.adam(5e-3), loss, window=5, update="sequence", gradient=gradient,
        metrics={"accuracy": etrax.train.accuracy},
    )  # fmt: skip
    found[method] = trainer.fit(train, epochs=6, progress=False)
    accuracy = trainer.evaluate(found[method].params, test)["accuracy"]
    print(f"{method:6} {accuracy:.0%} of the held-out digits")
    assert accuracy > 0.85

# %% [markdown]
# What the trained network does with one digit: spikes of both layers, a row for each neuron.

# %%
seen = test.take(slice(32))  # as many as the learner was compiled for
trained = found["d_rtrl"].params
recording = etrax.viz.record(learner, seen.inputs, params=trained, parameters=[])  # no traces
figure, both = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for axes, layer in zip(both, ("first", "second"), strict=True):
    etrax.viz.raster(recording, state=f"{layer}.z", sample=0, ax=axes)
    axes.set_title(f"{layer} layer, shown a {seen.targets[0, 0]}")

# %% [markdown]
# `examples/conv_snn.py` is a convolutional network on Fashion-MNIST, `examples/evidence.py` a recurrent one. The same
# neurons are there as modules: `etrax.nn.LIF` (brainstate), `etrax.nn.nnx.LIF`, `etrax.nn.equinox.LIF`.
