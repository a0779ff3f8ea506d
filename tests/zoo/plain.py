"""Plain parameters: biases, gains, leaks and readouts."""

import jax
import jax.numpy as jnp

from .model import EXACT, B, Family, H, I, inputs, normal
from .surrogate import spike_vjp

family = Family("plain")


@family({"w": EXACT, "b": EXACT})
def bias(draw):
    """x @ w + b"""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"] + params["b"]
        return h, h

    return step, {"w": draw(I, H), "b": draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "u": EXACT})
def two_inputs(draw):
    """An input weight beside another."""

    def step(params, h, x, z):
        h = 0.9 * h + x @ params["w"] + z @ params["u"]
        return h, h

    return step, {"w": draw(I, H), "u": draw(2, H)}, draw(B, H), inputs(normal(B, I), normal(B, 2))


@family({"w": EXACT, "a": EXACT})
def leak(draw):
    """sigmoid(a) * h, one leak per unit."""

    def step(params, h, x):
        h = jax.nn.sigmoid(params["a"]) * h + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H), "a": 1 + draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "a": EXACT})
def leak_scalar(draw):
    """sigmoid(a) * h, one leak for all units."""

    def step(params, h, x):
        h = jax.nn.sigmoid(params["a"]) * h + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H), "a": 1 + draw()}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "tau": EXACT})
def time_constant(draw):
    """A convex mix of old and new by exp(-1 / tau)."""

    def step(params, h, x):
        decay = jnp.exp(-1.0 / params["tau"])
        h = decay * h + (1 - decay) * jnp.tanh(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "tau": draw.uniform(2, 6, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "g": EXACT})
def scalar_gain(draw):
    """g * (x @ w) with one number g."""

    def step(params, h, x):
        h = 0.9 * h + params["g"] * (x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "g": draw.uniform(0.5, 1.5)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "threshold": EXACT}, spikes=lambda output: output)
def threshold(draw):
    """A firing threshold per neuron, also the size of its reset."""

    def step(params, v, x):
        v = 0.9 * v + x @ params["w"]
        z = spike_vjp(v - params["threshold"])
        return v - z * params["threshold"], z

    params = {"w": draw(I, H, scale=1.0), "threshold": draw.uniform(0.5, 1.0, H)}
    return step, params, draw.uniform(0, 1, B, H), inputs(normal(B, I))


@family({("cell", "w"): EXACT, ("readout", "w"): EXACT, ("readout", "b"): EXACT})
def readout(draw):
    """Parameters on the output only."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["cell"]["w"]
        return h, jnp.tanh(h) @ params["readout"]["w"] + params["readout"]["b"]

    params = {"cell": {"w": draw(I, H)}, "readout": {"w": draw(H, 2), "b": draw(2)}}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"out": EXACT})
def reservoir(draw):
    """A fixed dense recurrent network: only its readout is learnt, and that reaches no state."""
    w, r = draw(I, H), draw(H, H, scale=0.3)

    def step(params, h, x):
        h = jnp.tanh(x @ w + h @ r)
        return h, h @ params["out"]

    return step, {"out": draw(H, 2)}, draw(B, H), inputs(normal(B, I))
