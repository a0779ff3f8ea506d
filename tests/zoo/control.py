"""Control flow and function transformations inside the step."""

import jax
import jax.numpy as jnp
from jax import lax

from .model import EXACT, REPORTED, B, Family, H, I, coins, inputs, normal, tokens
from .surrogate import spike_jvp, spike_straight_through, spike_vjp

family = Family("control")


@family({"w": EXACT, "u": EXACT})
def cond(draw):
    """A branch chosen by a flag in the data, each with its own weight."""

    def step(params, h, x, flag):
        y = lax.cond(flag, lambda: jnp.tanh(x @ params["w"]), lambda: 0.5 * (x @ params["u"]))
        h = 0.9 * h + y
        return h, h

    return step, {"w": draw(I, H), "u": draw(I, H)}, draw(B, H), inputs(normal(B, I), coins())


@family({"w": EXACT})
def cond_whole_step(draw):
    """A branch that updates the state or leaves it; chosen by what the data is; one sample."""

    def step(params, h, x):
        h = lax.cond(x.sum() > 0, lambda h: 0.9 * h + x @ params["w"], lambda h: h, h)
        return h, h

    return step, {"w": draw(I, H)}, draw(H), inputs(normal(I))


@family({"w": EXACT, "b": EXACT, "leak": EXACT})
def cond_of_equal_branches(draw):
    """JAX gives on what all branches return, and leaves an equation without results; a print is another one.

    They stand beside a diagonal matrix, whose zeros are looked for.
    """

    def step(params, h, x):
        w, b = lax.cond(x.sum() > 0, lambda: (params["w"], params["b"]), lambda: (params["w"], params["b"]))
        jax.debug.callback(lambda total: None, h.sum())
        h = h @ jnp.diag(jax.nn.sigmoid(params["leak"])) + x @ w + b
        return h, h

    return step, {"w": draw(I, H), "b": draw(H), "leak": draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "b": EXACT})
def switch(draw):
    """One of three branches."""

    def step(params, h, x, which):
        branches = [jnp.tanh, jax.nn.relu, lambda y: 0.5 * y]
        h = 0.9 * h + lax.switch(which, branches, x @ params["w"]) + params["b"]
        return h, h

    return step, {"w": draw(I, H), "b": draw(H)}, draw(B, H), inputs(normal(B, I), tokens(3))


@family({"w": EXACT})
def scan_4(draw):
    """Four sub-steps, each with its own input and the weight inside."""

    def step(params, h, xs):
        def substep(h, x):
            h = h + 0.25 * (jnp.tanh(x @ params["w"]) - h)
            return h, None

        h, _ = lax.scan(substep, h, xs)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(4, B, I))


@family({"w": EXACT, "a": EXACT})
def scan_40(draw):
    """Forty sub-steps of an Euler method with weight and leak inside."""

    def step(params, h, x):
        def substep(h, _):
            h = h + 0.025 * (jnp.tanh(x @ params["w"]) - jax.nn.softplus(params["a"]) * h)
            return h, h

        h, path = lax.scan(substep, h, None, length=40)
        return h, path.mean(axis=0)

    return step, {"w": draw(I, H), "a": draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "r": REPORTED})
def scan_recurrent(draw):
    """Four sub-steps with a dense recurrent weight inside."""

    def step(params, h, x):
        def substep(h, _):
            return h + 0.25 * (jnp.tanh(x @ params["w"] + h @ params["r"]) - h), None

        h, _ = lax.scan(substep, h, None, length=4)
        return h, h

    return step, {"w": draw(I, H), "r": draw(H, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def fori_loop(draw):
    """Three sub-steps by fori_loop."""

    def step(params, h, x):
        h = lax.fori_loop(0, 3, lambda _, h: h + 0.3 * (jnp.tanh(x @ params["w"]) - h), h)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def while_loop(draw):
    """A loop of unknown length that touches integers only: how often can n be halved?"""

    def step(params, h, x, n):
        _, count = lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] // 2, s[1] + 1), (n, jnp.asarray(1, jnp.int32)))
        h = 0.9 * h + x @ params["w"] / count
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I), tokens(20))


@family({"w": EXACT, "b": EXACT})
def nested_jit(draw):
    """jit within jit, the weight op in the inner one."""
    dense = jax.jit(lambda w, b, x: x @ w + b)

    @jax.jit
    def layer(params, x):
        return jnp.tanh(dense(params["w"], params["b"], x))

    def step(params, h, x):
        h = 0.9 * h + layer(params, x)
        return h, h

    return step, {"w": draw(I, H), "b": draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def checkpoint(draw):
    """jax.checkpoint around the weight op."""
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))

    def step(params, h, x):
        h = 0.9 * h + layer(params["w"], x)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


def spiking(spike, draw):
    def step(params, v, x):
        v = 0.9 * v + x @ params["w"] + params["b"]
        z = spike(v - 1.0)
        return v - z, z

    params = {"w": draw(I, H, scale=1.0), "b": draw(H, scale=0.2)}
    return step, params, draw.uniform(0, 1, B, H), inputs(normal(B, I))


@family({"w": EXACT, "b": EXACT}, spikes=lambda output: output)
def custom_jvp(draw):
    """A surrogate spike by custom_jvp."""
    return spiking(spike_jvp, draw)


@family({"w": EXACT, "b": EXACT}, spikes=lambda output: output)
def custom_vjp(draw):
    """A surrogate spike by custom_vjp."""
    return spiking(spike_vjp, draw)


@family({"w": EXACT, "b": EXACT}, spikes=jnp.round)
def straight_through(draw):
    """A surrogate spike by stop_gradient."""
    return spiking(spike_straight_through, draw)


@family({"w": EXACT})
def vmap_sum(draw):
    """vmap of the op over branches with their own weights, then a sum over the branches."""

    def step(params, h, x):
        branches = jax.vmap(lambda w, x: jnp.tanh(x @ w), in_axes=(0, 1))(params["w"], x)
        h = 0.9 * h + branches.sum(axis=0)
        return h, h

    return step, {"w": draw(2, I, H)}, draw(B, H), inputs(normal(B, 2, I))
