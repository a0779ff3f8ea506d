"""Elementwise weights, and ops that a user registers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive as JaxPrimitive
from jax.interpreters import ad, mlir

import etrax
from etrax.compiler.analysis import analyse
from etrax.compiler.ir import trace_step
from etrax.compiler.ops import ALIGNED, OpRule, register_weight_op, rule_for
from etrax.compiler.ops._base import _RULES, call_of


@pytest.mark.parametrize("f", [jnp.add, jnp.multiply, jnp.subtract, jnp.divide, jnp.maximum, jnp.power])
def test_elementwise(f):
    """The weight itself, broadcast to the op's shape, is the traced quantity."""
    eqn = jax.make_jaxpr(f)(jnp.ones((2, 3)), jnp.ones((2, 3))).eqns[-1]
    call = call_of(eqn, 1)
    rule = rule_for(call)
    assert rule is ALIGNED and not rule.mixes
    c, g = jnp.arange(12.0).reshape(2, 2, 3), jnp.arange(6.0).reshape(2, 3)
    trace = rule.outer(call, (), (), c)
    assert trace.shape == rule.trace_shape(call)
    np.testing.assert_allclose(rule.apply(call, (), trace, g), (c * g).sum(0))
    np.testing.assert_allclose(rule.grad(call, (), (), c), c.sum(0))
    np.testing.assert_allclose(rule.outer(call, (), (), c * g), trace * rule.spread(call, (), g))


@pytest.fixture
def registered():
    """Register rules and forget them again."""
    before = {name: list(rules) for name, rules in _RULES.items()}
    yield register_weight_op
    _RULES.clear()
    _RULES.update(before)


def square_rule(accepts):
    return OpRule("mine", True, accepts, lambda call: call.out.shape, None, None, None, None)


def sites_of(step, params, hidden, x):
    fn = lambda p, h, o, x: (lambda r: (r[0], o, r[1]))(step(p, h, x))
    return analyse(trace_step(fn, params, hidden, (x,))).sites


def dense(w, h, x):
    h = 0.9 * h + x @ w
    return h, h


def test_a_registered_op_is_used(registered):
    arrays = jnp.ones((3, 4)), jnp.ones((2, 4)), jnp.ones((2, 3))
    assert [s.rule.name for s in sites_of(dense, *arrays)] == ["matmul"]
    registered("dot_general", square_rule(lambda call: call.w.shape == (3, 4)))
    assert [s.rule.name for s in sites_of(dense, *arrays)] == ["mine"]
    others = jnp.ones((3, 5)), jnp.ones((2, 5)), jnp.ones((2, 3))
    assert [s.rule.name for s in sites_of(dense, *others)] == ["matmul"]


def test_the_last_one_registered_is_asked_first(registered):
    registered("dot_general", square_rule(lambda call: True))
    second = square_rule(lambda call: True)
    registered("dot_general", second)
    assert sites_of(dense, jnp.ones((3, 4)), jnp.ones((2, 4)), jnp.ones((2, 3)))[0].rule is second


def test_a_wrong_rule_is_refused():
    with pytest.raises(TypeError, match="`register_weight_op` takes an `OpRule`, got function"):
        register_weight_op("dot_general", lambda call: None)


# y[b, o] = Σ_i u[b, i]² w[i, o]: a product of the squares of its data, as a primitive of its own.
squares_p = JaxPrimitive("squares_test")


def squares(u, w):
    return u**2 @ w


squares_p.def_impl(squares)
squares_p.def_abstract_eval(lambda u, w: u.update(shape=(u.shape[0], w.shape[1]), weak_type=False))
mlir.register_lowering(squares_p, mlir.lower_fun(squares, multiple_results=False))
ad.defjvp(
    squares_p,
    lambda du, u, w: (2 * u * du) @ w,
    lambda dw, u, w: u**2 @ dw,
)
SQUARES = OpRule(
    name="product of squares",
    mixes=True,
    accepts=lambda call: call.weight == 1,
    trace_shape=lambda call: (*call.operands[0].shape, call.out.shape[-1]),
    outer=lambda call, fixed, u, c: jnp.einsum("kbi,kbo->bio", u[0] ** 2, c),
    spread=lambda call, fixed, p: p[:, None, :],
    apply=lambda call, fixed, trace, g: jnp.einsum("bio,bo->io", trace, g),
    grad=lambda call, fixed, u, g: jnp.einsum("kbi,kbo->io", u[0] ** 2, g),
)


def by_squares(w, h, x):
    h = 0.9 * h + squares_p.bind(x, w)
    return h, h


@pytest.mark.parametrize("window", [1, 3])
def test_a_weight_op_is_one_record_and_one_line(registered, window):
    """The six functions and their registration: no kernels, no record of the primitive, and the gradient is exact."""
    registered("squares_test", SQUARES)
    rng = np.random.RandomState(0)
    w, h, xs, ys = (jnp.asarray(rng.standard_normal(s)) for s in ((3, 4), (2, 4), (7, 2, 3), (7, 2, 4)))
    learner = etrax.compile(by_squares, "d_rtrl", xs[0], params=w, hidden=h)
    assert learner.report.verdicts[()].kind == "exact" and learner.facts.sites[0].rule is SQUARES
    loss = lambda output, target: ((output - target) ** 2).mean()
    (_, found), _ = learner.value_and_grad(loss, window=window)(w, learner.init(), xs, ys)

    def total(w):
        plain = lambda h, xy: ((h := 0.9 * h + xy[0] ** 2 @ w), loss(h, xy[1]))
        return jax.lax.scan(plain, h, (xs, ys))[1].mean()

    np.testing.assert_allclose(found, jax.grad(total)(w), rtol=1e-12)
