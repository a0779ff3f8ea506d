"""Constants that are whole numbers, by numpy, against the equations that JAX runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax._compat import run_equation
from etrax.compiler.dataflow import whole_numbers

A, B = np.array([[3, -7, 2**31 - 1]], np.int32), np.array([[-2, -7, 5]], np.int32)
BITS = np.array([[True, False, True]])
FUNCTIONS = {
    "add": (lambda a, b: a + b, A, B),
    "sub": (lambda a, b: a - b, A, B),
    "mul": (lambda a, b: a * b, A, B),
    "unsigned": (lambda a, b: a - b, A.astype(np.uint8), B.astype(np.uint8)),
    "one number": (lambda a, b: a + b, np.int32(2**31 - 1), np.int32(1)),
    "eq": (lambda a, b: a == b, A, B),
    "ne": (lambda a, b: a != b, A, B),
    "lt": (lambda a, b: a < b, A, B),
    "le": (lambda a, b: a <= b, A, B),
    "gt": (lambda a, b: a > b, A, B),
    "ge": (lambda a, b: a >= b, A, B),
    "max": (jnp.maximum, A, B),
    "min": (jnp.minimum, A, B),
    "and": (lambda a, b: a & b, A, B),
    "or": (lambda a, b: a | b, BITS, ~BITS),
    "chosen by truth": (lambda c, a, b: lax.select_n(c, a, b), BITS, A, B),
    "chosen by number": (lambda c, a, b, d: lax.select_n(c, a, b, d), np.array([[2, 0, 1]], np.int32), A, B, A + 1),
    "one choice for all": (lambda c, a, b: lax.select_n(c, a, b), np.bool_(True), A, B),
    "narrower": (lambda a: lax.convert_element_type(a, jnp.int8), A),
    "truth": (lambda a: lax.convert_element_type(a, jnp.bool_), A - 3),
    "broadcast": (lambda a: lax.broadcast_in_dim(a, (2, 1, 3), (1, 2)), A),
    "broadcast a number": (lambda a: lax.broadcast_in_dim(a, (2, 3), ()), np.int32(5)),
    "reshape": (lambda a: lax.reshape(a, (3, 1)), A),
    "squeeze": (lambda a: lax.squeeze(a, (0,)), A),
    "concatenate": (lambda a, b: lax.concatenate([a, b], 1), A, B),
    "iota": (lambda: lax.broadcasted_iota(jnp.uint32, (2, 3, 2), 1),),
}


def the_equation(f, *args):
    (eqn,) = jax.make_jaxpr(f)(*args).jaxpr.eqns
    return eqn


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_those_of_jax(name):
    f, *args = FUNCTIONS[name]
    args = [np.asarray(a) for a in args]
    eqn = the_equation(f, *args)
    found, (want,) = whole_numbers(eqn, args), run_equation(eqn, [jnp.asarray(a) for a in args])
    assert found is not None and found.dtype == want.dtype
    np.testing.assert_array_equal(found, want)


def test_other_equations_are_left_to_jax():
    x = np.ones(3)
    assert whole_numbers(the_equation(lambda a: a + a, x), [x, x]) is None  # not of whole numbers
    assert whole_numbers(the_equation(lambda a: lax.convert_element_type(a, jnp.float32), A), [A]) is None
    assert whole_numbers(the_equation(lambda a: lax.cumsum(a, 1), A), [A]) is None
