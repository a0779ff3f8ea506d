"""Layers as their papers and libraries write them, whose traces are small only because of structure that is proved."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, gaussian, matrix, spike, spikes
from jax import lax

OUTPUTS = 10


def _rms(x: Array) -> Array:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _short_conv(window: Array, u: Array, taps: Array) -> tuple[Array, Array]:
    """A depthwise convolution over the last inputs: the next window, and what it gives for this step."""
    window = jnp.concatenate([window, u[:, None]], 1)
    return window[:, 1:], (window * taps).sum(1)


def mamba(batch: int, features: int = 64, expand: int = 2, taps: int = 4, slots: int = 8, rank: int = 4) -> Workload:
    """A Mamba block: norm, in_proj, short convolution, x_proj → Δ, B, C, selective scan, gate, out_proj."""
    wide = expand * features
    keys = jax.random.split(jax.random.key(0), 6)
    params = {
        "norm": jnp.ones(features, F32), "in": matrix(keys[0], features, 2 * wide),
        "taps": matrix(keys[1], taps, wide), "conv_bias": jnp.zeros(wide, F32),
        "x": matrix(keys[2], wide, rank + 2 * slots), "dt": matrix(keys[3], rank, wide),
        "dt_bias": jnp.full(wide, -1.0, F32), "d": jnp.ones(wide, F32), "out": matrix(keys[4], wide, features),
        "a": jnp.tile(jnp.log(jnp.arange(1.0, slots + 1, dtype=F32)), (wide, 1)),
    }  # fmt: skip

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        u, z = jnp.split((_rms(x) * p["norm"]) @ p["in"], 2, -1)
        window, u = _short_conv(state["conv"], u, p["taps"])
        u = jax.nn.silu(u + p["conv_bias"])
        low, b, c = jnp.split(u @ p["x"], [rank, rank + slots], -1)
        dt = jax.nn.softplus(low @ p["dt"] + p["dt_bias"])
        h = jnp.exp(dt[..., None] * -jnp.exp(p["a"])) * state["h"] + (dt * u)[..., None] * b[:, None]
        y = jnp.einsum("bdn,bn->bd", h, c) + p["d"] * u
        return {"conv": window, "h": h}, (y * jax.nn.silu(z)) @ p["out"]

    hidden = {"conv": jnp.zeros((batch, taps - 1, wide), F32), "h": jnp.zeros((batch, wide, slots), F32)}
    products = 3 * features * wide + wide * (2 * rank + 2 * slots)
    return Workload(step, params, hidden, gaussian(batch, features, features), batch, products)


def gated_deltanet(batch: int, features: int = 64, keys_dim: int = 16, values_dim: int = 32) -> Workload:
    """One head: S' = α S (I − β k kᵀ) + β v kᵀ, o = S' q, with gates α and β made of the input."""
    keys = jax.random.split(jax.random.key(0), 6)
    params = {
        "q": matrix(keys[0], features, keys_dim), "k": matrix(keys[1], features, keys_dim),
        "v": matrix(keys[2], features, values_dim), "alpha": matrix(keys[3], features, 1)[:, 0],
        "beta": matrix(keys[4], features, 1)[:, 0], "out": matrix(keys[5], values_dim, features),
    }  # fmt: skip

    def unit(x: Array) -> Array:
        return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        q, k, v = unit(x @ p["q"]), unit(x @ p["k"]), x @ p["v"]
        alpha, beta = jnp.exp(-jax.nn.softplus(x @ p["alpha"])), jax.nn.sigmoid(x @ p["beta"])
        s = alpha[:, None, None] * state["s"]
        s = s + beta[:, None, None] * jnp.einsum("bv,bk->bvk", v - jnp.einsum("bvk,bk->bv", s, k), k)
        return {"s": s}, jnp.einsum("bvk,bk->bv", s, q) @ p["out"]

    hidden = {"s": jnp.zeros((batch, values_dim, keys_dim), F32)}
    products = features * (2 * keys_dim + 2 * values_dim + 2) + 3 * keys_dim * values_dim
    return Workload(step, params, hidden, gaussian(batch, features, features), batch, products)


def leaky_readouts(batch: int, features: int = 128, units: int = 256) -> Workload:
    """LIF with a leak for each neuron under ten readouts with a leak each, as snnTorch and Spyx have them."""
    keys = jax.random.split(jax.random.key(0), 2)
    leaks, read_leaks = jnp.linspace(0.8, 0.95, units, dtype=F32), jnp.linspace(0.8, 0.98, OUTPUTS, dtype=F32)
    params = {"w": matrix(keys[0], features, units, 2.0), "out": matrix(keys[1], units, OUTPUTS)}

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        v = leaks * state["v"] + ops.matmul(x, p["w"]) - lax.stop_gradient(spike(state["v"] - 1))
        read = read_leaks * state["read"] + ops.matmul(spike(v - 1), p["out"])
        return {"v": v, "read": read}, read

    hidden = {"v": jnp.zeros((batch, units), F32), "read": jnp.zeros((batch, OUTPUTS), F32)}
    return Workload(step, params, hidden, spikes((batch, features), 0.1, OUTPUTS), batch, (features + OUTPUTS) * units)


def embedded_mingru(batch: int, tokens: int = 256, features: int = 32, units: int = 64) -> Workload:
    """A table of vectors below a minGRU: h' = (1 − z) h + z n, with z and n made of the token's vector."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "table": matrix(keys[0], tokens, features, tokens**0.5), "z": matrix(keys[1], features, units),
        "n": matrix(keys[2], features, units), "out": matrix(keys[3], units, OUTPUTS),
    }  # fmt: skip

    def step(ops: Ops, p: Tree, state: Tree, token: Array) -> tuple[Tree, Array]:
        x = p["table"][token]
        z = jax.nn.sigmoid(x @ p["z"])
        h = (1 - z) * state["h"] + z * (x @ p["n"])
        return {"h": h}, h @ p["out"]

    products = 2 * features * units + units * OUTPUTS
    return Workload(step, params, {"h": jnp.zeros((batch, units), F32)}, _tokens(batch, tokens), batch, products)


