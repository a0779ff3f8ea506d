"""Models whose reports are looked at: every verdict, hostile names, chains of ops, many layers."""

import jax
import jax.numpy as jnp

import etrax

HOSTILE = "</title><script>alert('x')</script> & \"q\" \x07\ud800"


def ones(*shape):
    return jnp.full(shape, 0.1)


def mixed():
    """Exact, approximate, truncated and unused parameters; two groups, two outputs; a name that is code."""

    def step(p, h, x):
        u = jnp.tanh(x @ p[HOSTILE]) @ p["w"] + h["slow"] @ p["u"]
        u = (u - u.mean(-1, keepdims=True)) * p["gain"]
        slow = 0.9 * h["slow"] + jnp.tanh(u)
        fast = jax.nn.sigmoid(p["leak"]) * h["fast"] + x @ p["direct"]
        return {"slow": slow, "fast": fast}, {"y": slow @ p["out"] + p["gain"] * fast, "skip": x @ p["skip"]}

    params = {
        HOSTILE: ones(5, 6), "w": ones(6, 4), "u": ones(4, 4), "gain": ones(4), "leak": ones(4), "direct": ones(5, 4),
        "out": ones(4, 4), "skip": ones(5, 2), "never": ones(3), "count": jnp.arange(3),
    }  # fmt: skip
    hidden = {"slow": ones(3, 4), "fast": ones(3, 4)}
    return etrax.compile(step, "d_rtrl", ones(3, 5), params=params, hidden=hidden)


def layers(depth, rule="d_rtrl"):
    """A stack of recurrent layers, 3 parameters each, and a readout."""

    def step(p, hidden, x):
        new = []
        for q, h in zip(p["layers"], hidden, strict=True):
            x = jnp.tanh(x @ q["kernel"] + h @ q["recurrent"] + q["bias"])
            new.append(x)
        return new, x @ p["head"]

    one = {"kernel": ones(2, 2), "recurrent": ones(2, 2), "bias": ones(2)}
    params = {"layers": [one] * depth, "head": ones(2, 2)}
    return etrax.compile(step, rule, ones(2), params=params, hidden=[ones(2)] * depth)


def stateless():
    """No hidden state at all, and a bare array as parameter and output."""
    return etrax.compile(lambda w, h, x: (h, x @ w), "d_rtrl", ones(3), params=ones(3, 2), hidden={})
