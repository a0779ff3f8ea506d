"""The transpose of pull-backs that drop what lies out of bounds: ⟨J v, c⟩ = ⟨v, Jᵀ c⟩."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax.compiler.ir import linear_transpose

I = jnp.asarray([0, 7, 2, -9])


def read(w):
    return w[I] * 2.0


def read_in_a_loop(w):
    return lax.scan(lambda total, i: (total + w[I + i], w[I]), jnp.zeros(4), jnp.arange(3))


def read_in_a_branch(w):
    return lax.cond(w.sum() > 100, lambda w: w[:4], lambda w: w[I], jnp.concatenate([w, w]))


@pytest.mark.parametrize("function", [read, read_in_a_loop, read_in_a_branch], ids=lambda f: f.__name__)
def test_pushes_and_pulls_are_transposes(function):
    rng = np.random.RandomState(0)
    w, v = jnp.asarray(rng.standard_normal((2, 3)))
    out, pull = jax.vjp(function, w)
    push = linear_transpose(lambda bar: pull(bar)[0], out)
    bar = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), out)
    pushed = push(v)[0]
    dot = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(pushed), jax.tree.leaves(bar), strict=True))
    np.testing.assert_allclose(dot, jnp.vdot(v, pull(bar)[0]), rtol=1e-12)
