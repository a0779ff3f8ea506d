"""Elements that are said to be zero are zero, for any numbers; and where they are known to be, it is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from etrax.compiler.dataflow import zeros_of_variables
from etrax.compiler.ir import trace_step

EYE = np.eye(3, dtype=bool)
AT = np.arange(3)
# Of each value: how it is made of a vector a and a matrix m, and which elements may be nonzero (None: all).
VALUES = {
    "diag": (lambda a, m: jnp.diag(a), EYE),
    "diag above": (lambda a, m: jnp.diag(a[1:], 1), np.eye(3, k=1, dtype=bool)),
    "times identity": (lambda a, m: jnp.eye(3) * jnp.exp(a), EYE),
    "divided": (lambda a, m: jnp.eye(3) / m, EYE),
    "transposed": (lambda a, m: jnp.diag(a).T * 2 - jnp.eye(3), EYE),
    "power": (lambda a, m: jnp.diag(a) ** 2, EYE),
    "tril": (lambda a, m: jnp.tril(m), np.tri(3, dtype=bool)),
    "written": (lambda a, m: jnp.zeros((3, 3)).at[AT, AT].set(a), EYE),
    "added": (lambda a, m: jnp.zeros((3, 3)).at[AT, AT].add(a), EYE),
    "blocks": (lambda a, m: jax.scipy.linalg.block_diag(m[:1, :1], m[:2, :2]), EYE[[0, 1, 1]][:, [0, 1, 1]]),
    "picked by data": (lambda a, m: jnp.where(a > 0, jnp.diag(a), 0 * jnp.eye(3)), EYE),
    "two choices": (lambda a, m: jnp.where(a > 0, jnp.diag(a), jnp.diag(a[1:], 1)), EYE | np.eye(3, k=1, dtype=bool)),
    "turned round": (lambda a, m: jnp.flip(jnp.diag(a), 0), EYE[::-1]),
    "a part": (lambda a, m: jnp.diag(a)[1:, :2], EYE[1:, :2]),
    "summed": (lambda a, m: jnp.stack([jnp.diag(a), jnp.diag(a[1:], 1)]).sum(0), EYE | np.eye(3, k=1, dtype=bool)),
    "full": (lambda a, m: jnp.diag(a) + m, None),
    "exponential": (lambda a, m: jnp.exp(jnp.diag(a)), None),
    "where data say": (lambda a, m: jnp.where(m > 0, m, 0.0), None),
    "written where data say": (lambda a, m: jnp.zeros((3, 3)).at[jnp.argmax(a), AT].set(a), None),
    "loop": (lambda a, m: jax.lax.fori_loop(0, 2, lambda i, c: c * jnp.eye(3), m), None),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_zeros(name):
    make, want = VALUES[name]
    structs = jax.ShapeDtypeStruct((3,), float), jax.ShapeDtypeStruct((3, 3), float)
    step = trace_step(lambda params, hidden, other: (hidden, None, make(*params)), structs, None, ())
    (out,) = step.jaxpr.outvars
    nonzero = zeros_of_variables(step)[out].nonzero()
    for seed in range(3):
        rng = np.random.RandomState(seed)
        values = np.asarray(make(jnp.asarray(rng.standard_normal(3)), jnp.asarray(rng.standard_normal((3, 3)))))
        assert nonzero is None or not values[~nonzero].any()
    assert (nonzero is None) == (want is None)
    assert want is None or np.array_equal(nonzero, np.asarray(want, bool))
