"""Results that are computed alike have one key, others never."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from etrax.compiler.dataflow import number_outputs


def keys(f, *args):
    return number_outputs(jax.make_jaxpr(f)(*args))


X, Y = jnp.arange(3.0), jnp.ones(3)


def test_alike():
    a, b, c, d = keys(lambda x, y: (x * y + 1, x * y + 1, jax.jit(jnp.multiply)(x, y) + 1, y * x + 1), X, Y)
    assert a == b == c == d


def test_alike_up_to_a_unit():
    """Real and imaginary parts of what a rotation is multiplied with: two keys, and a sign."""
    one, turned = np.full(3, 1 + 0j), np.full(3, -1j)
    f = lambda z: (jnp.real(z * one), -jnp.imag(z * one), jnp.real(z * turned), -jnp.imag(z * turned))
    a, b, c, d = keys(f, X + 1j)
    assert a == d and b[1] == c[1] and b[0] == -c[0] and a[1] != b[1]
    p, q, r, s = keys(lambda x, y: (x - y, y - x, x + y, (x > 0).astype(float) * 0.0), X, Y)
    assert p[1] == q[1] and p[0] == -q[0] and r[1] != p[1] and s[0] == 0


def test_what_is_no_unit_is_another_value():
    minus, zeros = np.full(3, -1.0), np.array([1.0, -1.0, 1.0])
    f = lambda x: (jnp.abs(x), jnp.abs(-x), jnp.exp(x * minus), jnp.exp(x), x * zeros, x * 2.0, x * -2.0)
    found = keys(f, X)
    assert len({k for _, k in found[:4]}) == 4
    assert found[5][1] == found[6][1] and found[5][0] == -found[6][0] and found[4][1] != found[5][1]
    casts = keys(lambda x: (lax.convert_element_type(-x, bool), lax.convert_element_type(x, bool)), X)
    assert casts[0][1] != casts[1][1]


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