def _tokens(batch: int, tokens: int) -> Callable[[int], tuple[Array, Array]]:
    """Random tokens and normal targets."""

    def data(steps: int) -> tuple[Array, Array]:
        k = jax.random.split(jax.random.key(1), 2)
        targets = jax.random.normal(k[1], (steps, batch, OUTPUTS), F32)
        return jax.random.randint(k[0], (steps, batch), 0, tokens, jnp.int32), targets

    return data


def gated_lru_layers(batch: int, units: int = 64, layers: int = 2) -> Workload:
    """LRU layers of as many features as units, each followed by a norm and a GLU, with a skip."""
    params: Tree = {}
    for i in range(layers):
        keys = jax.random.split(jax.random.key(i), 8)
        for name, key in zip(("b_re", "b_im", "c_re", "c_im", "glu", "gate"), keys[:6], strict=True):
            params[f"{name}{i}"] = matrix(key, units, units)
        params[f"nu{i}"] = jnp.log(-jnp.log(jax.random.uniform(keys[6], (units,), F32, 0.9, 0.999)))
        params[f"theta{i}"] = jax.random.uniform(keys[7], (units,), F32, 0.0, 0.3)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        new: Tree = {}
        for i in range(layers):
            size = jnp.exp(-jnp.exp(p[f"nu{i}"]))
            a, gamma = size * jnp.exp(1j * p[f"theta{i}"]), jnp.sqrt(1 - size**2)
            h = a * state[f"h{i}"] + gamma * lax.complex(x @ p[f"b_re{i}"], x @ p[f"b_im{i}"])
            new[f"h{i}"] = h
            y = _rms(h.real @ p[f"c_re{i}"] - h.imag @ p[f"c_im{i}"])
            x = x + (y @ p[f"glu{i}"]) * jax.nn.sigmoid(y @ p[f"gate{i}"])
        return new, x

    hidden = {f"h{i}": jnp.zeros((batch, units), jnp.complex64) for i in range(layers)}
    return Workload(step, params, hidden, gaussian(batch, units, units), batch, layers * 6 * units**2)
