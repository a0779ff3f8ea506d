"""Models that use their weights and positions in ways that try to fool the analysis."""

import jax
import jax.numpy as jnp
from jax import lax

from .small import APPROXIMATE, EXACT, TRUNCATED, UNUSED, V, W, array, leaky, model

# Weights that meet data in odd ways.
model(
    "weight chosen by data",
    lambda p, h, x: jnp.where(x[:, :1] > 0, p["a"], p["b"]) * h + x,
    {"a": array(4), "b": array(4)},
    array(2, 4),
    (2, 4),
    a=EXACT,
    b=EXACT,
)
model(
    "weight from a branch",
    lambda p, h, x: 0.9 * h + x * lax.cond(x.sum() > 0, lambda: p["a"], lambda: p["b"]),
    {"a": array(4), "b": array(4)},
    array(4),
    (4,),
    a=EXACT,
    b=EXACT,
)
model(
    "matrix from a branch",
    lambda p, h, x: 0.9 * h + x @ lax.cond(x.sum() > 0, lambda: p["a"], lambda: p["b"]),
    {"a": array(3, 4), "b": array(3, 4)},
    array(2, 4),
    (2, 3),
    a=TRUNCATED,
    b=TRUNCATED,
)
model(
    "weight scattered",
    lambda p, h, x: (0.9 * h).at[jnp.array([1, 3])].add(p["b"]) + x,
    {"b": array(2)},
    array(4),
    (4,),
    b=EXACT,
)
model(
    "two weights in one op",
    lambda p, h, x: jnp.clip(0.9 * h + x, p["lo"], p["hi"]),
    {"lo": array(4) - 2, "hi": array(4) + 2},
    array(2, 4),
    (2, 4),
    lo=EXACT,
    hi=EXACT,
)
model("weight power", lambda p, h, x: 0.5 * h + jnp.abs(x) ** p["n"], {"n": array(4)}, array(2, 4), (2, 4), n=EXACT)
model(
    "weight is the new state",
    lambda p, h, x: (p["a"], 0.9 * h[1] + h[0] * x),
    {"a": array(4)},
    (array(4), array(4)),
    (4,),
    a=EXACT,
)


def dense_with_rule(x, w, b):
    return x @ w + b


ruled = jax.custom_vjp(dense_with_rule)
ruled.defvjp(lambda x, w, b: (x @ w + b, (x, w)), lambda r, ct: (ct @ r[1].T, jnp.outer(r[0], ct), ct))
model(
    "custom_vjp with weights",
    lambda p, h, x: 0.9 * h + ruled(x, p["w"], p["b"]),
    {"w": array(3, 4), "b": array(4)},
    array(4),
    (3,),
    w=EXACT,
    b=EXACT,
)

