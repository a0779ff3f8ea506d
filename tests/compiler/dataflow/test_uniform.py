"""Which values are fixed, and along which axes they are uniform: what is claimed holds for random numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax.compiler.dataflow import uniformity

ONES = np.ones((4, 6))
# f(parameter vector, parameter scalar, data) and the claim about its result: fixed, axes along which it is uniform.
CLAIMS = [
    (lambda p, s, x: s * jnp.ones((4, 6)), True, (True, True)),
    (lambda p, s, x: jnp.broadcast_to(p, (4, 6)), True, (True, False)),
    (lambda p, s, x: x * 0 + s, True, (True, True)),
    (lambda p, s, x: s - jnp.zeros((4, 6)) * jnp.exp(x), True, (True, True)),
    (lambda p, s, x: x + jnp.cos(x * 0) * p, False, (False, False)),
    (lambda p, s, x: jnp.broadcast_to(x.mean(-1, keepdims=True), (4, 6)), False, (False, True)),
    (lambda p, s, x: jnp.broadcast_to(x[:, :1], (4, 6)).reshape(4, 2, 3), False, (False, True, True)),
    (lambda p, s, x: jnp.broadcast_to(p, (4, 6)).reshape(1, 4, 2, 3, 1), True, (True, True, False, False, True)),
    (lambda p, s, x: jnp.broadcast_to(p, (4, 6)).reshape(24), True, (False,)),
    (lambda p, s, x: jnp.full((4, 6), s).reshape(8, 3).T, True, (True, True)),
    (lambda p, s, x: jnp.where(s > 0, jnp.ones((4, 6)), 2.0), True, (True, True)),
    (lambda p, s, x: jnp.array([1.0, 1.0, 2.0]) * s, True, (False,)),
    (lambda p, s, x: jnp.array([2.0, 2.0, 2.0]) * s, True, (True,)),
    (lambda p, s, x: jnp.concatenate([jnp.full((4, 1), s), jnp.full((4, 2), s)], 1), True, (True, False)),
    (lambda p, s, x: jnp.pad(jnp.full((4, 2), s), ((0, 0), (1, 0))), True, (True, False)),
    (lambda p, s, x: x @ jnp.ones((6, 3)), False, (False, True)),
    (lambda p, s, x: jnp.ones((3, 4)) @ x, False, (True, False)),
    (lambda p, s, x: lax.iota(float, 5) * s, True, (False,)),
    (lambda p, s, x: jnp.cumsum(jnp.full((4, 6), s), 1), True, (False, False)),
    (lambda p, s, x: lax.stop_gradient(x)[:, :2].sum(0), False, (False,)),
    (jax.jit(lambda p, s, x: jnp.maximum(jnp.full((4, 6), s), x[0, 0])), False, (True, True)),
    # Loops and branches.
    (lambda p, s, x: lax.fori_loop(0, 3, lambda i, c: c * s, ONES), True, (True, True)),
    (lambda p, s, x: lax.fori_loop(0, 3, lambda i, c: c + p, ONES), True, (True, False)),
    (lambda p, s, x: lax.fori_loop(0, 3, lambda i, c: c * x, 0 * ONES), False, (True, True)),
    (lambda p, s, x: lax.scan(lambda c, _: (c * s, c), jnp.ones(6), None, 4)[1], True, (False, True)),
    (lambda p, s, x: lax.scan(lambda c, r: (c + r.sum(), None), jnp.zeros(3), x)[0], False, (True,)),
    (lambda p, s, x: lax.scan(lambda c, _: ((c[1], x), None), (ONES, ONES), None, 3)[0][0], False, (False, False)),
    (lambda p, s, x: lax.while_loop(lambda c: c[0, 0] < abs(x).sum(), lambda c: 2 * c + 1, ONES), False, (True, True)),
    (lambda p, s, x: lax.cond(x[0, 0] > 0, lambda: s * ONES, lambda: ONES), False, (True, True)),
    (lambda p, s, x: lax.cond(s > 0, lambda: s * ONES, lambda: p * ONES), True, (True, False)),
]


@pytest.mark.parametrize("number", range(len(CLAIMS)))
def test_what_is_claimed_holds(number):
    function, fixed, along = CLAIMS[number]
    rng = np.random.default_rng(number)
    p, s, x, other = (jnp.asarray(rng.normal(size=shape)) for shape in ((6,), (), (4, 6), (4, 6)))
    (found,) = uniformity(jax.make_jaxpr(function)(p, s, x), [True, True, False])
    assert (found.fixed, found.along) == (fixed, along)
    value = np.asarray(function(p, s, x))
    if fixed:
        np.testing.assert_array_equal(value, function(p, s, other))
    for axis, uniform in enumerate(along):
        assert not uniform or np.allclose(value, value.take([0], axis), rtol=1e-12, atol=0)
