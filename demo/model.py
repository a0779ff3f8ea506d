"""A recurrent network of adaptive spiking neurons (ALIF), in plain JAX: nothing in it knows of Etrax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

LEAK, ADAPTATION, STRENGTH, SMOOTHING = 0.9, 0.97, 0.2, 0.95


@jax.custom_jvp
def spike(v: jax.Array) -> jax.Array:
    """One above zero; its derivative is taken to be a triangle."""
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _spike_jvp(primals: Any, tangents: Any) -> Any:
    (v,), (dv,) = primals, tangents
    return spike(v), 0.5 * jnp.maximum(0, 1 - jnp.abs(v)) * dv


def step(params: Any, hidden: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """One step of time: membranes v, thresholds that each spike z raises by a, spikes smoothed to s, a readout."""
    v, a, z, s = (hidden[name] for name in "vazs")
    v = LEAK * v + x @ params["w_in"] + z @ params["w_rec"] + params["b"] - z
    a = ADAPTATION * a + z
    z = spike(v - 1 - STRENGTH * a)
    s = SMOOTHING * s + z
    return {"v": v, "a": a, "z": z, "s": s}, s @ params["w_out"] + params["b_out"]


def weights(key: jax.Array, inputs: int, neurons: int, classes: int) -> dict[str, jax.Array]:
    """Random weights, scaled so that a sum of n inputs stays in range; all float32."""
    shapes = {"w_in": (inputs, neurons, 1.0), "w_rec": (neurons, neurons, 0.5), "w_out": (neurons, classes, 0.3)}
    keys = jax.random.split(key, len(shapes))
    drawn = {
        name: gain * n**-0.5 * jax.random.normal(k, (n, m), jnp.float32)
        for k, (name, (n, m, gain)) in zip(keys, shapes.items(), strict=True)
    }
    return {**drawn, "b": jnp.zeros(neurons, jnp.float32), "b_out": jnp.zeros(classes, jnp.float32)}


def make() -> tuple[Any, ...]:
    """The network as the command line takes a model, `etrax explain demo/model.py:make`: with one step of input."""
    return step, weights(jax.random.key(0), 26, 100, 10), silence(32, 100), jnp.ones((32, 26), jnp.float32)


def silence(batch: int, neurons: int) -> dict[str, jax.Array]:
    """The state before the first step."""
    return {name: jnp.zeros((batch, neurons), jnp.float32) for name in "vazs"}
