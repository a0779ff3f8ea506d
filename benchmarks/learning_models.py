"""Small recurrent networks in plain JAX for `benchmarks/learning.py`: each a step function with its start values.

All have recurrent weights that mix units, so no rule that keeps a trace per unit is exact on them, and all state that
carries memory is kept unit by unit, where such a rule can follow it. Everything is float32, in any precision of JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
F32 = jnp.float32


class Model(NamedTuple):
    """`init(key)` gives parameters, `start(batch)` the state before the first step."""

    init: Callable[[Array], dict[str, Array]]
    start: Callable[[int], Any]
    step: Callable[[Any, Any, Array], tuple[Any, Array]]


def matrix(key: Array, rows: int, columns: int, gain: float = 1.0) -> Array:
    return gain * rows**-0.5 * jax.random.normal(key, (rows, columns), F32)


def rate_model(inputs: int, units: int, outputs: int) -> Model:
    """Leaky rate units with learnable leaks: h' = a h + (1 − a) relu(W x + R h + b), a = σ(leak)."""

    def init(key: Array) -> dict[str, Array]:
        k = jax.random.split(key, 3)
        return {
            "w": matrix(k[0], inputs, units), "r": matrix(k[1], units, units, 0.5), "b": jnp.zeros(units, F32),
            "leak": jnp.full(units, 2.5, F32), "out": matrix(k[2], units, outputs), "b_out": jnp.zeros(outputs, F32),
        }  # fmt: skip

    def step(p: Any, h: Array, x: Array) -> tuple[Array, Array]:
        a = jax.nn.sigmoid(p["leak"])
        h = a * h + (1 - a) * jax.nn.relu(x @ p["w"] + h @ p["r"] + p["b"])
        return h, h @ p["out"] + p["b_out"]

    return Model(init, lambda batch: jnp.zeros((batch, units), F32), step)


def gated_model(inputs: int, units: int, outputs: int) -> Model:
    """One gate, with recurrent weights: h' = (1 − z) h + z tanh(W x + R h + b), z = σ(W_z x + R_z h + b_z).

    The gates start nearly closed, so that units remember for some ten steps before anything is learned.
    """

    def init(key: Array) -> dict[str, Array]:
        k = jax.random.split(key, 5)
        return {
            "w_z": matrix(k[0], inputs, units), "r_z": matrix(k[1], units, units, 0.5),
            "b_z": jnp.full(units, -2.0, F32), "w": matrix(k[2], inputs, units), "r": matrix(k[3], units, units, 0.5),
            "b": jnp.zeros(units, F32), "out": matrix(k[4], units, outputs), "b_out": jnp.zeros(outputs, F32),
        }  # fmt: skip

    def step(p: Any, h: Array, x: Array) -> tuple[Array, Array]:
        z = jax.nn.sigmoid(x @ p["w_z"] + h @ p["r_z"] + p["b_z"])
        h = (1 - z) * h + z * jnp.tanh(x @ p["w"] + h @ p["r"] + p["b"])
        return h, h @ p["out"] + p["b_out"]

    return Model(init, lambda batch: jnp.zeros((batch, units), F32), step)


@jax.custom_jvp
def spike(v: Array) -> Array:
    """One above zero; its derivative is taken to be a triangle of height 0.3."""
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _spike_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (v,), (dv,) = primals, tangents
    return spike(v), 0.3 * jnp.maximum(0, 1 - jnp.abs(v)) * dv


def spiking_model(
    inputs: int, units: int, outputs: int, adaptive: int, beta: float, memory: float, gain: float = 1.0
) -> Model:  # fmt: skip
    """Recurrent spiking neurons as in the e-prop paper; the last `adaptive` ones raise their threshold as they fire.

        v' = 0.9 v + W x + R z − z,   a' = memory · a + z,   z' = Θ(v' − 1 − β a'),   s' = 0.8 s + 0.2 z'

    The readout is leaky: its leak stands before its weights (s), one state per neuron.
    """
    betas = jnp.where(jnp.arange(units) >= units - adaptive, beta, 0).astype(F32)

    def init(key: Array) -> dict[str, Array]:
        k = jax.random.split(key, 3)
        return {
            "w": matrix(k[0], inputs, units, gain), "r": matrix(k[1], units, units, 0.5),
            "out": matrix(k[2], units, outputs, 3.0), "b_out": jnp.zeros(outputs, F32),
        }  # fmt: skip

    def step(p: Any, h: dict[str, Array], x: Array) -> tuple[dict[str, Array], Array]:
        # The reset has no derivative, as in the paper: it would punish a neuron for spikes that did no harm.
        v = 0.9 * h["v"] + x @ p["w"] + h["z"] @ p["r"] - lax.stop_gradient(h["z"])
        a = memory * h["a"] + h["z"]
        z = spike(v - 1 - betas * a)
        s = 0.8 * h["s"] + 0.2 * z
        return {"v": v, "a": a, "z": z, "s": s}, s @ p["out"] + p["b_out"]

    return Model(init, lambda batch: {n: jnp.zeros((batch, units), F32) for n in "vazs"}, step)
