"""Products by reads alone against the dense matrix, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etrax._machine import machine
from etrax.compiler.ops._entries import by_entry, by_trace, entries_of, plan_product, plan_sums


def draw(rows, cols, entries, seed=0, hubs=0):
    """Entries of a matrix; `hubs` of them in one row and as many in one column."""
    rng = np.random.RandomState(seed)
    at = np.stack([rng.randint(rows, size=entries), rng.randint(cols, size=entries)])
    at[0, :hubs] = rows // 2
    at[1, hubs : 2 * hubs] = cols // 3
    return at[0], at[1], jnp.asarray(rng.standard_normal(entries))


@pytest.mark.parametrize("samples", [1, 2, 3, 8, 9])
@pytest.mark.parametrize(
    ("shape", "entries", "hubs"),
    [((50, 40), 60, 0), ((60, 90), 200, 70), ((400, 30), 700, 300), ((5, 4), 12, 0), ((7, 9), 0, 0)],
    ids=["sparse", "long rows", "three rounds", "dense", "empty"],
)
def test_product_and_its_derivative(shape, entries, hubs, samples):
    rows, cols, w = draw(*shape, entries, hubs=hubs)
    dense = np.zeros(shape)
    np.add.at(dense, (rows, cols), np.asarray(w))
    u, g = (jnp.asarray(np.random.RandomState(k).standard_normal((samples, n))) for k, n in enumerate(shape[::-1]))
    product = jax.jit(lambda w, u: plan_product(entries_of(rows, cols, shape), shape)(w)(u))
    y, pull = jax.vjp(lambda u: product(w, u), u)
    np.testing.assert_allclose(y, u @ dense.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(pull(g)[0], g @ dense, rtol=1e-12, atol=1e-12)
    found = jax.vmap(product, (None, 0))(w, jnp.stack([u, 2 * u]))
    np.testing.assert_allclose(found[1], 2 * u @ dense.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 4, 5, 16, 18])
def test_sums_over_samples(samples):
    rows, cols, _ = draw(30, 20, 80)
    rng = np.random.RandomState(1)
    u, y, trace = (jnp.asarray(rng.standard_normal((samples, n))) for n in (20, 30, 80))
    at = entries_of(rows, cols, (30, 20))
    np.testing.assert_allclose(by_entry(at, u[None], y[None]), (u[:, cols] * y[:, rows]).sum(0), rtol=1e-12)
    np.testing.assert_allclose(by_trace(at, trace, y), (trace * y[:, rows]).sum(0), rtol=1e-12)


@pytest.mark.parametrize("known", [True, False])
def test_padding_counts_for_nothing(known):
    """Entries outside of the matrix, as JAX pads with them, whether the indices are known or not."""
    rows, cols = np.array([0, 2, 3, 1]), np.array([1, 0, 2, 2])  # a (3, 2) matrix: the last two lie outside
    u, y = jnp.ones((4, 2)), jnp.ones((4, 3))
    run = lambda rows, cols: by_entry(entries_of(rows, cols, (3, 2)), u[None], y[None])
    found = run(rows, cols) if known else jax.jit(run)(rows, cols)
    np.testing.assert_array_equal(found, [4, 4, 0, 0])


def test_long_rows_are_added_in_rounds():
    """No expression has more terms than `Machine.entries_in_a_sum`."""
    rows = np.repeat([0, 1, 3], [1000, 3, 17])
    plan = plan_sums(rows, np.arange(rows.size), 4)
    assert len(plan.rounds) == 3
    assert max(len(at) for r in plan.rounds for at in r.which) <= machine().entries_in_a_sum
    found = plan(plan.weights(jnp.ones(rows.size)), jnp.arange(float(rows.size))[None])
    np.testing.assert_allclose(found[0], [np.arange(1000).sum(), 1000 + 1001 + 1002, 0, np.arange(1003, 1020).sum()])


def test_narrow_numbers_are_summed_wide():
    """Two hundred and fifty-seven ones: bfloat16 would stop counting at 256."""
    rows, cols = np.zeros(1, int), np.zeros(1, int)
    ones = jnp.ones((257, 1), jnp.bfloat16)
    found = by_entry(entries_of(rows, cols, (1, 1)), ones[None], ones[None])
    assert found.dtype == jnp.float32 and found[0] == 257
