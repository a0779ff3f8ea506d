"""GRU and LSTM with as many inputs as units and ten outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, gaussian, matrix

OUTPUTS = 10


def gru(batch: int, units: int) -> Workload:
    """h' = (1 − z) h + z tanh(W_n [x, r h]), z = σ(W_z [x, h]), r = σ(W_r [x, h])."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {name: matrix(k, 2 * units, units, 0.5) for name, k in zip("zrn", keys, strict=False)}
    params["out"] = matrix(keys[3], units, OUTPUTS)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        h = state["h"]
        xh = jnp.concatenate([x, h], -1)
        z, r = jax.nn.sigmoid(ops.matmul(xh, p["z"])), jax.nn.sigmoid(ops.matmul(xh, p["r"]))
        n = jnp.tanh(ops.matmul(jnp.concatenate([x, r * h], -1), p["n"]))
        h = (1 - z) * h + z * n
        return {"h": h}, h @ p["out"]

    hidden = {"h": jnp.zeros((batch, units), F32)}
    return Workload(step, params, hidden, gaussian(batch, units, OUTPUTS), batch, 6 * units**2 + units * OUTPUTS)


def lstm(batch: int, units: int) -> Workload:
    """c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), each of i, f, g, o from a product W [x, h] + b of its own."""
    keys = jax.random.split(jax.random.key(0), 5)
    params = {f"w_{name}": matrix(k, 2 * units, units, 0.5) for name, k in zip("ifgo", keys, strict=False)}
    params |= {f"b_{name}": jnp.zeros(units, F32) for name in "ifgo"}
    params["out"] = matrix(keys[4], units, OUTPUTS)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        xh = jnp.concatenate([x, state["h"]], -1)
        i, f, g, o = (ops.matmul(xh, p[f"w_{name}"], p[f"b_{name}"]) for name in "ifgo")
        c = jax.nn.sigmoid(f) * state["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return {"h": h, "c": c}, h @ p["out"]

    hidden = {name: jnp.zeros((batch, units), F32) for name in "hc"}
    return Workload(step, params, hidden, gaussian(batch, units, OUTPUTS), batch, 8 * units**2 + units * OUTPUTS)
