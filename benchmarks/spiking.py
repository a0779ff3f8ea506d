"""Layers of recurrent leaky integrate-and-fire neurons, plain (LIF) or with adaptive thresholds (ALIF)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from benchmarks.workload import F32, Array, Ops, Tree, Workload, matrix, spike, spikes

OUTPUTS = 20


def lif(batch: int, units: int = 512, layers: int = 3, inputs: int = 700) -> Workload:
    return _network(batch, units, layers, inputs, adaptive=False)


def alif(batch: int, units: int = 512, layers: int = 3, inputs: int = 700) -> Workload:
    return _network(batch, units, layers, inputs, adaptive=True)


def _network(batch: int, units: int, layers: int, inputs: int, adaptive: bool) -> Workload:
    """v' = 0.9 v + W x + R z − z, a' = 0.98 a + z, z = Θ(v − 1 − 0.1 a); x of a layer is z' of the one below it.

    Spikes are a function of v and a, so these are all the state there is.
    """
    keys = jax.random.split(jax.random.key(0), 2 * layers + 1)
    params = {"out": matrix(keys[-1], units, OUTPUTS)}
    for i in range(layers):
        params[f"w{i}"] = matrix(keys[2 * i], units if i else inputs, units, 2.0)
        params[f"r{i}"] = matrix(keys[2 * i + 1], units, units, 0.5)
    names = [f"{kind}{i}" for i in range(layers) for kind in ("va" if adaptive else "v")]

    def fired(state: Tree, i: int) -> Array:
        return spike(state[f"v{i}"] - 1 - (0.1 * state[f"a{i}"] if adaptive else 0.0))

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        new: Tree = {}
        for i in range(layers):
            z = fired(state, i)
            new[f"v{i}"] = 0.9 * state[f"v{i}"] + ops.matmul(x, p[f"w{i}"]) + ops.matmul(z, p[f"r{i}"]) - z
            if adaptive:
                new[f"a{i}"] = 0.98 * state[f"a{i}"] + z
            x = fired(new, i)
        return new, x @ p["out"]

    hidden = {name: jnp.zeros((batch, units), F32) for name in names}
    products = (inputs + (2 * layers - 1) * units + OUTPUTS) * units
    return Workload(step, params, hidden, spikes((batch, inputs), 0.05, OUTPUTS), batch, products)
