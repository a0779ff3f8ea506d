"""Linear recurrent unit (Orvieto et al., 2023): a complex diagonal state between two real layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, cue, gaussian, matrix
from jax import lax


def lru(batch: int, units: int, features: int = 64) -> Workload:
    """h' = λ h + γ (B_r + i B_i) x, y = Re((C_r + i C_i) h) + D x, λ = exp(−exp ν + i exp θ), γ = exp(g)."""
    keys = jax.random.split(jax.random.key(0), 6)
    radius = jnp.sqrt(jax.random.uniform(keys[4], (units,), F32, 0.81, 0.998))
    params = {
        "nu": jnp.log(-jnp.log(radius)), "theta": jnp.log(jax.random.uniform(keys[5], (units,), F32, 0.01, 3.0)),
        "gamma": 0.5 * jnp.log(1 - radius**2),
        "b_re": matrix(keys[0], features, units), "b_im": matrix(keys[1], features, units),
        "c_re": matrix(keys[2], units, features), "c_im": matrix(keys[3], units, features),
        "d": jnp.ones(features, F32),
    }  # fmt: skip

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        a = jnp.exp(lax.complex(-jnp.exp(p["nu"]), jnp.exp(p["theta"])))
        drive = jnp.exp(p["gamma"]) * lax.complex(x @ p["b_re"], x @ p["b_im"])
        h = a * state["h"] + drive
        return {"h": h}, h.real @ p["c_re"] - h.imag @ p["c_im"] + x * p["d"]

    def real_step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        size, angle = jnp.exp(-jnp.exp(ops.each(p["nu"]))), jnp.exp(ops.each(p["theta"]))
        gamma, re, im = jnp.exp(ops.each(p["gamma"])), size * jnp.cos(angle), size * jnp.sin(angle)
        h_re = re * state["re"] - im * state["im"] + gamma * ops.matmul(x, p["b_re"])
        h_im = im * state["re"] + re * state["im"] + gamma * ops.matmul(x, p["b_im"])
        return {"re": h_re, "im": h_im}, h_re @ p["c_re"] - h_im @ p["c_im"] + x * p["d"]

    return Workload(
        step, params, {"h": jnp.zeros((batch, units), jnp.complex64)}, gaussian(batch, features, features), batch,
        4 * units * features, real_step, {n: jnp.zeros((batch, units), F32) for n in ("re", "im")},
    )  # fmt: skip


def recall(batch: int, units: int, features: int = 64) -> Workload:
    """The same on a task whose credit reaches beyond a window: a cue at the start, asked for until the end."""
    return lru(batch, units, features)._replace(data=cue(batch, features, features))


def lru_layers(batch: int, units: int, layers: int = 4, features: int = 64) -> Workload:
    """Layers of it, tanh(y) of one is x of the next; γ = √(1 − |λ|²) follows from λ."""
    keys = jax.random.split(jax.random.key(0), 7 * layers)
    params: Tree = {}
    for i in range(layers):
        own = keys[7 * i : 7 * (i + 1)]
        shapes = {
            "b_re": (features, units),
            "b_im": (features, units),
            "c_re": (units, features),
            "c_im": (units, features),
        }
        params |= {
            f"{name}{i}": matrix(key, *shape) for key, (name, shape) in zip(own[:4], shapes.items(), strict=True)
        }
        params[f"nu{i}"] = jnp.log(-jnp.log(jax.random.uniform(own[4], (units,), F32, 0.9, 0.999)))
        params[f"theta{i}"] = jax.random.uniform(own[5], (units,), F32, 0.0, 0.3)
        params[f"d{i}"] = jax.random.normal(own[6], (features,), F32)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        new: Tree = {}
        for i in range(layers):
            size = jnp.exp(-jnp.exp(p[f"nu{i}"]))
            a, gamma = size * jnp.exp(1j * p[f"theta{i}"]), jnp.sqrt(1 - size**2)
            h = a * state[f"h{i}"] + gamma * lax.complex(x @ p[f"b_re{i}"], x @ p[f"b_im{i}"])
            new[f"h{i}"] = h
            y = h.real @ p[f"c_re{i}"] - h.imag @ p[f"c_im{i}"] + x * p[f"d{i}"]
            x = y if i == layers - 1 else jnp.tanh(y)
        return new, x

    hidden = {f"h{i}": jnp.zeros((batch, units), jnp.complex64) for i in range(layers)}
    return Workload(step, params, hidden, gaussian(batch, features, features), batch, layers * 4 * units * features)
