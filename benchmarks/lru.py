"""Linear recurrent unit (Orvieto et al., 2023): a complex diagonal state between two real layers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, gaussian, matrix
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
