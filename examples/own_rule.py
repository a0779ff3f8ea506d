"""A rule of your own: eligibility traces with few bits, as neuromorphic chips hold them.

    python examples/own_rule.py

A rule is a record of pure functions: a transport (what is carried from window to window) and a verdict (what that is
worth). This one takes the transport of `d_rtrl` and rounds the trace after every window to a sign and a few bits. How
many are needed? The picture compares its gradients with BPTT.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import etrax
from etrax.rules import Kind, Verdict


def rounded(trace, bits):
    """Each array of a trace as whole multiples of its largest entry over 2^(bits - 1)."""
    levels = 2 ** (bits - 1)

    def one(e):
        if not jnp.issubdtype(e.dtype, jnp.floating):
            return e
        unit = jnp.maximum(jnp.abs(e).max(), jnp.finfo(e.dtype).tiny) / levels
        return jnp.round(e / unit) * unit

    return jax.tree.map(one, trace)


def few_bits(bits):
    base = etrax.d_rtrl()

    def transport(facts, sites=None, trace_dtype=None):
        whole = base.transport(facts, sites, trace_dtype)
        return replace(whole, move=lambda trace, window: rounded(whole.move(trace, window), bits))

    def verdict(facts, param):
        found = base.verdict(facts, param)
        needs_no_trace = etrax.tbptt().verdict(facts, param).kind == Kind.EXACT
        if found.kind != Kind.EXACT or needs_no_trace:
            return found
        return Verdict(Kind.APPROXIMATE, f"a trace is carried, rounded to {bits} bits after every window")

    return etrax.Rule("few_bits", transport, verdict, {"bits": bits})


def step(params, h, x):
    h = jax.nn.sigmoid(params["leak"]) * h + jnp.tanh(x @ params["w"])
    return h, h @ params["out"]


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def main(steps=200, batch=8, width=32, window=5, file="own_rule.png"):
    import matplotlib.pyplot as plt

    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "w": jax.random.normal(keys[0], (4, width)),
        "leak": jnp.linspace(0.0, 4.0, width),
        "out": jax.random.normal(keys[1], (width, 2)) / width**0.5,
    }
    hidden, bits = jnp.zeros((batch, width)), [2, 3, 4, 5, 6, 8, 10]
    xs, ys = jax.random.normal(keys[2], (steps, batch, 4)), jax.random.normal(keys[3], (steps, batch, 2))
    cosines = {name: [] for name in params}
    for n in bits:
        learner = etrax.compile(step, few_bits(n), xs[0], params=params, hidden=hidden)
        for row in etrax.testing.compare(learner, loss, params, hidden, xs, ys, window=window).check().rows:
            cosines[row.path[-1]].append(row.cosine)
    print(learner.report)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, found in cosines.items():
        print(f"{name:5}", " ".join(f"{n} bits: {c:.3f}" for n, c in zip(bits, found, strict=True)))
        axes.plot(bits, found, marker="o", label=name)
    axes.set(xlabel="bits of the trace", ylabel="cosine with BPTT", ylim=(min(0, np.min(list(cosines.values()))), 1.05))
    axes.legend()
    figure.savefig(file, dpi=150)
    return cosines


if __name__ == "__main__":
    main()
