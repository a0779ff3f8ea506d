"""Small models that try to fool the analysis: `MODELS[name] = (model, verdict of each parameter under `diagonal`)`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

EXACT, APPROXIMATE, TRUNCATED, UNUSED = "exact", "approximate", "truncated", "unused"


class Model(NamedTuple):
    step: Callable
    params: Any
    hidden: Any
    make_inputs: Callable


_rng = np.random.RandomState(0)
MODELS: dict[str, tuple[Model, dict[str, str]]] = {}


def array(*shape):
    return jnp.asarray(_rng.standard_normal(shape))


def inputs(*shapes):
    return lambda T, seed: tuple(
        jnp.asarray(np.random.RandomState(seed + i).standard_normal((T, *s))) for i, s in enumerate(shapes)
    )


def model(name, new, params, hidden, x, output=lambda p, h: h, **verdicts):
    """h' = new(params, h, x), seen through `output`."""

    def step(params, hidden, x):
        hidden = new(params, hidden, x)
        return hidden, output(params, hidden)

    MODELS[name] = Model(step, params, hidden, inputs(x)), verdicts


def backward(rule):
    """The identity, with a derivative rule ct ↦ rule(ct, x)."""
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, x), lambda x, ct: (rule(ct, x),))
    return f


def leaky(f):
    return lambda p, h, x: f(0.9 * h + x @ p["w"])


W, V = {"w": array(3, 4)}, {"w": array(3, 4), "a": array(4)}

# Derivative rules that are not linear where a gradient comes back from later steps.
for _name, _rule in {
    "clipped": lambda ct, x: jnp.clip(ct, -0.1, 0.1),
    "rounded": lambda ct, x: (100 * ct).astype(int).astype(float) / 100,
    "shifted": lambda ct, x: ct + 0.1 * x,
    "normalised": lambda ct, x: ct / (1 + jnp.abs(ct).max()),
    "largest": lambda ct, x: ct - ct.max(),
    "chosen": lambda ct, x: jnp.where(ct > 0, ct, 0.5 * ct),
}.items():
    _spreads = _name in ("normalised", "largest")
    model(f"gradient {_name}", leaky(backward(_rule)), W, array(2, 4), (2, 3), w=TRUNCATED if _spreads else APPROXIMATE)
model(
    "one unit, special function",
    lambda p, h, x: backward(lambda ct, x: lax.bessel_i1e(ct))(0.9 * h + x * p["w"]),
    {"w": array()},
    array(),
    (),
    w=APPROXIMATE,
)
model(
    "one unit, sorted",
    lambda p, h, x: backward(lambda ct, x: jnp.sort(ct))(0.9 * h + x * p["w"]),
    {"w": array(1)},
    array(1),
    (1,),
    w=APPROXIMATE,
)
model(
    "one unit, unknown",
    lambda p, h, x: backward(lambda ct, x: jax.pure_callback(lambda a: a, ct, ct))(0.9 * h + x * p["w"]),
    {"w": array()},
    array(),
    (),
    w=APPROXIMATE,
)
# Linear ones, and those that only an output's gradient meets.
model("gradient scaled", leaky(backward(lambda ct, x: ct * jnp.cos(x))), W, array(2, 4), (2, 3), w=EXACT)
model(
    "gradient of the output clipped",
    leaky(lambda h: h),
    {"w": array(3, 4), "o": array(4, 2)},
    array(2, 4),
    (2, 3),
    lambda p, h: backward(lambda ct, x: jnp.clip(ct, -0.1, 0.1))(h) @ p["o"],
    w=EXACT,
    o=EXACT,
)
model(
    "samples exchanged in the gradient",
    lambda p, h, x: 0.9 * h + backward(lambda ct, x: ct[::-1])(x @ p["w"]),
    W,
    array(2, 4),
    (2, 3),
    w=EXACT,
)
model(
    "units exchanged in the gradient", leaky(backward(lambda ct, x: ct[:, ::-1])), W, array(2, 4), (2, 3), w=APPROXIMATE
)

