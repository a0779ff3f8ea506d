"""Layers that read the old state below, and delays between layers: short windows hold no path to the lower ones.

Few units above have a leak each, so that a hop carries what the lower layer does; the lowest of three layers has none.
"""

import jax
import jax.numpy as jnp

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal

family = Family("delays")
OUT = 2
LEAKS = jnp.array([0.5, 0.8])


def _weights(draw):
    return {"w": draw(I, H), "out": draw(H, OUT)}


@family({"w": EXACT, "out": EXACT})
def old_state_below(draw):
    """The upper layer and the output both read the step before."""

    def step(p, s, x):
        a, b = s
        return (0.9 * a + x @ p["w"], LEAKS * b + jnp.tanh(a) @ p["out"]), b

    return step, _weights(draw), (draw(B, H), draw(B, OUT)), inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT})
def old_state_below_new_output(draw):
    """A near miss: the output reads the new state, so that windows of one step give credit."""

    def step(p, s, x):
        a, b = s
        b = LEAKS * b + jnp.tanh(a) @ p["out"]
        return (0.9 * a + x @ p["w"], b), b

    return step, _weights(draw), (draw(B, H), draw(B, OUT)), inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT})
def old_state_below_one_leak(draw):
    """A near miss: with one leak for all units of the upper layer a hop carries the lower one."""

    def step(p, s, x):
        a, b = s
        return (0.9 * a + x @ p["w"], 0.8 * b + jnp.tanh(a) @ p["out"]), b

    return step, _weights(draw), (draw(B, H), draw(B, OUT)), inputs(normal(B, I))


@family({(0,): REPORTED, (1,): EXACT, (2,): EXACT})
def three_layers(draw):
    """Each reads the old state below."""
    leaks = [draw.uniform(0.3, 0.9, H) for _ in range(3)]

    def step(p, s, x):
        below = [x, *(jnp.tanh(h) for h in s)]
        return [d * h + z @ w for d, h, z, w in zip(leaks, s, below, p, strict=False)], s[-1]

    return step, [draw(I, H), draw(H, H), draw(H, H)], [draw(B, H) for _ in range(3)], inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT})
def axonal_delay(draw):
    """Spikes arrive two steps later, by a line that is rolled."""

    def step(p, s, x):
        a, line, b = s
        late = line[-1] @ p["out"]
        return (0.9 * a + x @ p["w"], jnp.roll(line, 1, 0).at[0].set(jnp.tanh(a)), LEAKS * b + late), b

    return step, _weights(draw), (draw(B, H), draw(2, B, H), draw(B, OUT)), inputs(normal(B, I))


@family({"w": EXACT, "out": EXACT})
def synaptic_delay(draw):
    """Currents arrive two steps later: the line holds what comes out of the weights."""

    def step(p, s, x):
        a, line, b = s
        line = jnp.concatenate([(jnp.tanh(a) @ p["out"])[None], line])
        return (0.9 * a + x @ p["w"], line[:-1], LEAKS * b + line[-1]), b

    return step, _weights(draw), (draw(B, H), draw(2, B, OUT), draw(B, OUT)), inputs(normal(B, I))


@family({"w": EXACT, "g": EXACT})
def line_before_the_output(draw):
    """A near miss: a delay that is carried position by position."""

    def step(p, s, x):
        a, line = s
        a = 0.9 * a + x @ p["w"]
        return (a, jnp.concatenate([(jnp.tanh(a) * p["g"])[None], line[:-1]])), line[-1]

    return step, {"w": draw(I, H), "g": draw(H)}, (draw(B, H), draw(3, B, H)), inputs(normal(B, I))


@family({"w": EXACT, "g": EXACT})
def line_of_one_step(draw):
    """A line of one step has one more axis than the state it shows."""

    def step(p, s, x):
        h = 0.9 * s["h"] + x @ p["w"]
        return {"h": h, "line": (jnp.tanh(h) * jax.nn.sigmoid(x @ p["g"]))[None]}, s["line"][-1]

    states = {"h": draw(B, H), "line": draw(1, B, H)}
    return step, {"w": draw(I, H), "g": draw(I, H)}, states, inputs(normal(B, I))
