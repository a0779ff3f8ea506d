"""Bounds hold, and what is said to give zero for zero does, on numbers drawn within the ranges of the operands."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from etrax.compiler.primitives import ANY, POSITIVE, UNIT, Range, record_of

SHAPE = (40,)
NEGATIVE = Range(-np.inf, 0)
RANGES = [ANY, POSITIVE, UNIT, NEGATIVE, Range(-2, 3), Range(1, 4)]
# primitive: a function that is this primitive alone
UNARY = {
    **{name: getattr(lax, name) for name in (
        "neg", "logistic", "exp", "exp2", "sqrt", "rsqrt", "square", "cosh", "tanh", "sin", "cos", "erf", "sign",
        "log1p", "floor", "ceil", "abs", "is_finite", "cumsum", "cummax", "cummin",
    )},
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "reduce_sum": jnp.sum,
    "reduce_max": jnp.max,
    "reduce_min": jnp.min,
    "reshape": lambda x: x.reshape(4, 10),
    "rev": lambda x: lax.rev(x, (0,)),
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x, (2, *SHAPE)),
    "convert_element_type": lambda x: x.astype(jnp.float32),
    "slice": lambda x: x[3:7],
    "gather": lambda x: x.at[jnp.array([1, 99])].get(mode="fill", fill_value=0),
}  # fmt: skip
BINARY = {
    **{name: getattr(lax, name) for name in ("add", "sub", "mul", "div", "max", "min", "eq", "lt", "ge", "ne")},
    "concatenate": lambda x, y: jnp.concatenate([x, y]),
    "dot_general": jnp.dot,
    "pad": lambda x, y: lax.pad(x, y[0], ((1, 0, 0),)),
    "dynamic_update_slice": lambda x, y: lax.dynamic_update_slice(x, y[:3], (2,)),
    "scatter-add": lambda x, y: x.at[jnp.array([1, 1])].add(y[:2]),
}  # fmt: skip
CALLS = UNARY | BINARY


def equation(name, args):
    """The equation of the primitive in the function that stands for it."""
    jaxpr = jax.make_jaxpr(CALLS[name])(*args)
    inner = [e for eqn in jaxpr.eqns for e in (eqn.params["jaxpr"].eqns if "jaxpr" in eqn.params else [eqn])]
    return next(eqn for eqn in inner if eqn.primitive.name == name)


def placed(name, eqn, given, other):
    """One entry per operand of the equation: those of the numbers, and `other` for indices and the like."""
    if name == "scatter-add":  # array, indices, what is added
        return [given[0], other, given[1]]
    return [*given, *[other] * (len(eqn.invars) - len(given))]


def draw(rng, seed):
    values = 10 * np.random.RandomState(seed).standard_normal(SHAPE)
    values[:3] = 0, 1, -1
    return jnp.asarray(np.clip(values, rng.lo, rng.hi))


@pytest.mark.parametrize("name", CALLS)
def test_bounds_hold(name):
    bounds = record_of(name).bounds
    assert bounds is not None
    for ranges in product(RANGES, repeat=1 + (name in BINARY)):
        args = [draw(rng, k) for k, rng in enumerate(ranges)]
        eqn = equation(name, args)
        found = bounds(eqn, placed(name, eqn, ranges, ANY))
        values = np.asarray(CALLS[name](*args)).astype(float)
        values = values[np.isfinite(values)]
        assert (values >= found.lo).all() and (values <= found.hi).all(), (ranges, found)


@pytest.mark.parametrize("name", [name for name in CALLS if record_of(name).zero is not None])
def test_zero_gives_zero(name):
    """For every choice of operands that are zero, the record promises no more than is true."""
    zero = record_of(name).zero
    for zeros in product([False, True], repeat=1 + (name in BINARY)):
        args = [jnp.zeros(SHAPE) if z else draw(Range(1, 2), k) for k, z in enumerate(zeros)]
        eqn = equation(name, args)
        if zero(eqn, placed(name, eqn, zeros, False)):
            assert not np.nan_to_num(CALLS[name](*args)).any()
    assert zero(eqn, [True] * len(eqn.invars))
