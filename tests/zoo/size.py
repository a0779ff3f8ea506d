"""Very small, very many, and nothing at all."""

import jax.numpy as jnp

from .model import EXACT, UNUSED, B, Family, H, I, inputs, normal

family = Family("size")


@family({"w": EXACT, "b": EXACT})
def one_unit(draw):
    """A hidden size of one."""

    def step(params, h, x):
        h = 0.9 * h + jnp.tanh(x @ params["w"] + params["b"])
        return h, h

    return step, {"w": draw(I, 1), "b": draw(1)}, draw(B, 1), inputs(normal(B, I))


@family({"w": EXACT, "a": EXACT})
def one_number(draw):
    """A state that is one number, without axes."""

    def step(params, h, x):
        h = params["a"] * h + jnp.tanh(params["w"] * x)
        return h, h

    return step, {"w": draw.uniform(0.5, 1.5), "a": draw.uniform(0.7, 0.9)}, draw(), inputs(normal())


@family({"w1": EXACT, "b1": EXACT, "w2": EXACT})
def no_hidden(draw):
    """A network without memory."""

    def step(params, hidden, x):
        return hidden, jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]

    return step, {"w1": draw(I, H), "b1": draw(H), "w2": draw(H, 2)}, {}, inputs(normal(B, I))


@family({(n, name): EXACT for n in range(100) for name in ("w", "b")})
def two_hundred(draw):
    """Two hundred parameters: a hundred small layers side by side."""

    def step(params, h, x):
        h = 0.9 * h + 0.1 * sum(jnp.tanh(x @ layer["w"] + layer["b"]) for layer in params)
        return h, h

    params = [{"w": draw(3, 2), "b": draw(2)} for _ in range(100)]
    return step, params, draw(4, 2), inputs(normal(4, 3))


@family({"w": EXACT, "u": UNUSED})
def nobody_uses(draw):
    """A parameter nobody uses."""

    def step(params, h, x):
        h = 0.9 * h + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H), "u": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "u": UNUSED})
def dead_code(draw):
    """A parameter in a result that is thrown away."""

    def step(params, h, x):
        monitor = x @ params["u"]
        _ = monitor.sum() + h.sum()
        h = 0.9 * h + x @ params["w"]
        return h, h

    return step, {"w": draw(I, H), "u": draw(I, 2)}, draw(B, H), inputs(normal(B, I))
