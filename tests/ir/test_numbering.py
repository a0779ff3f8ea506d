"""Results that are computed alike have one key, others never."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from etrax.ir import number_outputs


def keys(f, *args):
    return number_outputs(jax.make_jaxpr(f)(*args))


X, Y = jnp.arange(3.0), jnp.ones(3)


def test_alike():
    a, b, c, d = keys(lambda x, y: (x * y + 1, x * y + 1, jax.jit(jnp.multiply)(x, y) + 1, y * x + 1), X, Y)
    assert a == b == c
    assert d != a  # it is equal, but that is not looked for


def test_arguments_and_settings_count():
    f = lambda x, y: (x, y, x.reshape(1, 3), x.reshape(3, 1), jnp.sum(x), jnp.max(x), x + 1, x + 2)
    found = keys(f, X, Y)
    assert len(set(found)) == len(found)


def test_constants_by_their_one_number():
    one, other = np.full(3, 2.0), np.full(3, 2.0)
    mixed, same = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0])
    a, b, c, d, e = keys(lambda x: (x * one, x * other, x * mixed, x * same, x * mixed), X)
    assert a == b
    assert c == e
    assert c != d  # they might be changed in place


def test_code_equals_only_itself():
    """Two loops may have the same text and other constants."""

    def loop(scale):
        return lambda x: lax.scan(lambda c, _: (c * scale, None), x, None, length=2)[0]

    one, two = loop(np.array([1.0, 2.0, 3.0])), loop(np.array([3.0, 2.0, 1.0]))
    a, b = keys(lambda x: (one(x), two(x)), X)
    assert a != b
