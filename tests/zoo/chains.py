"""Chains of states within one step."""

import jax.numpy as jnp

from .model import EXACT, B, Family, H, I, inputs, normal
from .surrogate import spike_jvp, spike_vjp

family = Family("chains")


@family({"w": EXACT})
def synapse_membrane(draw):
    """A synapse g, then a membrane v from the new g."""

    def step(params, state, x):
        g = 0.8 * state["g"] + x @ params["w"]
        v = 0.9 * state["v"] + 0.5 * g
        return {"g": g, "v": v}, v

    return step, {"w": draw(I, H)}, {"g": draw(B, H), "v": draw(B, H)}, inputs(normal(B, I))


@family({"w": EXACT})
def membrane_synapse(draw):
    """The same with the membrane reading the old g."""

    def step(params, state, x):
        g, v = state
        return (0.8 * g + x @ params["w"], 0.9 * v + 0.5 * jnp.tanh(g)), v + g

    return step, {"w": draw(I, H)}, (draw(B, H), draw(B, H)), inputs(normal(B, I))


@family({"w": EXACT, "tau": EXACT}, spikes=lambda output: output)
def current_to_adaptation(draw):
    """Current, synapse, membrane and adaptation in a row, with a spike; the spikes are the output."""

    def step(params, state, x):
        current = 0.7 * state["current"] + x @ params["w"]
        g = 0.8 * state["g"] + 0.5 * current
        v = jnp.exp(-1.0 / params["tau"]) * state["v"] + g - 0.2 * state["a"]
        z = spike_vjp(v - 1.0)
        a = 0.95 * state["a"] + z
        return {"current": current, "g": g, "v": v - z, "a": a}, z

    params = {"w": draw(I, H, scale=1.0), "tau": draw.uniform(3, 9, H)}
    hidden = {name: draw.uniform(0, 1, B, H) for name in ("current", "g", "v", "a")}
    return step, params, hidden, inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT}, spikes=lambda output: output["z"])
def adaptive_threshold(draw):
    """A neuron with an adaptive threshold that keeps its last spike as a state, and a leaky readout of its spikes."""

    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"] - state["z"]
        a = 0.95 * state["a"] + 0.2 * state["z"]
        z = spike_jvp(v - 0.8 - a)
        return {"v": v, "a": a, "z": z}, {"z": z, "y": z @ params["out"]}

    params = {"w": draw(I, H, scale=1.0), "out": draw(H, 2)}
    hidden = {"v": draw(B, H), "a": draw.uniform(0, 0.5, B, H), "z": jnp.round(draw.uniform(0, 1, B, H))}
    return step, params, hidden, inputs(normal(B, I))
