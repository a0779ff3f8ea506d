"""Small functions of one array, by name: what a backward pass may contain.

`CASES[name] = Case(f, x, data, precise)`: f(x, *data) is linear in x. `precise` says that the pattern must be exactly
where its Jacobian is not zero for some data; else it may be larger, never smaller.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name


class Case(NamedTuple):
    f: Callable
    x: Any
    data: tuple[Any, ...] = ()
    precise: bool = True


def _struct(shape, dtype=float):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


X = _struct((3, 4))
ROWS = jnp.array([2, 0, 2])
CASES: dict[str, Case] = {}


def linear(name, f, x=X, *data, precise=True):
    CASES[name] = Case(f, x, data, precise)


def transposed(name, f, x=X, precise=True):
    """The reverse mode of f, as a function of the cotangent, with the point as data."""
    out = jax.eval_shape(f, x)
    CASES["back " + name] = Case(lambda ct, at: jax.vjp(f, at)[1](ct)[0], out, (x,), precise)


# Element by element.
linear("neg, add, sub", lambda x, a: -x + 0 * a - 2 * x, X, X)
linear("mul", lambda x, a: x * a, X, X)
linear("div", lambda x, a: x / (2 + a * a), X, X)
linear("scalar broadcast", lambda x, a: a * x + x, _struct(()), X)
linear("select", lambda x, a: jnp.where(a > 0, x, 0.0), X, X)
linear("cast", lambda x: x.astype(jnp.float32).astype(float))
linear("barrier", lambda x: lax.optimization_barrier((x, 2 * x)))
linear("complex parts", lambda x, a: (x * (a + 2j)).real + jnp.conj(1j * x).imag, X, X)
linear("complex input", lambda x: jnp.conj(x) + 1j * x, _struct((3,), complex))
linear("cast to real", lambda x: lax.convert_element_type(lax.real(x), float), _struct((3,), complex))
linear("reduce_precision", lambda x: lax.reduce_precision(x, 8, 23))

# Elements moved.
linear("reshape", lambda x: x.reshape(2, 6))
linear("reshape with dimensions", lambda x: lax.reshape(x, (2, 6), (1, 0)))
linear("transpose", lambda x: x.transpose(2, 0, 1), _struct((2, 3, 4)))
linear("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (0, 2)))
linear("broadcast of one", lambda x: lax.broadcast_in_dim(x, (3, 4), (0, 1)), _struct((3, 1)))
linear("squeeze, expand", lambda x: jnp.expand_dims(jnp.squeeze(x, 1), (0, 2)), _struct((3, 1)))
linear("rev", lambda x: lax.rev(x, (1,)))
linear("slice", lambda x: lax.slice(x, (0, 1), (3, 4), (2, 1)))
linear("split", lambda x: jnp.split(x, [1, 3], axis=1))
linear("concatenate", lambda x, a: jnp.concatenate([x, 0 * a, 2 * x[:1]]), X, X)
linear("stack", lambda x: jnp.stack([x, 2 * x], axis=1))
linear("tile", lambda x: jnp.tile(x, (2, 3)))
linear("pad", lambda x: lax.pad(x, 0.0, ((1, 2, 0), (0, 1, 2))))
linear("pad negative", lambda x: lax.pad(x, 0.0, ((-1, 2, 1), (3, -2, 1))))
linear("pad value", lambda x: lax.pad(jnp.zeros(3), x, ((1, 1, 0),)), _struct(()), precise=False)
linear("roll", lambda x: jnp.roll(x, 2, 1))
linear("repeat", lambda x: jnp.repeat(x, jnp.array([2, 0, 1]), axis=0, total_repeat_length=3))
for _mode in ("edge", "wrap", "reflect"):
    linear(f"jnp.pad {_mode}", lambda x, mode=_mode: jnp.pad(x, 1, mode=mode))
linear("diagonal", jnp.diag, _struct((4, 4)), precise=False)
linear("to diagonal", jnp.diag, _struct((4,)), precise=False)
linear("triangle", jnp.tril, _struct((4, 4)), precise=False)
linear("unstack", lambda x: list(x))

# Elements summed.
linear("sum", lambda x: x.sum(1))
linear("sum of all", lambda x: x.sum())
linear("sum wide", lambda x: x.sum(1), _struct((3, 40)))
linear("sum of two axes", lambda x: x.sum((0, 2)), _struct((2, 3, 4)))
linear("sum over one", lambda x: x.sum(1), _struct((3, 1)))
linear("sum over none", lambda x: x.sum(1), _struct((3, 0)))
linear("mean subtraction", lambda x: x - x.mean(1, keepdims=True))
linear("cumsum", lambda x: jnp.cumsum(x, 1), precise=False)
linear("cumsum reversed", lambda x: lax.cumsum(x, 0, reverse=True), precise=False)
linear("dot left", lambda x, a: a @ x, X, _struct((5, 3)))
linear("dot right", lambda x, a: x @ a, X, _struct((4, 5)))
linear("dot vector", lambda x, a: x @ a, _struct((4,)), _struct((4, 5)))
linear("dot wide", lambda x, a: x @ a, _struct((3, 40)), _struct((40, 5)))
linear("dot batched", lambda x, a: jnp.einsum("bij,bjk->bik", x, a), _struct((2, 3, 4)), _struct((2, 4, 5)))
linear("dot batched right", lambda x, a: jnp.einsum("bij,kib->jbk", a, x), _struct((2, 3, 4)), _struct((4, 3, 5)))
linear("dot two axes", lambda x, a: jnp.einsum("ijb,jik->bk", x, a), _struct((2, 3, 4)), _struct((3, 2, 5)))
linear("outer", lambda x, a: jnp.outer(x, a), _struct((3,)), _struct((4,)))
linear("pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"))
linear("pool overlapping", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME"))
linear(
    "pool dilated", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID", (1, 2), (2, 1)), precise=False
)
linear(
    "conv",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME"),
    _struct((2, 3, 6)),
    _struct((4, 3, 3)),
    precise=False,
)
linear(
    "conv kernel",
    lambda k, x: lax.conv_general_dilated(x, k, (2,), "VALID"),
    _struct((4, 3, 3)),
    _struct((2, 3, 6)),
    precise=False,
)
linear(
    "conv grouped",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", feature_group_count=2),
    _struct((2, 4, 6)),
    _struct((2, 2, 3)),
    precise=False,
)
linear(
    "conv batch groups",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", batch_group_count=2),
    _struct((4, 3, 6)),
    _struct((2, 3, 3)),
    precise=False,
)
linear(
    "conv channels last",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "WNC")),
    _struct((2, 6, 3)),
    _struct((3, 3, 4)),
    precise=False,
)
linear("fft", lambda x: jnp.fft.fft(x).real, _struct((3, 4)), precise=False)
linear("rfft", lambda x: jnp.fft.rfft(x), _struct((3, 5)), precise=False)
linear("irfft", lambda x: jnp.fft.irfft(x), _struct((3, 5), complex), precise=False)
linear("fft 2d", lambda x: jnp.fft.fft2(x).imag, _struct((2, 3, 4)), precise=False)
linear("convolve", lambda x, k: jnp.convolve(x, k, mode="same"), _struct((6,)), _struct((3,)), precise=False)
linear(
    "ragged dot", lambda x, a: lax.ragged_dot(x, a, jnp.array([1, 2], jnp.int32)), X, _struct((2, 4, 3)), precise=False
)
linear(
    "triangular solve",
    lambda x, a: lax.linalg.triangular_solve(jnp.eye(3) + jnp.tril(a), x, left_side=True),
    _struct((3, 2)),
    _struct((3, 3)),
    precise=False,
)
linear(
    "tridiagonal solve",
    lambda x, a: lax.linalg.tridiagonal_solve(a, a * a + 5, a, x),
    _struct((4, 2)),
    _struct((4,)),
    precise=False,
)
linear("solve", lambda x, a: jnp.linalg.solve(jnp.eye(3) * 3 + a, x), _struct((3, 2)), _struct((3, 3)), precise=False)
linear("expm action", lambda x, a: jax.scipy.linalg.expm(a) @ x, _struct((3, 2)), _struct((3, 3)), precise=False)

# Reading and writing at indices.
linear("take rows", lambda x: x[ROWS])
linear("take columns", lambda x: x[:, jnp.array([3, 1])])
linear("take points", lambda x: x[ROWS, jnp.array([0, 1, 3])])
linear("take clipped", lambda x: jnp.take(x, jnp.array([-9, 1, 99]), axis=0, mode="clip"))
linear("take filled", lambda x: jnp.take(x, jnp.array([0, 7, -8]), axis=0, mode="fill", fill_value=0.0))
linear("take windows", lambda x: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 0), (2, 2)))(jnp.array([0, 5])))
linear("take by data", lambda x, a: jnp.take_along_axis(x, jnp.argsort(a, 1), 1), X, X)
linear("take rows by data", lambda x, a: x[jnp.argsort(a[:, 0])], X, X)
linear("take a row by data", lambda x, a: x[jnp.argmax(a)], X, _struct((3,)))
linear("take points by data", lambda x, a: x[jnp.argsort(a[:, 0]), jnp.argsort(a[:, 1])], X, X, precise=False)
linear("permutation", lambda x: jax.random.permutation(jax.random.key(0), x, axis=1))
linear("dynamic_slice", lambda x: lax.dynamic_slice(x, (1, 9), (2, 2)))
linear("dynamic_slice by data", lambda x, a: lax.dynamic_slice(x, (jnp.argmax(a), 1), (1, 2)), X, _struct((3,)))
linear("dynamic_update_slice", lambda x, a: lax.dynamic_update_slice(0 * a, x, (9, 1)), _struct((2, 2)), X)
linear("dynamic_update_slice into", lambda x, a: lax.dynamic_update_slice(x, 0 * a, (1, -2)), X, _struct((2, 2)))
linear(
    "dynamic_update_slice by data",
    lambda x, a, i: lax.dynamic_update_slice(0 * a, x, (1, jnp.argmax(i))),
    _struct((2, 2)),
    X,
    _struct((4,)),
    precise=False,
)
linear(
    "dynamic_update_slice into by data",
    lambda x, i: lax.dynamic_update_slice(x, 2 * x[:1, :2], (jnp.argmax(i), 1)),
    X,
    _struct((3,)),
    precise=False,
)
linear("segment_sum", lambda x: jax.ops.segment_sum(x, jnp.array([0, 2, 0]), 3))
linear("segment_sum wide", lambda x: jax.ops.segment_sum(x, jnp.arange(40) % 2, 3), _struct((40,)))
linear("segment_sum by data", lambda x, a: jax.ops.segment_sum(x, jnp.argsort(a), 3), X, _struct((3,)))
linear("write rows", lambda x, a: (0 * a).at[jnp.array([2, 0])].set(x), _struct((2, 4)), X)
linear("write over", lambda x, a: x.at[jnp.array([2, 0])].set(0 * a), X, _struct((2, 4)))
linear("write dropped", lambda x, a: (0 * a).at[jnp.array([7, 0])].set(x, mode="drop"), _struct((2, 4)), X)
linear("write clipped", lambda x, a: (0 * a).at[jnp.array([7, 0])].add(x, mode="clip"), _struct((2, 4)), X)
linear("write by data", lambda x, a, i: (0 * a).at[jnp.argsort(i)].set(x), X, X, _struct((3,)))
linear("write points by data", lambda x, i: x.at[0, jnp.argmax(i)].add(3 * x[2, 1]), X, _struct((4,)), precise=False)
linear("multiply at", lambda x, a: x.at[ROWS[:2]].multiply(a, unique_indices=True), X, _struct((2, 4)))
linear("subtract at", lambda x: x.at[:, 1].subtract(x[:, 2]))
linear("name", lambda x: checkpoint_name(x, "h") * 2)
linear(
    "batched write",
    lambda x, a: jax.vmap(lambda r, i: jnp.zeros(4).at[jnp.argsort(i)[:2]].add(r))(x, a),
    _struct((3, 2)),
    X,
)
linear("batched read", lambda x, a: jax.vmap(lambda r, i: r[jnp.argmax(i)])(x, a), X, X)

# Control flow.
linear("cond", lambda x, a: lax.cond(a > 0, lambda: x, lambda: x[::-1]), X, _struct(()))
linear(
    "switch",
    lambda x, a: lax.switch(jnp.argmax(a), [lambda x: x, lambda x: 0 * x, lambda x: jnp.roll(x, 1, 1)], x),
    X,
    _struct((3,)),
    precise=False,
)
linear("scan", lambda x, a: lax.scan(lambda c, r: (0.5 * c + r, a * c), jnp.zeros(4), x), X, _struct((4,)))
linear(
    "scan reversed",
    lambda x, a: lax.scan(lambda c, r: (0.5 * c + r, a * c), jnp.zeros(4), x, reverse=True),
    X,
    _struct((4,)),
)
linear("scan carry", lambda x, a: lax.scan(lambda c, r: (r * c, c[::-1]), x, a), _struct((4,)), X)
linear(
    "scan spreading",
    lambda x, a: lax.scan(lambda c, r: (c + jnp.roll(c, 1), r * c), x, a),
    _struct((4,)),
    X,
    precise=False,
)
linear("scan long", lambda x: lax.scan(lambda c, r: (0.5 * c + r, r), jnp.zeros(2), x), _struct((70, 2)), precise=False)
linear(
    "scan delay",
    lambda x: lax.scan(lambda c, r: ((r, *c[:-1]), c[-1]), (jnp.zeros(2),) * 14, x),
    _struct((70, 2)),
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
    _struct((4,)),
    _struct((4,)),
    precise=False,
)
linear(
    "fori delay",
    lambda x, n: lax.fori_loop(0, 20 + (n > 0), lambda _, c: (c[-1], *c[:-1]), (x, *(0 * x,) * 15))[3],
    _struct((2,)),
    _struct(()),
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


def draw(struct, seed: int):
    """Random numbers for a shape and dtype."""
    rng = np.random.RandomState(seed)
    if jnp.issubdtype(struct.dtype, jnp.complexfloating):
        return jnp.asarray(rng.standard_normal(struct.shape) + 1j * rng.standard_normal(struct.shape))
    return jnp.asarray(rng.standard_normal(struct.shape), struct.dtype)
