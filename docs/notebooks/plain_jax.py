# %% [markdown]
# # Plain JAX: a first learner
#
# A model is one step: `step(params, hidden, x) -> (hidden, output)`, over any pytrees. No layer classes, no special
# operators.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import etrax


def step(params, h, x):
    """A leaky layer with a learnable leak, and a readout."""
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"] + params["b"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "w": jax.random.normal(keys[0], (3, 32)),
    "b": jnp.zeros(32),
    "leak": jnp.full(32, 2.0),
    "out": 0.1 * jax.random.normal(keys[1], (32, 2)),
}

# %% [markdown]
# Time comes first: 200 steps, 16 samples, 3 inputs. The targets need memory: a running sum, and an echo after three
# steps.

# %%
xs = jax.random.normal(keys[2], (200, 16, 3))
ys = jnp.stack([xs[..., 0].cumsum(0) / 10, jnp.roll(xs[..., 1], 3, 0)], -1)
learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=jnp.zeros((16, 32)))
for path, verdict in learner.report.verdicts.items():
    print(f"{path[0]:5} {verdict.kind}")

# %% [markdown]
# All exact: gradients of short windows, added up, are those of BPTT through all 200 steps. `compare` measures it.

# %%
print(etrax.testing.compare(learner, loss, params, learner.hidden, xs, ys, window=10).check())

# %% [markdown]
# Training is forward in time: an update after every window of ten steps, in a memory that does not grow with the
# length of the stream.

# %%
optimizer = optax.adam(1e-2)
update, opt_state, curve = learner.train(optimizer, loss, window=10), optimizer.init(params), []
for _ in range(30):
    params, opt_state, _, losses = update(params, opt_state, learner.init(params), xs, ys)
    curve.append(float(losses.mean()))
assert curve[-1] < curve[0] / 1.5
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(curve, marker="o")
_ = axes.set(xlabel="pass over the data", ylabel="loss", ylim=(0, None))

# %% [markdown]
# Next: [which rule](../which_rule.md) for which model, and [what exact means](../exact.md).
