"""Models whose derivative rules, loops and branches try to fool the analysis."""

import jax
import jax.numpy as jnp
from jax import lax

from .small import APPROXIMATE, EXACT, TRUNCATED, V, W, array, backward, leaky, model

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
    w=EXACT,
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
    w=EXACT,
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
