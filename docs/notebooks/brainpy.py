# %% [markdown]
# # A brainpy network, with units
#
# `pip install -e ".[brainpy]"` installs what such models need. The model stays as it is: neurons and units of brainpy,
# states that it creates itself.

# %%
import brainpy
import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import etrax

brainstate.environ.set(dt=1.0 * u.ms)


class Network(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = brainstate.nn.Linear(5, 20)
        self.neurons = brainpy.state.LIF(
            20, tau=20.0 * u.ms, V_th=1.0 * u.mV, V_reset=0.0 * u.mV, V_rest=0.0 * u.mV, R=1.0 * u.ohm
        )
        self.readout = brainstate.nn.Linear(20, 2)

    def update(self, x):
        return self.readout(self.neurons(self.into(x) * u.mA))


brainstate.random.seed(0)
network = Network()
learner = etrax.compile(network, "d_rtrl", jnp.ones((4, 5)), batch_size=4)
for path, verdict in learner.report.verdicts.items():
    print(f"{'.'.join(path):22} {verdict.kind}")

# %% [markdown]
# Parameters and gradients of a learner are plain numbers, each in the unit that the module's own value has;
# `etrax.write_back` writes trained values back, with their units.

# %%
xs = 10 * jax.random.normal(jax.random.key(0), (300, 4, 5))
ys = jnp.stack([xs[..., 0] > 0, xs[..., 0] <= 0], -1).astype(jnp.float32)  # which sign the first input has
loss = lambda output, target: jnp.mean((output - target) ** 2)
adam = optax.adam(1e-2)
train, params = learner.train(adam, loss, window=5), learner.params
opt_state, curve = adam.init(params), []
for _ in range(10):
    params, opt_state, state, losses = train(params, opt_state, learner.init(params), xs, ys)
    curve.append(float(losses.mean()))
etrax.write_back(network, params, state)
assert curve[-1] < curve[0]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(curve, marker="o")
_ = axes.set(xlabel="pass over the data", ylabel="loss")

# %% [markdown]
# The network continues where the learner ended, with its units.

# %%
print(network.neurons.V.value[0, :3], network(xs[0]).shape)

# %% [markdown]
# `etrax.save("weights", params=params)` saves the parameters alone to a directory, and
# `etrax.restore("weights", like={"params": learner.params})["params"]` reads them.
#
# A neuron that reads the time (`brainstate.environ.get("t")`, as those with a refractory period do) needs it as an
# *input of the step*: it changes at every step.


# %%
class Clocked(Network):
    def update(self, t, x):
        with brainstate.environ.context(t=t):
            return super().update(x)


clocked = etrax.compile(Clocked(), "d_rtrl", 0.0 * u.ms, jnp.ones((4, 5)), batch_size=4)
ts = jnp.arange(float(len(xs))) * u.ms
(value, grads), _ = clocked.value_and_grad(loss, window=5)(clocked.params, clocked.init(), (ts, xs), ys)
print(f"loss {value:.3f}")

# %% [markdown]
# Against BPTT, on a short piece of the data; the initial states are `learner.hidden`. `check` raises where
# an *exact* is not:

# %%
print(
    etrax.testing.compare(clocked, loss, clocked.params, clocked.hidden, (ts[:50], xs[:50]), ys[:50], window=5).check()
)

# %% [markdown]
# Synapses and a leaky readout are in `examples/brainpy_lif.py`, sparse connections in `examples/sparse_connections.py`.
