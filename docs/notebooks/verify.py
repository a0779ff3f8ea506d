# %% [markdown]
# # Verify your model
#
# A verdict is a promise; here is how to check it on your own model and data. This one has a recurrent weight,
# so `d_rtrl` says that it is approximate.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import etrax


def step(params, h, x):
    h = jnp.tanh(x @ params["w"] + 0.9 * h + h @ params["r"])
    return h, h @ params["out"]


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "w": jax.random.normal(keys[0], (3, 6)),
    "r": jax.random.normal(keys[1], (6, 6)) * 0.1,
    "out": jnp.ones((6, 2)),
}
hidden, xs = jnp.zeros((4, 6)), jax.random.normal(keys[2], (40, 4, 3))
loss = lambda output, target: jnp.mean((output - 1.0) ** 2)
learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=hidden)
print(learner.report.verdicts["r",].reason)

# %% [markdown]
# `compare` compares gradients of short windows with BPTT's. Use windows *shorter* than the sequence: inside one window
# everything is exact anyway. `check` raises if a parameter that is called exact is not.

# %%
print(etrax.testing.compare(learner, loss, params, hidden, xs, window=2).check())

# %% [markdown]
# How good each rule is for windows of different lengths:

# %%
windows = [1, 2, 5, 10, 20, 40]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for rule in ("tbptt", "d_rtrl", "rtrl"):
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden)
    tables = [etrax.testing.compare(learner, loss, params, hidden, xs, window=k) for k in windows]
    axes.plot(windows, [table[("r",)].cosine for table in tables], marker="o", label=rule)
axes.set(xlabel="window", ylabel="cosine with BPTT, of 'r'", xscale="log", xticks=windows, xticklabels=windows)
_ = axes.legend()

# %% [markdown]
# - In float64 (`jax.config.update("jax_enable_x64", True)`) exact gradients agree to 1e-12.
# - Other oracles: `etrax.testing.dense_rtrl` (textbook RTRL with full matrices), `etrax.testing.finite_differences`.
# - NaN? `etrax.compile(..., check_finite=True)` names the step and the parameter.
# - From a shell: `etrax check model.py:make`.
