# %% [markdown]
# # A linear recurrent unit, online and exact
#
# Its complex state is diagonal, so a trace of the size of the parameters carries the whole gradient: windows of one
# step, and the gradient of the whole stream.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import etrax

unit = etrax.nn.pure.LRUCell(2, 32, r_min=0.5, r_max=0.99, max_phase=1.0)


def step(params, hidden, x):
    hidden, y = unit.step(params["lru"], hidden, x)
    return hidden, jax.nn.gelu(y @ params["mix"]) @ params["out"]


keys = jax.random.split(jax.random.key(0), 4)
normal = lambda k, *shape: jax.random.normal(k, shape) / shape[0] ** 0.5
params = {"lru": unit.init(keys[0]), "mix": normal(keys[1], 2, 16), "out": normal(keys[2], 16, 1)}
xs = jax.random.normal(keys[3], (3000, 8, 2))
ys = jnp.roll(xs[..., :1], 8, 0)  # what was there eight steps ago
loss = lambda output, target: jnp.mean((output - target) ** 2)

# %% [markdown]
# The verdicts, and a check by numbers: windows of *one* step over 300 steps, against BPTT over all of them.

# %%
learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=unit.hidden(8))
table = etrax.testing.compare(learner, loss, params, learner.hidden, xs[:300], ys[:300], window=1)
print(table.check())

# %% [markdown]
# What a trace is good for: an echo after eight steps, with an update after every step. Truncation to windows of one
# step has the same updates and the same memory, but cannot see what a state is needed for later.

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
ends = {}
for rule in ("d_rtrl", "tbptt"):
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=unit.hidden(8))
    adam = optax.adam(3e-3)
    losses = learner.train(adam, loss, window=1)(params, adam.init(params), learner.init(), xs, ys)[3]
    curve = np.asarray(losses).reshape(30, -1).mean(1)
    ends[rule] = curve[-1]
    axes.plot(np.arange(1, 31) * 100, curve, label=rule)
axes.set(xlabel="steps", ylabel="error", ylim=(0, None))
axes.legend()
print({rule: round(float(end), 3) for rule, end in ends.items()})
assert ends["d_rtrl"] < 0.8 * ends["tbptt"]

# %% [markdown]
# The same holds for `S5Cell`, `MinGRUCell`, `RTUCell` and `SelectiveCell` of `etrax.nn`;
# [Structure of traces](../structure.md) says what each costs.
