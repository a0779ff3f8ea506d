"""A spiking net on frames: a convolution into LIF neurons that are connected among themselves by another one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, matrix, spike, spikes

OUTPUTS, SIDE = 10, 3


def conv_lif(batch: int, side: int = 32, channels: int = 16, polarities: int = 2) -> Workload:
    """v' = 0.9 v + W ∗ x + R ∗ z − z at half the frame's resolution; the readout sees every neuron's spikes."""
    keys = jax.random.split(jax.random.key(0), 3)
    half, fan, own = side // 2, SIDE**2 * polarities, SIDE**2 * channels
    params = {
        "w": matrix(keys[0], fan, channels, 3.0).reshape(SIDE, SIDE, polarities, channels),
        "r": matrix(keys[1], own, channels, 0.5).reshape(SIDE, SIDE, channels, channels),
        "out": matrix(keys[2], half**2 * channels, OUTPUTS),
    }

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        z = spike(state["v"] - 1)
        v = 0.9 * state["v"] + ops.conv(x, p["w"], 2) + ops.conv(z, p["r"], 1) - z
        return {"v": v}, spike(v - 1).reshape(batch, -1) @ p["out"]

    hidden = {"v": jnp.zeros((batch, half, half, channels), F32)}
    data = spikes((batch, side, side, polarities), 0.1, OUTPUTS)
    return Workload(step, params, hidden, data, batch, half**2 * channels * (fan + own + OUTPUTS))
