"""Arrays that functions close over, and operations that can be differentiated and not much else."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import linear_call
from jax.scipy.linalg import expm

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal

family = Family("closures")


@family({"w": EXACT})
def jitted_step(draw):
    """The whole step is jitted and closes over an array."""
    scale = np.arange(1.0, H + 1)

    @jax.jit
    def step(params, h, x):
        h = 0.9 * h + scale * (x @ params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def nested_helpers(draw):
    """A jitted helper inside a branch inside a jitted helper, each with an array of its own."""
    inner, outer = np.linspace(0.5, 1.0, H), jnp.linspace(1.0, 2.0, H)
    gain = jax.jit(lambda y: inner * y)
    choose = jax.jit(lambda y: outer * lax.cond(y.sum() > 0, gain, jnp.tanh, y))

    def step(params, h, x):
        h = 0.9 * h + choose(x @ params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(H), inputs(normal(I))


@family({"w": EXACT, "a": EXACT})
def matrix_exponential(draw):
    """`expm` of a parameter, which holds constants of its own inside `jit`, as part of a weight expression."""

    def step(params, h, x):
        h = 0.9 * h + x @ (params["w"] @ expm(params["a"]))
        return h, h

    return step, {"w": draw(I, H), "a": draw(H, H, scale=0.1)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def callback_on_an_input(draw):
    def step(params, h, x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        h = 0.9 * h + jax.pure_callback(lambda a: 2 * np.asarray(a), shape, x) @ params["w"]
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED}, linear=False)
def callback_as_derivative(draw):
    """A rule whose adjoint is a callback: nothing can be proved about it."""
    twice = jax.custom_vjp(lambda a: 2 * a)

    def back(_, g):
        return (jax.pure_callback(lambda a: 2 * np.asarray(a), jax.ShapeDtypeStruct(g.shape, g.dtype), g),)

    twice.defvjp(lambda a: (2 * a, None), back)

    def step(params, h, x):
        h = twice(0.4 * h + x @ params["w"])
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def linear_function_with_its_transpose(draw):
    def step(params, h, x):
        h = linear_call(lambda r, a: a * r, lambda r, a: a * r, 0.9, h) + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "v": EXACT})
def barrier(draw):
    """An optimisation barrier of several values."""

    def step(params, h, x):
        y, h, z = lax.optimization_barrier((x @ params["w"], h, x @ params["v"]))
        h = 0.9 * h + y * jax.nn.sigmoid(z)
        return h, h

    return step, {"w": draw(I, H), "v": draw(I, H)}, draw(B, H), inputs(normal(B, I))
