"""Two small models: one whose traces every diagonal rule has right, one that needs the whole recurrence."""

import jax
import jax.numpy as jnp

import etrax

B, I, H = 2, 3, 4
KEYS = jax.random.split(jax.random.key(0), 6)
INPUTS = jax.random.normal(KEYS[0], (7, B, I))
ZERO = {"v": jnp.zeros((B, H)), "a": jnp.zeros((B, H))}


def leaky(rule):
    """Two states at each position, a weight behind softplus, a leak and a readout."""

    def step(p, h, x):
        v = jax.nn.sigmoid(p["leak"]) * h["v"] - 0.2 * h["a"] + x @ jax.nn.softplus(p["w"])
        return {"v": v, "a": 0.8 * h["a"] + jnp.tanh(v)}, jnp.tanh(v) @ p["out"]

    p = {"w": jax.random.normal(KEYS[1], (I, H)), "leak": jnp.linspace(-1, 1, H), "out": jnp.ones((H, 2))}
    return etrax.compile(step, rule, INPUTS[0], params=p, hidden=ZERO)


def recurrent(rule):
    def step(p, h, x):
        h = jnp.tanh(h @ p["u"] + x @ p["w"])
        return h, h

    p = {"w": jax.random.normal(KEYS[2], (I, H)), "u": jax.random.normal(KEYS[3], (H, H)) / 2}
    return etrax.compile(step, rule, INPUTS[0], params=p, hidden=jnp.zeros((B, H)))
