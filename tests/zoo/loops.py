"""Loops whose iterations each have a weight of their own: sliced by a scan, read by a counter, carried and changed."""

import jax.numpy as jnp
from jax import lax

from .model import EXACT, REPORTED, B, Family, H, I, inputs, normal

family = Family("loops")
N = 5  # as many iterations as the last axis has elements: a broadcast along the wrong axis passes the shape check


@family({"g": EXACT, "w": EXACT})
def scan_of_scalars(draw):
    def step(params, h, x):
        y = x @ params["w"]
        h, _ = lax.scan(lambda h, g: (0.9 * h + g * y, None), h, params["g"])
        return h, h

    return step, {"g": draw(N), "w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"g": EXACT, "w": EXACT})
def scan_of_rows(draw):
    def step(params, h, x):
        y = x @ params["w"]
        h, _ = lax.scan(lambda h, g: (0.9 * h + g * y, None), h, params["g"])
        return h, h

    return step, {"g": draw(3, H), "w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def scan_of_matrices(draw):
    def step(params, h, x):
        h, _ = lax.scan(lambda h, w: (0.9 * h + x @ w, None), h, params["w"], reverse=True)
        return h, h

    return step, {"w": draw(2, I, H)}, draw(B, H), inputs(normal(B, I))


@family({"g": EXACT, "w": EXACT})
def map_over_scalars(draw):
    def step(params, h, x):
        y = x @ params["w"]
        h = 0.9 * h + lax.map(lambda g: g * y, params["g"]).sum(0)
        return h, h

    return step, {"g": draw(N), "w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"g": EXACT, "w": EXACT})
def polynomial(draw):
    def step(params, h, x):
        h = 0.5 * h + jnp.polyval(params["g"], jnp.tanh(x @ params["w"]))
        return h, h

    return step, {"g": draw(N), "w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "u": EXACT})
def stack_run_twice(draw):
    """A loop that slices, inside a loop that does not."""

    def step(params, h, x):
        def once(_, h):
            return lax.scan(lambda h, u: (0.5 * h + u * (x @ params["w"]), None), h, params["u"])[0]

        h = lax.fori_loop(0, 2, once, h)
        return h, h

    return step, {"w": draw(I, H), "u": draw(3, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "u": REPORTED})
def dense_stack_run_twice(draw):
    def step(params, h, x):
        def once(_, h):
            return lax.scan(lambda h, u: (jnp.tanh(h @ u), None), h + x @ params["w"], params["u"])[0]

        h = lax.fori_loop(0, 2, once, h)
        return h, h

    return step, {"w": draw(I, H), "u": draw(2, H, H)}, draw(B, H), inputs(normal(B, I))


@family({"u": EXACT})
def slices_of_slices(draw):
    def step(params, h, x):
        inner = lambda h, w: (0.5 * h + x @ w, None)
        h, _ = lax.scan(lambda h, u: lax.scan(inner, h, u), h, params["u"])
        return h, h

    return step, {"u": draw(2, 3, I, H)}, draw(B, H), inputs(normal(B, I))


@family({"u": EXACT})
def sliced_outside(draw):
    """A loop that does not slice, inside a loop that does."""

    def step(params, h, x):
        again = lambda u: lambda _, h: 0.5 * h + x @ u
        h, _ = lax.scan(lambda h, u: (lax.fori_loop(0, 2, again(u), h), None), h, params["u"])
        return h, h

    return step, {"u": draw(3, I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def read_by_a_counter(draw):
    def step(params, h, x):
        h = lax.fori_loop(0, 3, lambda i, h: 0.5 * h + x @ params["w"][i], h)
        return h, h

    return step, {"w": draw(3, I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def scaled_by_constants(draw):
    """The weight is one, and the constants that scale it are sliced."""
    scales = jnp.arange(1.0, 4.0)

    def step(params, h, x):
        h, _ = lax.scan(lambda h, c: (0.5 * h + x @ (c * params["w"]), None), h, scales)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "v": EXACT})
def carried_and_changed(draw):
    """A loop halves a weight, and leaves it behind for what comes after."""

    def step(params, h, x):
        body = lambda carry, _: ((0.5 * carry[0] + x @ carry[1], 0.5 * carry[1], 2.0 * carry[2]), None)
        (h, w, c), _ = lax.scan(body, (h, params["w"], 1.0), None, 3)
        return h + x @ w + x @ (c * params["v"]), h

    return step, {"w": draw(I, H), "v": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT, "k": EXACT})
def begins_with_a_weight(draw):
    """The loop's first value is a parameter, later ones are data."""

    def step(params, h, x):
        begin = jnp.broadcast_to(params["k"], (B, H))
        k, _ = lax.scan(lambda k, _: (0.5 * jnp.tanh(k) + x @ params["w"], None), begin, None, 3)
        h = 0.8 * h + k
        return h, h

    return step, {"w": draw(I, H), "k": draw(H)}, draw(B, H), inputs(normal(B, I))
