"""Who reads a state, and what happens to gradients on their way back to it."""

import jax
import jax.numpy as jnp
from jax import lax

from .model import EXACT, REPORTED, UNUSED, B, Family, H, I, inputs, normal

family = Family("readers")
LIMIT = 0.01


@jax.custom_vjp
def clip_gradient(a):
    return a


clip_gradient.defvjp(lambda a: (a, None), lambda _, g: (jnp.clip(g, -LIMIT, LIMIT),))


@family({"w": EXACT, "v": UNUSED})
def monitor(draw):
    """A state that nobody reads, that reads a live one and has a weight of its own."""

    def step(params, s, x):
        h = 0.9 * s["h"] + x @ params["w"]
        return {"h": h, "d": 0.5 * s["d"] + h + x @ params["v"]}, h

    return step, {"w": draw(I, H), "v": draw(I, H)}, {"h": draw(B, H), "d": draw(B, H)}, inputs(normal(B, I))


@family({"w": EXACT})
def read_in_the_step_only(draw):
    """A state that is stored and never read again, from whose new value a live one is made."""

    def step(params, s, x):
        c = 0.9 * s["h"] + x @ params["w"]
        h = jnp.tanh(c)
        return {"c": c, "h": h}, h

    return step, {"w": draw(I, H)}, {"c": draw(B, H), "h": draw(B, H)}, inputs(normal(B, I))


@family({"w": EXACT})
def written_and_never_read(draw):
    """A state that nobody reads, in one group with a constant that is read."""

    def step(params, s, x):
        h = s["b"] * (x @ params["w"])
        return {"h": h, "b": s["b"]}, h

    return step, {"w": draw(I, H)}, {"h": draw(B, H), "b": draw(B, H)}, inputs(normal(B, I))


@family({"w": EXACT, "o": EXACT})
def clipped_output(draw):
    """The gradient of the loss is clipped before it reaches the state: the window differentiates that itself."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, clip_gradient(h @ params["o"])

    return step, {"w": draw(I, H), "o": draw(H, 2)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED}, linear=False)
def clipped_in_the_step(draw):
    def step(params, h, x):
        h = 0.9 * h + clip_gradient(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED}, linear=False)
def clipped_state(draw):
    def step(params, h, x):
        h = clip_gradient(0.9 * h + x @ params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED}, linear=False)
def rounded(draw):
    """Gradients are rounded on their way back."""

    def step(params, h, x):
        h = 0.9 * h + lax.reduce_precision(x @ params["w"], 5, 4)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED}, linear=False, tol=1e-3)  # its gradient is summed in float16, in another order than BPTT's
def narrow_op(draw):
    """The state is float64, the op that drives it float16."""

    def step(params, h, x):
        y = x.astype(jnp.float16) @ params["w"].astype(jnp.float16)
        h = 0.9 * h + y.astype(h.dtype)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "o": EXACT})
def rounded_output(draw):
    """Rounded between state and loss: nothing that comes from a later step is."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, lax.reduce_precision(h @ params["o"], 5, 4)

    return step, {"w": draw(I, H), "o": draw(H, 2)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED}, linear=False)
def clipped_weight(draw):
    """A rule that is not linear between parameter and weight: each step's gradient passes it by itself."""

    def step(params, h, x):
        h = 0.9 * h + x @ clip_gradient(params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def straight_through_weight(draw):
    """Weights rounded to signs, with a derivative rule that is linear."""
    signs = jax.custom_vjp(jnp.sign)
    signs.defvjp(lambda w: (jnp.sign(w), None), lambda _, g: (g,))

    def step(params, h, x):
        h = 0.9 * h + x @ signs(params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))
