"""Dense weight ops and lookups."""

import jax.numpy as jnp

from .model import EXACT, B, Family, H, I, inputs, normal, tokens

family = Family("ops")

HEADS, WORDS = 2, 6


@family({"w": EXACT})
def embedding_index(draw):
    """w[tokens]"""

    def step(params, h, token):
        h = 0.9 * h + params["w"][token]
        return h, h

    return step, {"w": draw(WORDS, H)}, draw(B, H), inputs(tokens(WORDS, B))


@family({"w": EXACT})
def embedding_take(draw):
    """jnp.take(w, tokens)"""

    def step(params, h, token):
        h = 0.9 * h + jnp.tanh(jnp.take(params["w"], token, axis=0))
        return h, h

    return step, {"w": draw(WORDS, H)}, draw(B, H), inputs(tokens(WORDS, B))


@family({"w": EXACT})
def embedding_bag(draw):
    """The mean of several words' vectors."""

    def step(params, h, words):
        h = 0.9 * h + params["w"][words].mean(axis=1)
        return h, h

    return step, {"w": draw(WORDS, H)}, draw(B, H), inputs(tokens(WORDS, B, 2))


@family({"embedding": EXACT, "w": EXACT})
def embedding_projected(draw):
    """A lookup, then a matmul: the table lies behind another weight."""

    def step(params, h, token):
        h = 0.9 * h + params["embedding"][token] @ params["w"]
        return h, h

    return step, {"embedding": draw(WORDS, I), "w": draw(I, H)}, draw(B, H), inputs(tokens(WORDS, B))


@family({"w": EXACT})
def einsum_heads(draw):
    """One weight per head."""

    def step(params, h, x):
        h = 0.9 * h + jnp.einsum("bni,nih->bnh", x, params["w"])
        return h, h

    return step, {"w": draw(HEADS, I, H)}, draw(B, HEADS, H), inputs(normal(B, HEADS, I))


@family({"w": EXACT})
def einsum_shared(draw):
    """One weight shared along an axis of the state."""

    def step(params, h, x):
        h = 0.9 * h + jnp.einsum("bni,ih->bnh", x, params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, HEADS, H), inputs(normal(B, HEADS, I))


@family({"w": EXACT})
def einsum_summed_heads(draw):
    """One weight per head, summed over heads."""

    def step(params, h, x):
        h = 0.9 * h + jnp.einsum("bni,nih->bh", x, params["w"])
        return h, h

    return step, {"w": draw(HEADS, I, H)}, draw(B, H), inputs(normal(B, HEADS, I))


@family({"w": EXACT})
def batched_matmul(draw):
    """A stack of matrix products; the batch is the second axis."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, h

    return step, {"w": draw(HEADS, I, H)}, draw(HEADS, B, H), inputs(normal(HEADS, B, I))


@family({"w": EXACT})
def weight_first(draw):
    """w @ x with the batch last."""

    def step(params, h, x):
        h = 0.9 * h + params["w"] @ x
        return h, h

    return step, {"w": draw(H, I)}, draw(H, B), inputs(normal(I, B))


@family({"w": EXACT})
def elementwise(draw):
    """w * x: one weight per unit."""

    def step(params, h, x):
        h = 0.9 * h + params["w"] * x
        return h, h

    return step, {"w": draw(H)}, draw(B, H), inputs(normal(B, H))


@family({"w": EXACT, "u": EXACT})
def bilinear(draw):
    """The product of two projections."""

    def step(params, h, x, z):
        h = 0.9 * h + (x @ params["w"]) * (z @ params["u"])
        return h, h

    return step, {"w": draw(I, H), "u": draw(2, H)}, draw(B, H), inputs(normal(B, I), normal(B, 2))


@family({"B": EXACT, "A": EXACT})
def lora(draw):
    """A low-rank correction x @ B @ A of a fixed weight: B lies behind A."""
    fixed = draw(I, H)

    def step(params, h, x):
        h = 0.9 * h + x @ fixed + x @ params["B"] @ params["A"]
        return h, h

    return step, {"B": draw(I, 2), "A": draw(2, H)}, draw(B, H), inputs(normal(B, I))
