"""Networks with sparse connectivity: an E/I network with conductances, and one large recurrent LIF network."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from benchmarks.workload import F32, Array, Connections, Ops, Tree, Workload, spike, spikes

CHANNELS, OUTPUTS = 64, 16


def connections(name: str, sources: int, targets: int, synapses: int, seed: int) -> Connections:
    """Synapses between neurons drawn at random; a pair may be drawn twice, and then has two synapses."""
    rng = np.random.RandomState(seed)
    pre, post = rng.randint(sources, size=synapses), rng.randint(targets, size=synapses)
    order = np.lexsort((post, pre))
    return Connections(name, pre[order].astype(np.int32), post[order].astype(np.int32), sources, targets)


def _channels(x: Array, neurons: int) -> Array:
    """Every neuron listens to one of the input channels."""
    return jnp.tile(x, (1, neurons // x.shape[1]))


def _populations(z: Array) -> Array:
    return z.reshape(z.shape[0], OUTPUTS, -1).mean(-1)


def coba(batch: int, excitatory: int = 768, inhibitory: int = 256, density: float = 0.1) -> Workload:
    """v' = v + 0.05 (−v + g_e (4 − v) − g_i (1 + v) + G x) − z; conductances decay and jump with weighted spikes."""
    n = excitatory + inhibitory
    sizes = {"e": excitatory, "i": inhibitory}
    at = {k: connections(k, m, n, int(density * m * n), seed) for seed, (k, m) in enumerate(sizes.items())}
    params = {k: jnp.full(len(c.pre), 0.3 / (density * sizes[k]), F32) for k, c in at.items()}
    params["gain"] = jnp.full(n, 40.0, F32)

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        v, z = state["v"], spike(state["v"] - 1)
        g_e = 0.8 * state["g_e"] + ops.sparse(z[:, :excitatory], p["e"], at["e"])
        g_i = 0.9 * state["g_i"] + ops.sparse(z[:, excitatory:], p["i"], at["i"])
        v = v + 0.05 * (-v + g_e * (4 - v) - g_i * (1 + v) + ops.each(p["gain"]) * _channels(x, n)) - z
        return {"v": v, "g_e": g_e, "g_i": g_i}, _populations(spike(v - 1))

    hidden = {k: jnp.zeros((batch, n), F32) for k in ("v", "g_e", "g_i")}
    synapses = sum(len(c.pre) for c in at.values())
    return Workload(step, params, hidden, spikes((batch, CHANNELS), 0.1, OUTPUTS), batch, synapses)


def sparse_lif(batch: int, neurons: int = 131_072, synapses: int = 1_048_576) -> Workload:
    """v' = 0.9 v + R z + G x − z, z = Θ(v − 1), with R sparse."""
    at = connections("r", neurons, neurons, synapses, seed=0)
    values = np.random.RandomState(1).randn(synapses) * (neurons / synapses) ** 0.5
    params = {"r": jnp.asarray(values, F32), "gain": jnp.full(neurons, 2.0, F32)}

    def step(ops: Ops, p: Tree, state: Tree, x: Array) -> tuple[Tree, Array]:
        v, z = state["v"], spike(state["v"] - 1)
        v = 0.9 * v + ops.sparse(z, p["r"], at) + ops.each(p["gain"]) * _channels(x, neurons) - z
        return {"v": v}, _populations(spike(v - 1))

    hidden = {"v": jnp.zeros((batch, neurons), F32)}
    return Workload(step, params, hidden, spikes((batch, CHANNELS), 0.1, OUTPUTS), batch, synapses)
