"""Functions that read and write at indices, branch and loop, and reverse modes."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from .cases import X, linear, struct, transposed

ROWS = jnp.array([2, 0, 2])

# Reading and writing at indices.
linear("take rows", lambda x: x[ROWS])
linear("take columns", lambda x: x[:, jnp.array([3, 1])])
linear("take points", lambda x: x[ROWS, jnp.array([0, 1, 3])])
linear("take clipped", lambda x: jnp.take(x, jnp.array([-9, 1, 99]), axis=0, mode="clip"))
linear("take filled", lambda x: jnp.take(x, jnp.array([0, 7, -8]), axis=0, mode="fill", fill_value=0.0))
linear("take windows", lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (2, 2)))(jnp.array([0, 5])))
linear("take by data", lambda x, a: jnp.take_along_axis(x, jnp.argsort(a, 1), 1), X, X)
linear("take rows by data", lambda x, a: x[jnp.argsort(a[:, 0])], X, X)
linear("take a row by data", lambda x, a: x[jnp.argmax(a)], X, struct((3,)))
linear("take points by data", lambda x, a: x[jnp.argsort(a[:, 0]), jnp.argsort(a[:, 1])], X, X, precise=False)
linear("permutation", lambda x: jax.random.permutation(jax.random.key(0), x, axis=1))
linear("dynamic_slice", lambda x: lax.dynamic_slice(x, (1, 9), (2, 2)))
linear("dynamic_slice by data", lambda x, a: lax.dynamic_slice(x, (jnp.argmax(a), 1), (1, 2)), X, struct((3,)))
linear("dynamic_update_slice", lambda x, a: lax.dynamic_update_slice(0 * a, x, (9, 1)), struct((2, 2)), X)
linear("dynamic_update_slice into", lambda x, a: lax.dynamic_update_slice(x, 0 * a, (1, -2)), X, struct((2, 2)))
linear(
    "dynamic_update_slice by data",
    lambda x, a, i: lax.dynamic_update_slice(0 * a, x, (1, jnp.argmax(i))),
    struct((2, 2)),
    X,
    struct((4,)),
    precise=False,
)
linear(
    "dynamic_update_slice into by data",
    lambda x, i: lax.dynamic_update_slice(x, 2 * x[:1, :2], (jnp.argmax(i), 1)),
    X,
    struct((3,)),
    precise=False,
)
linear("segment_sum", lambda x: jax.ops.segment_sum(x, jnp.array([0, 2, 0]), 3))
linear(
    "segment_sum wide, overlapping",
    lambda x: jax.ops.segment_sum(x[jnp.arange(60) * 11 % 20], jnp.arange(60) % 3, 4),
    struct((25,)),
    precise=False,
)
linear("segment_sum wide", lambda x: jax.ops.segment_sum(x, jnp.arange(40) % 2, 3), struct((40,)))
linear("segment_sum by data", lambda x, a: jax.ops.segment_sum(x, jnp.argsort(a), 3), X, struct((3,)))
linear("write rows", lambda x, a: (0 * a).at[jnp.array([2, 0])].set(x), struct((2, 4)), X)
linear("write over", lambda x, a: x.at[jnp.array([2, 0])].set(0 * a), X, struct((2, 4)))
linear("write dropped", lambda x, a: (0 * a).at[jnp.array([7, 0])].set(x, mode="drop"), struct((2, 4)), X)
linear("write clipped", lambda x, a: (0 * a).at[jnp.array([7, 0])].add(x, mode="clip"), struct((2, 4)), X)
linear("write by data", lambda x, a, i: (0 * a).at[jnp.argsort(i)].set(x), X, X, struct((3,)))
linear("write points by data", lambda x, i: x.at[0, jnp.argmax(i)].add(3 * x[2, 1]), X, struct((4,)), precise=False)
linear("multiply at", lambda x, a: x.at[ROWS[:2]].multiply(a, unique_indices=True), X, struct((2, 4)))
linear("subtract at", lambda x: x.at[:, 1].subtract(x[:, 2]))
linear("name", lambda x: checkpoint_name(x, "h") * 2)
linear(
    "batched write",
    lambda x, a: jax.vmap(lambda r, i: jnp.zeros(4).at[jnp.argsort(i)[:2]].add(r))(x, a),
    struct((3, 2)),
    X,
)
linear("batched read", lambda x, a: jax.vmap(lambda r, i: r[jnp.argmax(i)])(x, a), X, X)

# Control flow.
linear("cond", lambda x, a: lax.cond(a > 0, lambda: x, lambda: x[::-1]), X, struct(()))
linear(
    "switch",
    lambda x, a: lax.switch(jnp.argmax(a), [lambda x: x, lambda x: 0 * x, lambda x: jnp.roll(x, 1, 1)], x),
    X,
    struct((3,)),
    precise=False,
)
linear("scan", lambda x, a: lax.scan(lambda c, r: (0.5 * c + r, a * c), jnp.zeros(4), x), X, struct((4,)))
linear(
    "scan reversed",
    lambda x, a: lax.scan(lambda c, r: (0.5 * c + r, a * c), jnp.zeros(4), x, reverse=True),
    X,
    struct((4,)),
)
linear("scan carry", lambda x, a: lax.scan(lambda c, r: (r * c, c[::-1]), x, a), struct((4,)), X)
linear(
    "scan spreading",
    lambda x, a: lax.scan(lambda c, r: (c + jnp.roll(c, 1), r * c), x, a),
    struct((4,)),
    X,
    precise=False,
)
linear("scan long", lambda x: lax.scan(lambda c, r: (0.5 * c + r, r), jnp.zeros(2), x), struct((70, 2)), precise=False)
linear(
    "scan delay",
    lambda x: lax.scan(lambda c, r: ((r, *c[:-1]), c[-1]), (jnp.zeros(2),) * 14, x),
    struct((70, 2)),
    precise=False,
)
linear(
    "scan nested",
    lambda x, a: lax.scan(lambda c, r: (lax.scan(lambda d, s: (d * s, d), c, a)[0] + r, c), jnp.zeros(4), x),
    X,
    X,
)
linear(
    "while",
    lambda x, a: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.roll(s[1], 1) * a), (0, x))[1],
    struct((4,)),
    struct((4,)),
    precise=False,
)
linear(
    "fori delay",
    lambda x, n: lax.fori_loop(0, 20 + (n > 0), lambda _, c: (c[-1], *c[:-1]), (x, *(0 * x,) * 15))[3],
    struct((2,)),
    struct(()),
    precise=False,
)
linear("nested jit", lambda x: jax.jit(lambda x: jax.jit(jnp.flip)(x) * 2)(x))
linear("checkpoint", lambda x, a: jax.checkpoint(lambda x: a * x)(x), X, X)
linear("map", lambda x: lax.map(lambda r: r[::-1], x))

# The reverse mode of common nonlinear functions.
transposed("tanh", jnp.tanh)
transposed("softmax", jax.nn.softmax)
transposed("logsumexp", lambda x: jax.nn.logsumexp(x, 1))
transposed("sort", lambda x: jnp.sort(x, 1))
transposed("top_k", lambda x: lax.top_k(x, 2)[0])
transposed("max", lambda x: x.max(1))
transposed("prod", lambda x: x.prod(1))
transposed("median", lambda x: jnp.median(x, 1), precise=False)
transposed("cumprod", lambda x: jnp.cumprod(x, 1), precise=False)
transposed("cummax", lambda x: lax.cummax(x, 1), precise=False)
transposed("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), precise=False)
transposed("max pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"))
transposed("max pool overlapping", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 1), "SAME"))
transposed("average pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID") / 2)
transposed("layer norm", lambda x: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5))
transposed("norm", lambda x: jnp.linalg.norm(x, axis=1))
transposed("cholesky", lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3)), precise=False)
transposed("inverse", lambda x: jnp.linalg.inv(x @ x.T + jnp.eye(3)), precise=False)
transposed("resize", lambda x: jax.image.resize(x, (3, 8), "linear"), precise=False)
transposed("interp", lambda x: jnp.interp(jnp.linspace(-1, 1, 5), jnp.arange(4.0), x[0]), precise=False)
transposed("scan", lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), jnp.sin(c)), jnp.zeros(4), x)[1])
transposed("fori", lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sin(jnp.roll(y, 1, 1)), x), precise=False)
transposed("cond", lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.flip, x))
transposed("associative_scan", lambda x: lax.associative_scan(jnp.multiply, x, axis=1), precise=False)
transposed("complex", lambda x: (jnp.exp(1j * x) * (1 + 2j)).real)
transposed("segment_max", lambda x: jax.ops.segment_max(x, jnp.array([0, 0, 1]), 3), precise=False)
transposed(
    "custom_root",
    lambda x: lax.custom_root(lambda y: 2 * y - x, x, lambda f, y: y - f(y) / 2, lambda g, y: y / 2),
    precise=False,
)
transposed("attention", lambda x: jax.nn.softmax(x @ x.T) @ x, precise=False)
