"""What the loss reads: more than the new state."""

import jax.numpy as jnp

from .model import EXACT, B, Family, H, I, inputs, normal
from .surrogate import spike_jvp, spike_vjp

family = Family("reads")


@family({"w": EXACT})
def skip(draw):
    """A skip path from y to the output."""

    def step(params, h, x):
        y = x @ params["w"]
        h = 0.9 * h + y
        return h, jnp.tanh(h) + 0.5 * y

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def two_outputs(draw):
    """State and input current both in the output, as a dictionary."""

    def step(params, h, x):
        current = x @ params["w"]
        h = 0.9 * h + jnp.tanh(current)
        return h, {"state": h, "current": current}

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT}, spikes=lambda output: output)
def soft_reset(draw):
    """Spikes read before a reset by subtraction."""

    def step(params, v, x):
        v = 0.9 * v + x @ params["w"]
        z = spike_jvp(v - 1.0)
        return v - z, z

    return step, {"w": draw(I, H, scale=1.0)}, draw.uniform(0, 1, B, H), inputs(normal(B, I))


@family({"w": EXACT}, spikes=lambda output: output)
def hard_reset(draw):
    """Spikes read before a reset to zero, by a product."""

    def step(params, v, x):
        v = 0.9 * v + x @ params["w"]
        z = spike_vjp(v - 1.0)
        return v * (1 - z), z

    return step, {"w": draw(I, H, scale=1.0)}, draw.uniform(0, 1, B, H), inputs(normal(B, I))


@family({"w": EXACT}, spikes=lambda output: output)
def hard_reset_where(draw):
    """Spikes read before a reset to zero, by where."""

    def step(params, v, x):
        v = 0.9 * v + x @ params["w"]
        z = spike_vjp(v - 1.0)
        return jnp.where(z > 0, 0.0, v), z

    return step, {"w": draw(I, H, scale=1.0)}, draw.uniform(0, 1, B, H), inputs(normal(B, I))


@family({"w": EXACT})
def assigned_twice(draw):
    """The state is assigned twice and read in between."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        output = jnp.tanh(h)
        h = h / (1 + h * h)
        return h, output

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def old_state(draw):
    """The output reads the state from before the step, and the new state forgets the old one."""

    def step(params, h, x):
        return jnp.tanh(x @ params["w"]), h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))
