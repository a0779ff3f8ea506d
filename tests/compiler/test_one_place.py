"""A new primitive is one record, and a new analysis one domain: nothing else is told of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive as JaxPrimitive
from jax.interpreters import ad, mlir

import etrax
from etrax._compat import open_jaxpr
from etrax.compiler.analysis import is_steep
from etrax.compiler.dataflow import Domain, Solver, number_outputs, propagate, uniformity
from etrax.compiler.primitives import Primitive, all_zero, pointwise, register_primitive
from etrax.compiler.primitives._name import name_of_negative
from etrax.compiler.primitives._range import minus
from etrax.compiler.primitives._record import _REGISTERED, TABLE

flipped = JaxPrimitive("flipped_sign")
flipped.def_impl(lambda x: -x)
flipped.def_abstract_eval(lambda x: x)
mlir.register_lowering(flipped, mlir.lower_fun(lambda x: -x, multiple_results=False))
ad.deflinear2(flipped, lambda ct, x: [flipped.bind(ct)])

RECORD = Primitive(
    pattern=pointwise,
    zero=all_zero,
    bounds=lambda eqn, ranges: minus(ranges[0]),
    elementwise=True,
    name=name_of_negative,
)


@pytest.fixture
def record():
    register_primitive("flipped_sign", RECORD)
    yield
    del TABLE["flipped_sign"]
    _REGISTERED.discard("flipped_sign")


def step(p, h, x):
    h = 0.9 * h + flipped.bind(x @ p)
    return h, jnp.exp(flipped.bind(h))


def learner():
    return etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))


def test_a_new_primitive_without_a_record_is_reported():
    (verdict,) = learner().report.verdicts.values()
    assert verdict.kind != "exact" and "flipped_sign" in verdict.reason


def test_a_new_primitive_is_one_record(record):
    """One record serves dependences, offsets, bounds, slopes, uniformity, names and weight ops."""
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(lambda x: (flipped.bind(x), -x))(jnp.ones(4)))
    (by_record, by_jax), problems = propagate(jaxpr, consts, {0: "x"})
    assert not problems
    np.testing.assert_array_equal(by_record["x"].maps[0], by_jax["x"].maps[0])
    first, second = number_outputs(jax.make_jaxpr(lambda x: (flipped.bind(x), -x))(jnp.ones(4)))
    assert first == second
    (uniform,) = uniformity(jax.make_jaxpr(lambda s: flipped.bind(jnp.full((2, 3), s)))(1.0), [True])
    assert uniform.fixed and uniform.along == (True, True)
    assert {v.kind for v in learner().report.verdicts.values()} == {"exact"}
    assert not is_steep(learner().facts)


class Parity(Domain):
    """Whether a whole number is even (0) or odd (1); None where that is not known."""

    def constant(self, value):
        return int(value) % 2 if np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iu" else None

    def join(self, a, b):
        return a if a == b else None

    def transfer(self, at, eqn, values, note):
        name = eqn.primitive.name
        if name == "mul" and 0 in values:
            return [0]
        if None in values or name not in ("add", "sub", "mul"):
            note((at, name))
            return [None] * len(eqn.outvars)
        a, b = values
        return [a * b if name == "mul" else (a + b) % 2]


@jax.custom_jvp
def doubled(n):
    return 2 * n


doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0]))

# function of a number of unknown parity, and what is known of its result
PARITIES = {
    "constant": (lambda n: 2 * n, 0),
    "unknown": (lambda n: 2 + n, None),
    "call": (lambda n: jax.jit(lambda m: 2 * m + 1)(n), 1),
    "branches that agree": (lambda n: lax.cond(n > 0, lambda: 2 * n, lambda: 4 * n), 0),
    "branches that differ": (lambda n: lax.cond(n > 0, lambda: 2 * n, lambda: 2 * n + 1), None),
    "scan that keeps it": (lambda n: lax.scan(lambda c, _: (c + 2, None), 2 * n, None, 5)[0], 0),
    "scan that changes it": (lambda n: lax.scan(lambda c, _: (c + 1, None), 2 * n, None, 5)[0], None),
    "carried in two rounds": (
        lambda n: lax.scan(lambda c, _: ((c[1], c[2], n), None), (0 * n, 0 * n, 0 * n), None, 5)[0][0],
        None,
    ),
    "what is stacked": (lambda n: lax.scan(lambda c, _: (c + 1, 2 * c), n, None, 5)[1], 0),
    "while": (lambda n: lax.while_loop(lambda c: c < n, lambda c: c + 2, 1), 1),
    "derivative rule": (doubled, 0),
    "nested": (
        lambda n: lax.scan(lambda c, _: (lax.cond(n > 0, lambda: c + 2, lambda: 3 * c), None), 2 * n + 1, None, 5)[0],
        1,
    ),
}


@pytest.mark.parametrize("name", PARITIES)
def test_a_new_domain_is_one_file(name):
    """Constants, a join and a transfer: the solver does branches, loops, calls and rules."""
    f, parity = PARITIES[name]
    (out,) = Solver(Parity()).run(*open_jaxpr(jax.make_jaxpr(f)(3)), [None])
    assert out == parity
    if parity is not None:
        assert all((np.asarray(f(jnp.asarray(n))) % 2 == parity).all() for n in range(-4, 5))


def test_notes_are_those_of_the_last_round():
    """In the first round the carry is even; that it is not known is found in the second, and noted once."""
    solver = Solver(Parity())
    solver.run(
        *open_jaxpr(jax.make_jaxpr(lambda n: lax.scan(lambda c, _: (c * c + 1, None), 2 * n, None, 5)[0])(3)), [None]
    )
    assert [name for _, name in solver.notes] == ["mul", "add"]
    assert all(len(at) == 2 for at, _ in solver.notes)
