"""The textbook D-RTRL recursion written by hand for the GRU: the whole trace read and written at every step.

ε ← D ε + u ⊗ F,   g ← g + ∂ℓ/∂θ + (∂ℓ/∂h) ε
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.rivals import Program, Rival, compiled
from benchmarks.workload import Array, Workload, loss
from jax import lax


def _one_step(x: Array, y: Array, h: Array, p: Any) -> Any:
    xh = jnp.concatenate([x, h], -1)
    z, r = jax.nn.sigmoid(xh @ p["z"]), jax.nn.sigmoid(xh @ p["r"])
    xrh = jnp.concatenate([x, r * h], -1)
    n = jnp.tanh(xrh @ p["n"])
    new = (1 - z) * h + z * n
    onto_state = {"z": (n - h) * z * (1 - z), "n": z * (1 - n * n)}
    return loss(new @ p["out"], y), (new, {"z": xh, "n": xrh}, 1 - z, onto_state)


def _run(params: Any, inputs: Array, targets: Array) -> Any:
    _, batch, units = inputs.shape

    def body(carry: Any, xy: tuple[Array, Array]) -> tuple[Any, None]:
        h, e, g = carry
        (gh, gp), (new, u, d, f) = jax.grad(lambda h, p: _one_step(*xy, h, p), (0, 1), has_aux=True)(h, params)
        g = {k: g[k] + gp[k] for k in g}
        for k in f:
            g[k] = g[k] + jnp.einsum("bio,bo->io", e[k], gh)
        e = {k: d[:, None] * e[k] + u[k][:, :, None] * f[k][:, None] for k in f}
        return (new, e, g), None

    e = {k: jnp.zeros((batch, 2 * units, units), inputs.dtype) for k in "zn"}
    start = (jnp.zeros((batch, units), inputs.dtype), e, jax.tree.map(jnp.zeros_like, params))
    g = lax.scan(body, start, (inputs, targets))[0][2]
    return jax.tree.map(lambda a: a / len(inputs), g)


def per_step(steps: int | None = None) -> Rival:
    """Two of the three weight ops have a trace; the reset gate reaches the state through another weight."""

    def build(workload: Workload, inputs: Array, targets: Array) -> Program:
        trace = 4 * sum(workload.params[k].size for k in "zn") * workload.batch
        return compiled(_run, workload, inputs, targets, trace)

    return Rival("per step by hand", build, 1, steps)
