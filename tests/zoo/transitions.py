"""Transitions in which a state element reaches others: what is carried is not the whole recurrence."""

import jax.numpy as jnp
from jax import lax

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal
from .tails import standardise

family = Family("transitions")


@family({"w": REPORTED, "r": REPORTED, "b": REPORTED, "out": EXACT})
def dense(draw):
    """A dense recurrent weight."""

    def step(params, h, x):
        h = 0.9 * h + jnp.tanh(x @ params["w"] + h @ params["r"] + params["b"])
        return h, h @ params["out"]

    params = {"w": draw(I, H), "r": draw(H, H), "b": draw(H), "out": draw(H, 2)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "out": EXACT})
def mean_field(draw):
    """Every unit feels the mean of all."""

    def step(params, h, x):
        h = 0.7 * h + 0.2 * h.mean(axis=-1, keepdims=True) + x @ params["w"]
        return h, h @ params["out"]

    return step, {"w": draw(I, H), "out": draw(H, 2)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "j": REPORTED})
def mean_field_learnt(draw):
    """The coupling to the mean is itself a parameter."""

    def step(params, h, x):
        h = 0.7 * h + params["j"] * jnp.tanh(h).mean(axis=-1, keepdims=True) + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H), "j": draw.uniform(0.2, 0.5)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "b": REPORTED})
def ring_diffusion(draw):
    """Every unit exchanges with its two neighbours on a ring."""

    def step(params, h, x):
        neighbours = jnp.roll(h, 1, axis=-1) + jnp.roll(h, -1, axis=-1)
        h = h + 0.2 * (neighbours - 2 * h) + x @ params["w"] + params["b"]
        return h, jnp.tanh(h)

    return step, {"w": draw(I, H), "b": draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "out": EXACT})
def fixed_matrix(draw):
    """A fixed recurrent matrix, as in a reservoir with learnt inputs."""
    matrix = 0.5 * jnp.eye(H) + draw(H, H, scale=0.2)

    def step(params, h, x):
        h = jnp.tanh(h @ matrix + x @ params["w"])
        return h, h @ params["out"]

    return step, {"w": draw(I, H), "out": draw(H, 2)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED})
def delay_line(draw):
    """Every unit hands its value to the next one."""

    def step(params, h, x):
        h = 0.9 * jnp.roll(h, 1, axis=-1) + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "scale": REPORTED, "shift": REPORTED})
def normalised_state(draw):
    """A LayerNorm of the state itself."""

    def step(params, h, x):
        h = params["scale"] * standardise(0.9 * h + x @ params["w"]) + params["shift"]
        return h, h

    params = {"w": draw(I, H), "scale": draw.uniform(0.5, 1.5, H), "shift": draw(H)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "k": REPORTED})
def convolution(draw):
    """A learnt kernel mixes neighbouring units."""

    def step(params, h, x):
        mixed = lax.conv_general_dilated(h[:, None, :], params["k"][None, None, :], (1,), "SAME")[:, 0, :]
        h = 0.8 * h + jnp.tanh(mixed + x @ params["w"])
        return h, h

    return step, {"w": draw(I, H), "k": draw(3)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "out": EXACT})
def winner_takes_all(draw):
    """Lateral inhibition by the total activity."""

    def step(params, h, x):
        activity = jnp.maximum(h, 0.0)
        h = 0.9 * h - 0.1 * (activity.sum(axis=-1, keepdims=True) - activity) + x @ params["w"]
        return h, h @ params["out"]

    return step, {"w": draw(I, H), "out": draw(H, 2)}, draw(B, H), inputs(normal(B, I))
