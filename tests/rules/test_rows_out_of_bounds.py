"""Embeddings that are read at rows that do not exist, below functions of their rows: gradients against BPTT.

JAX reads the nearest row or a fill value there and passes no gradient to the table; what follows the table gets one.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax

ROWS = 3
TOKENS = np.array([[0, 7], [2, -9], [3, 1], [-1, 0], [5, 2]])  # of both lanes, inside and outside


def gates(row):
    return jnp.where(row >= 0, row + 0.5, jax.nn.sigmoid(row))


def without_nan(row):
    return jnp.nan_to_num(jnp.tanh(row), nan=0.4)


def step_of(function, **reading):
    def step(params, h, token):
        row = params["E"].at[token].get(**reading)
        h = 0.9 * h + function(row * params["scale"] + params["b"]) @ params["w"]
        return h, h

    return step


def loss(output, target=None):
    return ((output + 0.3) ** 2).sum()


def oracle(step, params, hidden, tokens):
    total = 0.0
    for token in tokens:
        hidden, output = step(params, hidden, token)
        total += loss(output)
    return total


def both(step, tokens, rule, window):
    rng = np.random.RandomState(0)
    shapes = {"E": (ROWS, 2), "scale": (2,), "b": (2,), "w": (2, 3)}
    params = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
    hidden = jnp.asarray(rng.standard_normal((2, 3)))
    tokens = jnp.asarray(tokens)
    learner = etrax.compile(step, rule, tokens[0], params=params, hidden=hidden)
    gradient = learner.value_and_grad(loss, window=window, reduction="sum")
    (value, grads), _ = gradient(params, learner.init(), tokens, None)
    want = jax.value_and_grad(lambda p: oracle(step, p, hidden, tokens))(params)
    assert all(verdict.kind == "exact" for verdict in learner.report.verdicts.values())
    return (value, grads), want


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("function", [jnp.tanh, gates, without_nan], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "reading", [{"mode": "promise_in_bounds"}, {"mode": "clip"}, {"mode": "fill", "fill_value": 2.0}], ids=str
)
def test_numbers_of_rows_that_do_not_exist(reading, function, dtype, window):
    tokens = TOKENS.astype(dtype) if dtype == "int32" else np.abs(TOKENS).astype(dtype)
    got, want = both(step_of(function, **reading), tokens, etrax.d_rtrl(), window)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), got, want)


@pytest.mark.parametrize("function", [jnp.tanh, gates, without_nan], ids=lambda f: f.__name__)
def test_rows_that_would_be_filled_with_nan(function):
    """No NaN comes from rows that nobody reads, and what replaces NaN sees it."""
    step = step_of(function, mode="fill")
    got, want = both(step, np.abs(TOKENS) % ROWS, etrax.d_rtrl(), 1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), got, want)
    got, want = both(step, TOKENS, etrax.d_rtrl(), 1)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    np.testing.assert_allclose(got[1]["w"], want[1]["w"], rtol=1e-10)


def columns(params, h, x, i):
    h = 0.9 * h + jnp.tanh(params["table"][:, i].T * params["gain"]) @ params["w"]
    return h, h


def single_elements(params, h, x, i):
    h = 0.9 * h + x @ params["w"] + params["table"].T[i, jnp.arange(2)]
    return h, h


def outputs_of_an_op(params, h, x, i):
    h = 0.9 * h + (x @ params["w"])[i] * params["gain"]
    return h, h


@pytest.mark.parametrize("step", [columns, single_elements, outputs_of_an_op], ids=lambda f: f.__name__)
def test_elements_that_do_not_exist(step):
    rng = np.random.RandomState(1)
    shapes = {"table": (2, ROWS), "gain": (2,), "w": (2, 2)}
    params = {name: jnp.asarray(rng.standard_normal(shape)) for name, shape in shapes.items()}
    hidden = jnp.zeros((2, 2) if step is columns else 2)
    x, i = jnp.asarray(rng.standard_normal((5, 2))), jnp.asarray(TOKENS)
    learner = etrax.compile(step, "d_rtrl", x[0], i[0], params=params, hidden=hidden)
    (_, grads), _ = learner.value_and_grad(loss, window=1, reduction="sum")(params, learner.init(), (x, i), None)

    def whole(params):
        h, total = hidden, 0.0
        for inputs in zip(x, i, strict=True):
            h, output = step(params, h, *inputs)
            total += loss(output)
        return total

    want = jax.grad(whole)(params)
    exact = [path[0] for path, verdict in learner.report.verdicts.items() if verdict.kind == "exact"]
    assert len(exact) >= 2
    for name in exact:
        np.testing.assert_allclose(grads[name], want[name], rtol=1e-10, atol=1e-12)
