"""Functions that work element by element, move or sum elements."""

import jax
import jax.numpy as jnp
from jax import lax

from .cases import X, linear, struct

# Element by element.
linear("neg, add, sub", lambda x, a: -x + 0 * a - 2 * x, X, X)
linear("mul", lambda x, a: x * a, X, X)
linear("div", lambda x, a: x / (2 + a * a), X, X)
linear("scalar broadcast", lambda x, a: a * x + x, struct(()), X)
linear("select", lambda x, a: jnp.where(a > 0, x, 0.0), X, X)
linear("barrier", lambda x: lax.optimization_barrier((x, 2 * x)))
linear("complex parts", lambda x, a: (x * (a + 2j)).real + jnp.conj(1j * x).imag, X, X)
linear("complex input", lambda x: jnp.conj(x) + 1j * x, struct((3,), complex))
linear("cast to real", lambda x: lax.convert_element_type(lax.real(x), float), struct((3,), complex))

# Elements moved.
linear("reshape", lambda x: x.reshape(2, 6))
linear("reshape with dimensions", lambda x: lax.reshape(x, (2, 6), (1, 0)))
linear("transpose", lambda x: x.transpose(2, 0, 1), struct((2, 3, 4)))
linear("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (3, 2, 4), (0, 2)))
linear("broadcast of one", lambda x: lax.broadcast_in_dim(x, (3, 4), (0, 1)), struct((3, 1)))
linear("squeeze, expand", lambda x: jnp.expand_dims(jnp.squeeze(x, 1), (0, 2)), struct((3, 1)))
linear("rev", lambda x: lax.rev(x, (1,)))
linear("slice", lambda x: lax.slice(x, (0, 1), (3, 4), (2, 1)))
linear("split", lambda x: jnp.split(x, [1, 3], axis=1))
linear("concatenate", lambda x, a: jnp.concatenate([x, 0 * a, 2 * x[:1]]), X, X)
linear("stack", lambda x: jnp.stack([x, 2 * x], axis=1))
linear("tile", lambda x: jnp.tile(x, (2, 3)))
linear("pad", lambda x: lax.pad(x, 0.0, ((1, 2, 0), (0, 1, 2))))
linear("pad negative", lambda x: lax.pad(x, 0.0, ((-1, 2, 1), (3, -2, 1))))
linear("pad value", lambda x: lax.pad(jnp.zeros(3), x, ((1, 1, 0),)), struct(()), precise=False)
linear("roll", lambda x: jnp.roll(x, 2, 1))
linear("repeat", lambda x: jnp.repeat(x, jnp.array([2, 0, 1]), axis=0, total_repeat_length=3))
for _mode in ("edge", "wrap", "reflect"):
    linear(f"jnp.pad {_mode}", lambda x, mode=_mode: jnp.pad(x, 1, mode=mode))
linear("diagonal", jnp.diag, struct((4, 4)), precise=False)
linear("to diagonal", jnp.diag, struct((4,)), precise=False)
linear("triangle", jnp.tril, struct((4, 4)), precise=False)
linear("unstack", lambda x: list(x))

# Elements summed.
linear("sum", lambda x: x.sum(1))
linear("sum of all", lambda x: x.sum())
linear("sum wide", lambda x: x.sum(1), struct((3, 40)))
linear("sum of two axes", lambda x: x.sum((0, 2)), struct((2, 3, 4)))
linear("sum over one", lambda x: x.sum(1), struct((3, 1)))
linear("sum over none", lambda x: x.sum(1), struct((3, 0)))
linear("mean subtraction", lambda x: x - x.mean(1, keepdims=True))
linear("cumsum", lambda x: jnp.cumsum(x, 1), precise=False)
linear("cumsum reversed", lambda x: lax.cumsum(x, 0, reverse=True), precise=False)
linear("dot left", lambda x, a: a @ x, X, struct((5, 3)))
linear("dot right", lambda x, a: x @ a, X, struct((4, 5)))
linear("dot vector", lambda x, a: x @ a, struct((4,)), struct((4, 5)))
linear("dot wide", lambda x, a: x @ a, struct((3, 40)), struct((40, 5)))
linear("dot batched", lambda x, a: jnp.einsum("bij,bjk->bik", x, a), struct((2, 3, 4)), struct((2, 4, 5)))
linear("dot batched right", lambda x, a: jnp.einsum("bij,kib->jbk", a, x), struct((2, 3, 4)), struct((4, 3, 5)))
linear("dot two axes", lambda x, a: jnp.einsum("ijb,jik->bk", x, a), struct((2, 3, 4)), struct((3, 2, 5)))
linear("outer", lambda x, a: jnp.outer(x, a), struct((3,)), struct((4,)))
linear("pool", lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"))
linear("pool overlapping", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME"))
linear(
    "pool wide, overlapping",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (20,), (5,), "VALID"),
    struct((60,)),
    precise=False,
)
linear(
    "sums wide, overlapping", lambda x: x[jnp.arange(80).reshape(4, 20) * 7 % 30].sum(1), struct((40,)), precise=False
)
linear("sums wide, some apart", lambda x: x[jnp.array([[0] * 20, [1] * 10 + [2] * 10])].sum(1), struct((5,)))
linear(
    "pool dilated", lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "VALID", (1, 2), (2, 1)), precise=False
)
linear(
    "conv",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME"),
    struct((2, 3, 6)),
    struct((4, 3, 3)),
    precise=False,
)
linear(
    "conv kernel",
    lambda k, x: lax.conv_general_dilated(x, k, (2,), "VALID"),
    struct((4, 3, 3)),
    struct((2, 3, 6)),
    precise=False,
)
linear(
    "conv grouped",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", feature_group_count=2),
    struct((2, 4, 6)),
    struct((2, 2, 3)),
    precise=False,
)
linear(
    "conv batch groups",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", batch_group_count=2),
    struct((4, 3, 6)),
    struct((2, 3, 3)),
    precise=False,
)
linear(
    "conv channels last",
    lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "WNC")),
    struct((2, 6, 3)),
    struct((3, 3, 4)),
    precise=False,
)
linear("fft", lambda x: jnp.fft.fft(x).real, struct((3, 4)), precise=False)
linear("rfft", lambda x: jnp.fft.rfft(x), struct((3, 5)), precise=False)
linear("irfft", lambda x: jnp.fft.irfft(x), struct((3, 5), complex), precise=False)
linear("fft 2d", lambda x: jnp.fft.fft2(x).imag, struct((2, 3, 4)), precise=False)
linear("convolve", lambda x, k: jnp.convolve(x, k, mode="same"), struct((6,)), struct((3,)), precise=False)
linear(
    "ragged dot", lambda x, a: lax.ragged_dot(x, a, jnp.array([1, 2], jnp.int32)), X, struct((2, 4, 3)), precise=False
)
linear(
    "triangular solve",
    lambda x, a: lax.linalg.triangular_solve(jnp.eye(3) + jnp.tril(a), x, left_side=True),
    struct((3, 2)),
    struct((3, 3)),
    precise=False,
)
linear(
    "tridiagonal solve",
    lambda x, a: lax.linalg.tridiagonal_solve(a, a * a + 5, a, x),
    struct((4, 2)),
    struct((4,)),
    precise=False,
)
linear("solve", lambda x, a: jnp.linalg.solve(jnp.eye(3) * 3 + a, x), struct((3, 2)), struct((3, 3)), precise=False)
linear("expm action", lambda x, a: jax.scipy.linalg.expm(a) @ x, struct((3, 2)), struct((3, 3)), precise=False)
