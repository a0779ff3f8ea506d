"""A pattern is never too small, and where it claims to be precise it is no larger than the Jacobian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from . import functions, functions_flow  # noqa: F401  (they fill the table)
from .cases import CASES, draw
from .oracle import nonzero, patterns

DRAWS = 40


def jacobian_pattern(case):
    """Where the Jacobian is not zero for at least one of several draws of the data."""
    at = jax.jit(lambda x, *data: nonzero(lambda x: case.f(x, *data), x))
    found = []
    for seed in range(DRAWS if case.data else 1):
        data = [draw(s, 100 * seed + k) for k, s in enumerate(case.data)]
        found.append(at(draw(case.x, 7 + seed), *data))
    return [np.any(rows, axis=0) for rows in zip(*found, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_pattern_holds_the_jacobian(name):
    case = CASES[name]
    found, problems = patterns(case.f, case.x, *case.data)
    assert not problems
    for pattern, truth in zip(found, jacobian_pattern(case), strict=True):
        assert not (truth & ~pattern).any(), f"too small:\n{truth.astype(int)}\n{pattern.astype(int)}"
        if case.precise:
            assert np.array_equal(truth, pattern), f"too large:\n{truth.astype(int)}\n{pattern.astype(int)}"


NOT_LINEAR = {
    "clip": lambda x: jnp.clip(x, -0.1, 0.1),
    "square": lambda x: x * x,
    "norm": lambda x: x / (1 + jnp.abs(x).sum()),
    "divides": lambda x: 1 / x,
    "product": lambda x: x @ x.T,
    "sign": jnp.sign,
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "largest": lambda x: x - x.max(),
    "sorted": lambda x: jnp.sort(x, 1),
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "chosen": lambda x: jnp.where(x > 0, x, 0),
    "branch": lambda x: lax.cond(x.sum() > 0, lambda: x, lambda: 2 * x),
    "loop": lambda x: lax.while_loop(lambda c: c.sum() < 1, lambda c: 2 * c, x),
    "rounded": lambda x: (10 * x).astype(int).astype(float),
    "cast to fewer digits": lambda x: x.astype(jnp.float32).astype(float),
    "cast to a smaller range": lambda x: x.astype(jnp.float16).astype(float),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 23),
    "floor": jnp.floor,
    "index": lambda x: x[jnp.argmax(x[:, 0])],
    "write at": lambda x: x.at[jnp.argmax(x[:, 0])].set(0),
    "extreme at": lambda x: x.at[0].max(x[1]),
    "scaled at": lambda x: jnp.ones((3, 4)).at[0].multiply(x[1]),
    "cumprod": lambda x: jnp.cumprod(x, 1),
    "solve": lambda x: jnp.linalg.solve(x[:3, :3], jnp.ones(3)),
    "conv": lambda x: jnp.convolve(x[0], x[1]),
    "special": lax.bessel_i1e,
    "unknown": lambda x: jax.pure_callback(lambda a: a, x, x),
    "added": lambda x: x + 0.1,
    "beside": lambda x: jnp.concatenate([x, jnp.ones((1, 4))]),
    "padded": lambda x: lax.pad(x, 1.0, ((1, 0, 0), (0, 0, 0))),
    "chosen one": lambda x: jnp.where(jnp.arange(4) > 2, x, 1.0),
    "one branch": lambda x, a: lax.cond(a[0, 0] > 0, lambda: x, lambda: jnp.ones_like(x)),
    "scan start": lambda x: lax.scan(lambda c, r: (c + r, None), jnp.ones(4), x)[0],
    "scan first": lambda x: lax.scan(lambda c, r: (r, c), jnp.ones(4), x)[1],
    "fori start": lambda x, a: lax.fori_loop(
        0, 3 + (a[0, 0] > 0), lambda i, c: (c[0] + c[1], c[1]), (jnp.ones((3, 4)), x)
    )[0],
    "written into": lambda x, a: a.at[0].set(x[0]),
    "in jit": lambda x: jax.jit(lambda x: x - 1.0)(x),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_what_is_not_linear_is_noted(name):
    f, x = NOT_LINEAR[name], jax.ShapeDtypeStruct((3, 4), float)
    _, problems = patterns(f, x, *[x] * (f.__code__.co_argcount - 1 if hasattr(f, "__code__") else 0))
    assert problems
    assert all(p.sources == {"x"} for p in problems)
    assert any(p.cause.source and p.cause.source.file == __file__ for p in problems) or name in (
        "sign",
        "floor",
        "special",
        "relu",
        "relu6",
    )


# Steps of a random program: each takes and gives an array of shape (2, 6).
PIECES = [
    lambda x, a: x + jnp.roll(x, 1, 1),
    lambda x, a: x * a,
    lambda x, a: x[:, ::-1],
    lambda x, a: x.reshape(6, 2).T.reshape(2, 6),
    lambda x, a: jnp.concatenate([x[:, 3:], 0 * a[:, :3]], 1),
    lambda x, a: x[:, jnp.array([0, 0, 5, 2, 2, 1])],
    lambda x, a: jnp.where(a > 0, x, 0),
    lambda x, a: jnp.take_along_axis(x, jnp.argsort(a, 1), 1),
    lambda x, a: jax.ops.segment_sum(x.T, jnp.array([0, 0, 2, 5, 2, 1]), 6).T,
    lambda x, a: x - x.mean(1, keepdims=True),
    lambda x, a: lax.pad(x, 0.0, ((0, 0, 0), (-2, 2, 0))),
    lambda x, a: lax.dynamic_update_slice(x, 2 * x[:, :2], (0, jnp.argmax(a[0]))),
    lambda x, a: lax.cond(a[0, 0] > 0, lambda: x, lambda: x[:, ::-1]),
    lambda x, a: lax.scan(lambda c, r: (0.5 * c + r, c), jnp.zeros(6), x)[1],
    lambda x, a: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "SAME"),
    lambda x, a: jnp.cumsum(x, 1),
    lambda x, a: x @ jnp.ones((6, 6)),
    lambda x, a: x.at[:, 1].set(x[:, 2]),
    lambda x, a: jnp.stack([x[0], x[0] + x[1]]),
    lambda x, a: jnp.repeat(x[:, ::2], 2, 1),
]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, len(PIECES) - 1), min_size=2, max_size=6), st.integers(0, 3))
def test_compositions(pieces, seed):
    """Chains of rules: still never too small, forwards and in reverse mode."""
    x = jax.ShapeDtypeStruct((2, 6), float)

    def f(x, a):
        for i in pieces:
            x = PIECES[i](x, a)
        return x

    for g in (f, lambda ct, a: jax.linear_transpose(lambda x: f(x, a), x)(ct)[0]):
        (pattern,), problems = patterns(g, x, x)
        assert not problems
        columns = jax.jit(lambda a, g=g: jax.vmap(lambda e: g(e.reshape(2, 6), a).reshape(-1))(jnp.eye(12)))
        for k in range(3):
            a = draw(x, 10 * seed + k)
            truth = np.asarray(columns(a)).T != 0
            assert not (truth & ~pattern).any()


def test_widening_ends():
    """A delay line that is longer than the rounds of a loop; each round adds to what depends on everything already."""
    delay = lambda x: lax.scan(lambda c, r: ((r, *c[:-1]), c[-1]), (jnp.zeros(2),) * 14, x)
    found, problems = patterns(delay, jax.ShapeDtypeStruct((70, 2), float))
    assert not problems and all(pattern.any() for pattern in found)
