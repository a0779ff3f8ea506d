"""Weights chosen by data."""

import jax
import jax.numpy as jnp

from .model import EXACT, B, Family, H, I, inputs, normal, tokens

family = Family("chosen")


@family({"w": EXACT})
def matrix_for_a_sample(draw):
    """One sample: each element of the matrix that was chosen reaches one neuron."""

    def step(params, h, x, i):
        h = 0.9 * h + x @ params["w"][i]
        return h, h

    return step, {"w": draw(3, I, H)}, draw(H), inputs(normal(I), tokens(3))


@family({"w": EXACT})
def matrix_for_a_batch(draw):
    """One matrix for all samples: an element of it reaches as many neurons as there are samples."""

    def step(params, h, x, i):
        h = 0.9 * h + x @ params["w"][i]
        return h, h

    return step, {"w": draw(3, I, H)}, draw(B, H), inputs(normal(B, I), tokens(3))


@family({"w": EXACT})
def expert_per_sample(draw):
    def step(params, h, x, i):
        h = 0.9 * h + jnp.einsum("bi,bio->bo", x, params["w"][i])
        return h, h

    return step, {"w": draw(3, I, H)}, draw(B, H), inputs(normal(B, I), tokens(3, B))


@family({"w": EXACT, "g": EXACT})
def soft_mixture(draw):
    """Experts weighted by a gate of their own, one for each neuron."""

    def step(params, h, x):
        experts = jnp.einsum("bi,eio->beo", x, params["w"])
        gate = jax.nn.sigmoid(jnp.einsum("bi,eio->beo", x, params["g"]))
        h = 0.9 * h + (gate * experts).sum(1)
        return h, h

    return step, {"w": draw(2, I, H), "g": draw(2, I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def row_per_sample(draw):
    def step(params, h, x, i):
        h = 0.9 * h + params["w"][i] * x[:, :1]
        return h, h

    return step, {"w": draw(3, H)}, draw(B, H), inputs(normal(B, I), tokens(3, B))