# Inner loops and branches.
model(
    "carry replaced by a weight",
    lambda p, h, x: 0.5 * h + lax.scan(lambda c, t: (2 * p["w"], c + t), h, x)[0],
    {"w": array(4)},
    array(4),
    (3, 4),
    w=EXACT,
)
model(
    "weight unchanged in the carry",
    lambda p, h, x: lax.scan(lambda c, t: ((c[0], 0.8 * c[1] + t @ c[0]), None), (p["w"], h), x)[0][1],
    W,
    array(2, 4),
    (3, 2, 3),
    w=EXACT,
)
model(
    "weight changed in the carry",
    lambda p, h, x: lax.scan(lambda c, t: ((0.9 * c[0], 0.8 * c[1] + t @ c[0]), None), (p["w"], h), x)[0][1],
    W,
    array(2, 4),
    (3, 2, 3),
    w=TRUNCATED,
)
model(
    "weight changed, one sample",
    lambda p, h, x: lax.scan(lambda c, t: ((0.9 * c[0], 0.8 * c[1] + t @ c[0]), None), (p["w"], h), x)[0][1],
    W,
    array(4),
    (3, 3),
    w=EXACT,
)
model(
    "weights scanned",
    lambda p, h, x: lax.scan(lambda h, w: (0.8 * h + x @ w, None), h, p["w"])[0],
    {"w": array(3, 3, 4)},
    array(2, 4),
    (2, 3),
    w=EXACT,
)
model(
    "weights scanned, loop inside",
    lambda p, h, x: lax.scan(lambda h, w: (lax.scan(lambda h, t: (0.9 * h + t @ w, None), h, x)[0], None), h, p["w"])[
        0
    ],
    {"w": array(2, 3, 4)},
    array(2, 4),
    (3, 2, 3),
    w=TRUNCATED,
)
model(
    "layers scanned",
    lambda p, h, x: lax.scan(lambda c, wh: (0.5 * wh[1] + jnp.tanh(c @ wh[0]),) * 2, x, (p["w"], h))[1],
    {"w": array(3, 4, 4)},
    array(3, 2, 4),
    (2, 4),
    w=APPROXIMATE,
)
model(
    "rolled in a loop",
    lambda p, h, x: lax.scan(lambda h, t: (jnp.roll(0.8 * h, 1, -1) + t @ p["w"], None), h, x)[0],
    W,
    array(2, 4),
    (4, 2, 3),
    w=TRUNCATED,
)
model(
    "branch in a loop",
    lambda p, h, x: lax.scan(
        lambda h, t: (lax.cond(t.sum() > 0, lambda h: h + t @ p["w"], lambda h: h * p["a"], h), None), h, x
    )[0],
    V,
    array(2, 4),
    (3, 2, 3),
    w=EXACT,
    a=EXACT,
)
model(
    "loop in a branch",
    lambda p, h, x: lax.cond(
        x.sum() > 0, lambda h: lax.scan(lambda h, t: (0.9 * h + t @ p["w"], None), h, x)[0], lambda h: h * p["a"], h
    ),
    V,
    array(2, 4),
    (3, 2, 3),
    w=EXACT,
    a=EXACT,
)
model(
    "branch in a branch",
    lambda p, h, x: lax.switch(
        jnp.argmax(x[0]),
        [
            lambda h: 0.9 * h,
            lambda h: lax.cond(x.sum() > 0, lambda h: 0.9 * h + x @ p["w"], lambda h: h, h),
            lambda h: h * p["a"],
        ],
        h,
    ),
    V,
    array(2, 4),
    (2, 3),
    w=EXACT,
    a=EXACT,
)
model(
    "loop with a fixed count",
    lambda p, h, x: lax.fori_loop(0, 3, lambda i, h: 0.9 * h + 0.1 * (x @ p["w"]), h),
    W,
    array(2, 4),
    (2, 3),
    w=EXACT,
)

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
