"""A selective state space (Gu and Dao, 2023): step size, input and input vector of the state are made of the input."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, gaussian, matrix


def selective(batch: int, channels: int, slots: int = 8, features: int = 64, outputs: int = 10) -> Workload:
    """h'[d, n] = exp(s_d A_dn) h[d, n] + s_d u_d b_n, o = (Σ_n c_n h'[d, n]) W_o; u, b, c = x W, s = softplus(x W_s).

    An element of u or s reaches all slots of a channel, an element of b all channels.
    """
    keys = jax.random.split(jax.random.key(0), 5)
    rates = jnp.arange(1.0, slots + 1, dtype=F32) / slots
    params = {
        "u": matrix(keys[0], features, channels), "s": matrix(keys[1], features, channels),
        "b": matrix(keys[2], features, slots), "c": matrix(keys[3], features, slots),
        "a": -jnp.tile(rates, (channels, 1)) / 4, "o": matrix(keys[4], channels, outputs),
    }  # fmt: skip

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        u, b, c = (ops.matmul(x, p[name]) for name in "ubc")
        s = jax.nn.softplus(ops.matmul(x, p["s"]))
        h = jnp.exp(s[..., None] * ops.each(p["a"])) * state["h"] + (s * u)[..., None] * b[:, None]
        return {"h": h}, ops.matmul((h * c[:, None]).sum(-1), p["o"])

    products = 2 * features * (channels + slots) + channels * outputs
    hidden = {"h": jnp.zeros((batch, channels, slots), F32)}
    return Workload(step, params, hidden, gaussian(batch, features, outputs), batch, products)
