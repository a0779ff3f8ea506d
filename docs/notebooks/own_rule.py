# %% [markdown]
# # A rule of your own
#
# A rule is a frozen record of pure functions: a `Transport` (what is carried from window to window) and a verdict
# (what that is worth). Here is one in a few lines: traces of few bits, as neuromorphic chips hold them. It takes the
# transport of `d_rtrl` and rounds what it carries.

# %%
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import etrax
from etrax.rules import Kind, Verdict


def rounded(e, bits):
    unit = jnp.maximum(jnp.abs(e).max(), 1e-30) / 2 ** (bits - 1)
    return jnp.round(e / unit) * unit


def few_bits(bits):
    base = etrax.d_rtrl()

    def transport(facts, sites=None, trace_dtype=None):
        whole = base.transport(facts, sites, trace_dtype)
        move = lambda trace, window: jax.tree.map(lambda e: rounded(e, bits), whole.move(trace, window))
        return replace(whole, move=move)

    def verdict(facts, param):
        if etrax.tbptt().verdict(facts, param).kind == Kind.EXACT:  # needs no trace
            return base.verdict(facts, param)
        return Verdict(Kind.APPROXIMATE, f"a trace is carried, rounded to {bits} bits after every window")

    return etrax.Rule("few_bits", transport, verdict, {"bits": bits})


# %% [markdown]
# `Transport` has three functions: `init()`, the trace before the first step; `credit(trace, g, window)`, what it adds
# to gradients; `move(trace, window)`, the trace after a window. A verdict must never promise more than holds: `exact`
# only where it can be proved.

# %%
step = lambda p, h, x: (0.95 * h + jnp.tanh(x @ p["w"]),) * 2
loss = lambda output, target: jnp.mean((output - target) ** 2)
keys = jax.random.split(jax.random.key(0), 3)
params, hidden = {"w": jax.random.normal(keys[0], (4, 8))}, jnp.zeros((4, 8))
xs, ys = jax.random.normal(keys[1], (100, 4, 4)), jax.random.normal(keys[2], (100, 4, 8))
learner = etrax.compile(step, few_bits(4), xs[0], params=params, hidden=hidden)
print(learner.rule, learner.report.verdicts["w",].kind, learner.report.verdicts["w",].reason, sep="\n")

# %% [markdown]
# How many bits are needed? Windows of two steps, compared with BPTT through all hundred.

# %%
bits, cosines = [2, 3, 4, 6, 8], []
for n in bits:
    learner = etrax.compile(step, few_bits(n), xs[0], params=params, hidden=hidden)
    cosines.append(etrax.testing.compare(learner, loss, params, hidden, xs, ys, window=2)[("w",)].cosine)
assert cosines[-1] > 0.99 > cosines[0]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(bits, cosines, marker="o")
_ = axes.set(xlabel="bits of the trace", ylabel="cosine with BPTT", xticks=bits)

# %% [markdown]
# Etrax's own rules are made the same way, one file each, top to bottom: paper, mathematics, state, transport,
# verdict. `src/etrax/rules/_rflo.py` is the shortest that carries something of its own; `etrax.partition` mixes rules
# by the path of a parameter. A rule that is to be part of Etrax adds its file, one line in `rules/registered.py` and
# one row in the conformance table of the tests ([Architecture](../architecture.md)).