# Positions.
PRE, POST = jnp.array([0, 0, 1, 2, 3, 3]), jnp.array([1, 2, 0, 2, 1, 0])
model(
    "edge list between populations",
    lambda p, h, x: (
        0.9 * h[0] + x @ p["u"],
        0.8 * h[1] + jax.ops.segment_sum((jnp.tanh(h[0])[:, PRE] * p["w"]).T, POST, 3).T,
    ),
    {"w": array(6), "u": array(3, 4)},
    (array(2, 4), array(2, 3)),
    (2, 3),
    lambda p, h: h[1],
    w=EXACT,
    u=APPROXIMATE,
)
model(
    "compartments with trainable coupling",
    lambda p, h, x: 0.8 * h + p["g"] * h[:, :, jnp.array([1, 2, 0])] + (x @ p["w"])[:, :, None],
    {"w": array(3, 4), "g": array(4, 3)},
    array(2, 4, 3),
    (2, 3),
    w=EXACT,
    g=EXACT,
)
model(
    "learnt delay line",
    lambda p, h, x: p["a"] * jnp.roll(h, 1, -1) + x,
    {"a": array(70)},
    array(70),
    (70,),
    a=APPROXIMATE,
)
model(
    "gain after a norm",
    lambda p, h, x: p["a"] * (lambda s: s - s.mean(-1, keepdims=True))(0.9 * h + x @ p["w"]),
    V,
    array(2, 4),
    (2, 3),
    w=TRUNCATED,
    a=APPROXIMATE,
)
model(
    "dendrites",
    lambda p, h, x: (lambda d: (d, 0.8 * h[1] + (p["g"] * d).sum(-1)))(0.9 * h[0] + (x @ p["w"])[:, :, None] * p["k"]),
    {"w": array(3, 4), "k": array(2), "g": array(2)},
    (array(2, 4, 2), array(2, 4)),
    (2, 3),
    lambda p, h: h[1],
    w=EXACT,
    k=EXACT,
    g=EXACT,
)
model(
    "norm over samples",
    lambda p, h, x: 0.9 * h + (lambda y: y - y.mean(0))(x @ p["w"]),
    W,
    array(2, 4),
    (2, 3),
    w=TRUNCATED,
)
model("output over samples", leaky(lambda h: h), W, array(2, 4), (2, 3), lambda p, h: h / (1 + h.sum(0)), w=EXACT)
model(
    "state transposed", lambda p, h, x: 0.5 * h.T + x @ p["w"], {"w": array(3, 3)}, array(3, 3), (3, 3), w=APPROXIMATE
)
model(
    "states exchanged",
    lambda p, h, x: (0.9 * h[1] + x @ p["w"], 0.5 * h[0]),
    W,
    (array(2, 4), array(2, 4)),
    (2, 3),
    lambda p, h: h[0],
    w=EXACT,
)
model(
    "states exchanged and shifted",
    lambda p, h, x: (0.9 * jnp.roll(h[1], 1, -1) + x @ p["w"], 0.5 * h[0]),
    W,
    (array(2, 4), array(2, 4)),
    (2, 3),
    lambda p, h: h[0],
    w=APPROXIMATE,
)
model(
    "reshape that turns",
    lambda p, h, x: 0.9 * h + lax.reshape(x @ p["w"], (4, 2), (1, 0)).T,
    W,
    array(2, 4),
    (2, 3),
    w=EXACT,
)
model(
    "fixed permutation",
    lambda p, h, x: 0.9 * h + jax.random.permutation(jax.random.key(0), x @ p["w"], axis=1),
    W,
    array(2, 4),
    (2, 3),
    w=EXACT,
)
model(
    "rolled by data",
    lambda p, h, x: 0.9 * h + jnp.roll(x @ p["w"], jnp.argmax(x[0]), 1),
    W,
    array(2, 4),
    (2, 3),
    w=TRUNCATED,
)
model(
    "nothing to carry",
    lambda p, h, x: {"a": 0.9 * h["a"] + x @ p["w"], "e": 2 * h["e"]},
    {"w": array(3, 4), "z": array(0, 3)},
    {"a": array(2, 4), "e": array(2, 0)},
    (2, 3),
    lambda p, h: h["a"],
    w=EXACT,
    z=UNUSED,
)
model(
    "complex, conjugated",
    lambda p, h, x: 0.9j * jnp.conj(h) + x @ p["w"],
    W,
    array(2, 4) + 1j * array(2, 4),
    (2, 3),
    lambda p, h: h.real,
    w=EXACT,
)
model(
    "complex to real",
    lambda p, h, x: (lambda z: (z, 0.9 * h[1] + jnp.abs(z)))((0.5 + 0.5j) * h[0] + x @ (p["a"] + 1j * p["b"])),
    {"a": array(3, 4), "b": array(3, 4)},
    (array(2, 4) + 1j * array(2, 4), array(2, 4)),
    (2, 3),
    lambda p, h: h[1],
    a=EXACT,
    b=EXACT,
)
model(
    "cast to real",
    lambda p, h, x: 0.9 * h + lax.convert_element_type(lax.real((x @ p["w"]) * (1 + 2j)), float),
    W,
    array(2, 4),
    (2, 3),
    w=EXACT,
)
