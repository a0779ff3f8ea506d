"""Weight expressions: what a model does to its parameters before they meet the data."""

import jax
import jax.numpy as jnp

from .model import EXACT, UNUSED, B, Family, H, I, inputs, normal

family = Family("weights")


def leaky(weight):
    """h' = 0.9 h + x @ weight(params), the new state as output."""

    def step(params, h, x):
        h = 0.9 * h + x @ weight(params)
        return h, h

    return step


@family({"w": EXACT})
def matmul(draw):
    """x @ w"""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({(): EXACT})
def bare_array(draw):
    """x @ w, where the only parameter is a bare array."""
    return leaky(lambda w: w), draw(I, H), draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def transposed(draw):
    """x @ w.T"""
    return leaky(lambda p: p["w"].T), {"w": draw(H, I)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def absolute(draw):
    """x @ abs(w): excitatory weights."""
    return leaky(lambda p: jnp.abs(p["w"])), {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def softplus(draw):
    """x @ softplus(w)"""
    return leaky(lambda p: jax.nn.softplus(p["w"])), {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def masked(draw):
    """x @ (w * mask)"""
    mask = draw.uniform(0, 1, I, H) < 0.6
    return leaky(lambda p: p["w"] * mask), {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def doubled(draw):
    """x @ (2 * w)"""
    return leaky(lambda p: 2 * p["w"]), {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w1": EXACT, "w2": EXACT})
def summed(draw):
    """x @ (w1 + w2)"""
    params = {"w1": draw(I, H), "w2": draw(I, H)}
    return leaky(lambda p: p["w1"] + p["w2"]), params, draw(B, H), inputs(normal(B, I))


@family({"w": UNUSED})
def stopped(draw):
    """x @ stop_gradient(w): a zero gradient is right."""
    return leaky(lambda p: jax.lax.stop_gradient(p["w"])), {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"frozen": UNUSED, "w": EXACT})
def stopped_beside(draw):
    """x @ (stop_gradient(frozen) + w)"""
    params = {"frozen": draw(I, H), "w": draw(I, H)}
    return leaky(lambda p: jax.lax.stop_gradient(p["frozen"]) + p["w"]), params, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT}, tol=2e-2)
def stored_bfloat16(draw):
    """A weight stored in bfloat16 and cast to float64; its gradient is bfloat16 too, so judge it loosely."""
    params = {"w": draw(I, H).astype(jnp.bfloat16)}
    return leaky(lambda p: p["w"].astype(float)), params, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def two_ops(draw):
    """One weight in two matmuls on different data."""

    def step(params, h, x, z):
        h = 0.9 * h + jnp.tanh(x @ params["w"]) * jax.nn.sigmoid(z @ params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I), normal(B, I))


@family({"w": EXACT})
def sliced(draw):
    """Two slices of one big weight, and a part of it that nobody reads."""

    def step(params, h, x):
        w = params["w"]
        h = 0.9 * h + jnp.tanh(x @ w[:, :H]) * jax.nn.sigmoid(x @ w[:, H : 2 * H])
        return h, h

    return step, {"w": draw(I, 2 * H + 3)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def stacked(draw):
    """Two weights stored as one stack."""

    def step(params, h, x, z):
        h = 0.9 * h + x @ params["w"][0] + jnp.tanh(z @ params["w"][1])
        return h, h

    return step, {"w": draw(2, I, H)}, draw(B, H), inputs(normal(B, I), normal(B, I))


@family({"w": EXACT})
def normalised(draw):
    """x @ (w / |w|), the columns of unit length."""
    normalise = lambda p: p["w"] / jnp.linalg.norm(p["w"], axis=0)
    return leaky(normalise), {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"v": EXACT, "g": EXACT})
def weight_norm(draw):
    """x @ (g * v / |v|), length and direction learnt apart."""
    weight = lambda p: p["g"] * p["v"] / jnp.linalg.norm(p["v"], axis=0)
    return leaky(weight), {"v": draw(I, H), "g": draw.uniform(0.5, 1.5, H)}, draw(B, H), inputs(normal(B, I))


@family({"left": EXACT, "right": EXACT})
def concatenated(draw):
    """x @ concatenate([left, right])"""
    join = lambda p: jnp.concatenate([p["left"], p["right"]], axis=1)
    return leaky(join), {"left": draw(I, 2), "right": draw(I, H - 2)}, draw(B, H), inputs(normal(B, I))


@family({"down": EXACT, "up": EXACT})
def factored(draw):
    """x @ (down @ up): both factors are weights before they meet the data."""
    params = {"down": draw(I, 2, scale=1.0), "up": draw(2, H, scale=1.0)}
    return leaky(lambda p: p["down"] @ p["up"]), params, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def tied(draw):
    """The weight that feeds the state also reads it out."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, h @ params["w"].T

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))
