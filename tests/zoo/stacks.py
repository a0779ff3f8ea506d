"""Layers under leaky layers: exact where the upper leak is one, and near misses."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal
from .surrogate import spike_jvp, spike_vjp

family = Family("stacks")
OUT = 2


def lif(draw, reset, keep=0.8, feed=lambda z, params: z @ params["out"], **more):
    """A spiking layer and a readout that leaks."""

    def step(params, hidden, x):
        v, r = hidden
        v = 0.9 * v + x @ params["w"] - reset(spike_jvp(v - 0.5))
        r = (keep(params) if callable(keep) else keep) * r + feed(spike_jvp(v - 0.5), params)
        return (v, r), r

    params = {"w": draw(I, H), "out": draw(H, OUT)} | more
    return step, params, (draw(B, H), draw(B, OUT)), inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT})
def detached_reset(draw):
    """The leak is all that a membrane remembers by: its trace has no axis of neurons."""
    return lif(draw, lax.stop_gradient)


@family({"w": EXACT, "out": EXACT})
def plain_reset(draw):
    return lif(draw, lambda z: z)


@family({"w": EXACT, "out": EXACT, "leak": EXACT})
def learnable_readout_leak(draw):
    return lif(draw, lambda z: z, lambda params: jax.nn.sigmoid(params["leak"]), leak=draw())


@family({"w": EXACT, "out": EXACT, "threshold": EXACT, "decay": EXACT})
def alif_readout(draw):
    """Adaptive thresholds; spikes are a state, and thresholds and leaks of the layer learn."""

    def step(params, hidden, x):
        v, a, z, r = hidden
        v = jax.nn.sigmoid(params["decay"]) * v - 0.5 * z + x @ params["w"]
        a = 0.9 * a + 0.2 * z
        z = spike_vjp(v - a - params["threshold"])
        r = 0.7 * r + z @ params["out"]
        return (v, a, z, r), r

    params = {"w": draw(I, H), "out": draw(H, OUT), "threshold": draw(H), "decay": draw(H)}
    hidden = (draw(B, H), draw(B, H), jnp.zeros((B, H)), draw(B, OUT))
    return step, params, hidden, inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT, "leaks": EXACT})
def leak_of_each_output(draw):
    return lif(draw, lax.stop_gradient, lambda params: jax.nn.sigmoid(params["leaks"]), leaks=draw(OUT))


@family({"w": EXACT, "out": EXACT})
def one_leak_differs(draw):
    return lif(draw, lax.stop_gradient, np.array([0.8, 0.7]))


@family({"w": EXACT, "out": EXACT})
def readout_not_linear(draw):
    return lif(draw, lax.stop_gradient, feed=lambda z, params: jnp.tanh(z @ params["out"]))


@family({"w": REPORTED, "out": REPORTED, "back": REPORTED})
def readout_feeds_back(draw):
    def step(params, hidden, x):
        v, r = hidden
        v = 0.9 * v + x @ params["w"] + r @ params["back"]
        r = 0.8 * r + jnp.sin(v) @ params["out"]
        return (v, r), r

    params = {"w": draw(I, H), "out": draw(H, OUT), "back": draw(OUT, H)}
    return step, params, (draw(B, H), draw(B, OUT)), inputs(normal(B, I))


LAYER = {"nu": EXACT, "th": EXACT, "re": EXACT, "im": EXACT}


@family({(n, k): (REPORTED, EXACT)[n] for n in (0, 1) for k in LAYER} | {(0, "c"): REPORTED, (1, "c"): EXACT})
def two_lru_layers(draw):
    """Linear recurrent units: each position has a leak of its own, so the lower layer is not one hop away."""

    def step(params, hidden, x):
        new = []
        for p, h in zip(params, hidden, strict=True):
            h = jnp.exp(-jnp.exp(p["nu"]) + 1j * p["th"]) * h + x @ p["re"] + 1j * (x @ p["im"])
            new.append(h)
            x = jnp.tanh(h.real @ p["c"])
        return new, x

    params = [{"nu": draw(H), "th": draw(H), "re": draw(I, H), "im": draw(I, H), "c": draw(H, I)} for _ in range(2)]
    return step, params, [draw(B, H) + 0j for _ in params], inputs(normal(B, I))
