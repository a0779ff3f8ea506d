"""Weights behind other weights."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal

family = Family("depth")


@family({("lower", "w"): EXACT, ("lower", "b"): EXACT, ("upper", "w"): EXACT, ("upper", "b"): EXACT, "out": EXACT})
def two_layers(draw):
    """Two diagonal layers: the lower one's weights also reach the upper state, one hop away through its weight."""

    def step(params, hidden, x):
        h1, h2 = hidden
        h1 = 0.9 * h1 + x @ params["lower"]["w"] + params["lower"]["b"]
        h2 = 0.8 * h2 + jnp.tanh(h1) @ params["upper"]["w"] + params["upper"]["b"]
        return (h1, h2), h2 @ params["out"]

    lower, upper = {"w": draw(I, H), "b": draw(H)}, {"w": draw(H, 7), "b": draw(7)}
    params = {"lower": lower, "upper": upper, "out": draw(7, 2)}
    return step, params, (draw(B, H), draw(B, 7)), inputs(normal(B, I))


@family({(0, "w"): EXACT, (1, "w"): EXACT})
def two_layers_delayed(draw):
    """Two diagonal layers of equal width; the upper one reads the old state of the lower one."""

    def step(params, hidden, x):
        h1, h2 = hidden
        new1 = 0.9 * h1 + x @ params[0]["w"]
        new2 = 0.8 * h2 + jnp.tanh(h1) @ params[1]["w"]
        return [new1, new2], jnp.tanh(new2)

    return step, [{"w": draw(I, H)}, {"w": draw(H, H)}], [draw(B, H), draw(B, H)], inputs(normal(B, I))


def many_units(draw, leaks):
    """A layer under 30 leaky units with these constant leaks."""

    def step(params, hidden, x):
        h1, h2 = hidden
        h1 = 0.9 * h1 + jnp.tanh(x @ params["lower"])
        h2 = leaks * h2 + (1 - leaks) * (jnp.sin(h1) @ params["upper"])
        return (h1, h2), h2

    return step, {"lower": draw(I, H), "upper": draw(H, 30)}, (draw(B, H), draw(B, 30)), inputs(normal(B, I))


@family({"lower": REPORTED, "upper": EXACT})
def many_constant_leaks(draw):
    """More different leaks than are carried one by one: few of them stand for all."""
    return many_units(draw, np.linspace(0.2, 0.9, 30))


@family({"lower": EXACT, "upper": EXACT})
def many_units_of_few_leaks(draw):
    """More units than are carried one by one, with few different leaks, of which one is negative."""
    return many_units(draw, np.resize([0.9, 0.5, -0.3], 30))


@family({(0, "w"): REPORTED, (1, "w"): EXACT, (2, "w"): EXACT})
def three_layers(draw):
    """Three diagonal layers, written as a loop."""

    def step(params, hidden, x):
        new = []
        for layer, h in zip(params, hidden, strict=True):
            x = 0.9 * h + jnp.tanh(x @ layer["w"])
            new.append(x)
        return new, x

    sizes = [I, H, 6, 2]
    params = [{"w": draw(m, n)} for m, n in pairwise(sizes)]
    return step, params, [draw(B, n) for n in sizes[1:]], inputs(normal(B, I))


@family({"w1": EXACT, "b1": EXACT, "w2": EXACT, "b2": EXACT})
def mlp_encoder(draw):
    """A hidden layer without memory before the state."""

    def step(params, h, x):
        z = jnp.tanh(x @ params["w1"] + params["b1"])
        h = 0.9 * h + z @ params["w2"] + params["b2"]
        return h, h

    params = {"w1": draw(I, 6), "b1": draw(6), "w2": draw(6, H), "b2": draw(H)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "c1": EXACT, "d1": EXACT, "c2": EXACT})
def mlp_decoder(draw):
    """A hidden layer without memory after the state."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, jnp.tanh(h @ params["c1"] + params["d1"]) @ params["c2"]

    params = {"w": draw(I, H), "c1": draw(H, 6), "d1": draw(6), "c2": draw(6, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "up": REPORTED, "down": REPORTED, "out": EXACT})
def top_down(draw):
    """The upper layer feeds back into the lower one."""

    def step(params, hidden, x):
        low, high = hidden["low"], hidden["high"]
        low = 0.9 * low + jnp.tanh(x @ params["w"] + high @ params["down"])
        high = 0.8 * high + jnp.tanh(low @ params["up"])
        return {"low": low, "high": high}, high @ params["out"]

    params = {"w": draw(I, H), "up": draw(H, 6), "down": draw(6, H), "out": draw(6, 2)}
    return step, params, {"low": draw(B, H), "high": draw(B, 6)}, inputs(normal(B, I))


@family({"w": EXACT, "u": EXACT, "out": EXACT})
def side_by_side(draw):
    """Two layers that both read the input and meet in the readout only."""

    def step(params, hidden, x):
        h, g = hidden
        h = 0.9 * h + x @ params["w"]
        g = 0.7 * g + jnp.tanh(x @ params["u"])
        return (h, g), jnp.concatenate([h, g], axis=-1) @ params["out"]

    params = {"w": draw(I, H), "u": draw(I, 2), "out": draw(H + 2, 6)}
    return step, params, (draw(B, H), draw(B, 2)), inputs(normal(B, I))
