"""Layers on layers, none of which hears of a later one: what lies between their recurrences can run for all steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, gaussian, matrix, spike, spikes
from jax import lax

OUTPUTS = 10


def lif_stack(batch: int, units: int = 512, layers: int = 3) -> Workload:
    """v' = 0.9 v + W x − z, z = Θ(v' + z − 1): spikes are reset at once, and feed the layer above; a leaky readout."""
    keys = jax.random.split(jax.random.key(0), layers + 1)
    params = {f"w{i}": matrix(keys[i], units, units, 2.0) for i in range(layers)}
    params["out"] = matrix(keys[-1], units, OUTPUTS)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        new: Tree = {}
        for i in range(layers):
            v = 0.9 * state[f"v{i}"] + ops.matmul(x, p[f"w{i}"])
            x = spike(v - 1)
            new[f"v{i}"] = v - x
        new["read"] = 0.9 * state["read"] + ops.matmul(x, p["out"])
        return new, new["read"]

    hidden = {f"v{i}": jnp.zeros((batch, units), F32) for i in range(layers)}
    hidden["read"] = jnp.zeros((batch, OUTPUTS), F32)
    products = (layers * units + OUTPUTS) * units
    return Workload(step, params, hidden, spikes((batch, units), 0.1, OUTPUTS), batch, products)


def lif_readout(batch: int, units: int = 512) -> Workload:
    """v' = 0.9 v + W x − stop(z), r' = 0.8 r + V z': a detached reset and one leak, so that the trace of v factors."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"w": matrix(keys[0], units, units, 2.0), "out": matrix(keys[1], units, OUTPUTS)}

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        v = 0.9 * state["v"] + ops.matmul(x, p["w"]) - lax.stop_gradient(spike(state["v"] - 1))
        read = 0.8 * state["read"] + ops.matmul(spike(v - 1), p["out"])
        return {"v": v, "read": read}, read

    hidden = {"v": jnp.zeros((batch, units), F32), "read": jnp.zeros((batch, OUTPUTS), F32)}
    return Workload(step, params, hidden, spikes((batch, units), 0.1, OUTPUTS), batch, (units + OUTPUTS) * units)


def lru_stack(batch: int, units: int = 256, layers: int = 4, features: int = 64) -> Workload:
    """h' = λ h + γ B x with complex λ as two real states, x ← tanh(C h') + x; the last layer without tanh."""
    keys = jax.random.split(jax.random.key(0), 2 * layers)
    params: Tree = {}
    for i in range(layers):
        params |= {
            f"nu{i}": jnp.linspace(-4.0, -2.0, units, dtype=F32), f"theta{i}": jnp.linspace(0.0, 0.3, units, dtype=F32),
            f"b{i}": matrix(keys[2 * i], features, 2 * units), f"c{i}": matrix(keys[2 * i + 1], 2 * units, features),
        }  # fmt: skip

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        new: Tree = {}
        for i in range(layers):
            size, angle = jnp.exp(-jnp.exp(ops.each(p[f"nu{i}"]))), ops.each(p[f"theta{i}"])
            re, im, gamma = size * jnp.cos(angle), size * jnp.sin(angle), jnp.sqrt(1 - size**2)
            u = ops.matmul(x, p[f"b{i}"])
            a, b = state[f"re{i}"], state[f"im{i}"]
            new[f"re{i}"] = re * a - im * b + gamma * u[:, :units]
            new[f"im{i}"] = im * a + re * b + gamma * u[:, units:]
            y = ops.matmul(jnp.concatenate([new[f"re{i}"], new[f"im{i}"]], -1), p[f"c{i}"])
            x = (y if i == layers - 1 else jnp.tanh(y)) + x
        return new, x

    hidden = {f"{part}{i}": jnp.zeros((batch, units), F32) for i in range(layers) for part in ("re", "im")}
    return Workload(step, params, hidden, gaussian(batch, features, features), batch, layers * 4 * units * features)
