"""Ranges of data: what is said to keep its sign does, on random inputs; and spiking, rectified and gated nets do."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax.compiler.analysis import analyse
from etrax.compiler.opened._cut import OpenStep
from etrax.frontends import bind

H = 3


@jax.custom_jvp
def spike(v):
    return jnp.heaviside(v, 0.0)


@spike.defjvp
def _(primals, tangents):
    return spike(*primals), tangents[0] / (1 + jnp.abs(primals[0])) ** 2


def _op(f, g=lambda x: x):
    """A model that multiplies f(h) and g(x) with weights; its state is f of a sum."""

    def step(params, h, x):
        h = f(g(x) @ params["w"] + h @ params["u"])
        return h, h

    return step


def _loop(f):
    return lambda a: jax.lax.fori_loop(0, 3, lambda _, c: f(c, a), jnp.zeros_like(a))


# name: (model, data of w, data of u) for inputs of any sign, then for inputs that are never negative
CASES = {
    "relu": (_op(jax.nn.relu), (False, True), (True, True)),
    "sigmoid": (_op(jax.nn.sigmoid), (False, True), (True, True)),
    "one minus sigmoid": (_op(lambda a: 1 - jax.nn.sigmoid(a)), (False, True), (True, True)),
    "spikes": (_op(spike), (False, True), (True, True)),
    "tanh": (_op(jnp.tanh), (False, False), (True, False)),
    "square of x": (_op(jnp.exp, jnp.square), (True, True), (True, True)),
    "product with itself": (_op(lambda a: a * a, lambda x: x * x), (True, True), (True, True)),
    "negative": (_op(lambda a: jnp.minimum(a, 0.0)), (False, False), (True, False)),
    "difference": (_op(lambda a: jax.nn.relu(a) - jax.nn.relu(-a)), (False, False), (True, False)),
    "clipped": (_op(lambda a: jnp.clip(a, 0.0, 2.0), lambda x: jnp.clip(x, 0.1, 1.0)), (True, True), (True, True)),
    "mean over a softmax": (_op(jax.nn.softmax, lambda x: jnp.abs(x) / 3), (True, True), (True, True)),
    "one hot": (_op(jax.nn.relu, lambda x: jax.nn.one_hot(jnp.argmax(x), H)), (True, True), (True, True)),
    "branch": (
        _op(lambda a: jax.lax.cond(a.sum() > 0, jax.nn.relu, jnp.exp, a), jnp.abs),
        (True, True),
        (True, True),
    ),
    "a loop that adds": (_op(_loop(lambda c, a: c + jnp.abs(a)), jnp.abs), (True, True), (True, True)),
    "a loop that subtracts": (_op(_loop(lambda c, a: c - jnp.abs(a)), jnp.abs), (True, False), (True, False)),
    "a loop that turns the sign": (_op(_loop(lambda c, a: jnp.abs(a) - c), jnp.abs), (True, False), (True, False)),
    "a loop over slices": (
        _op(lambda a: jax.lax.scan(lambda c, r: (c - 1.0, r * r), 0.0, a)[1], jnp.abs),
        (True, True),
        (True, True),
    ),
    "where": (_op(lambda a: jnp.where(a > 0, a, 0.5)), (False, False), (True, False)),
}


def compiled(name):
    rng = np.random.RandomState(0)
    params = {k: jnp.asarray(rng.standard_normal((H, H))) for k in "wu"}
    bound = bind(CASES[name][0], (jnp.zeros(H),), params=params, hidden=jnp.zeros(H), batch_size=None)
    return analyse(bound.step), params


def by_param(facts, ranges):
    return tuple(ranges[facts.sites_of(p)[0]].one_sign for p in (1, 0))  # w, then u: parameters are sorted


@pytest.mark.parametrize("name", CASES)
def test_found(name):
    facts, _ = compiled(name)
    assert by_param(facts, facts.ranges) == CASES[name][1]
    assert by_param(facts, facts.ranges_of_positive) == CASES[name][2]


@pytest.mark.parametrize("name", CASES)
def test_bounds_hold(name):
    """Data seen in a run lie in the range that was found."""
    facts, params = compiled(name)
    opened = OpenStep(facts.step, facts.sites, frozenset())
    rng = np.random.RandomState(1)
    for positive, ranges in ((False, facts.ranges), (True, facts.ranges_of_positive)):
        h = jnp.zeros(H)
        for _ in range(20):
            x = rng.standard_normal(H) * 2
            x = jnp.asarray(np.abs(x) if positive else x)
            outs, seen = opened([*jax.tree.leaves(params), h, x], {})
            for j, op in seen.items():
                for u in op.data:
                    assert ranges[j].lo <= float(u.min()) and float(u.max()) <= ranges[j].hi
            h = jnp.clip(outs[0], -3, 3)


def test_warnings():
    """pp_prop warns of what the model does when it is compiled, of what the inputs do when they come, and once."""
    params = {k: jnp.ones((H, H)) for k in "wu"}
    make = lambda name: etrax.compile(CASES[name][0], "pp_prop", jnp.zeros(H), params=params, hidden=jnp.zeros(H))
    with pytest.warns(etrax.RuleWarning, match="which the model does not rule out"):
        make("tanh")
    learner = make("relu")
    assert "if the inputs of the step are never negative" in learner.report.verdicts["w",].reason
    run = learner.value_and_grad(lambda o, t: o.sum(), window=2)
    x = jnp.asarray(np.random.RandomState(0).standard_normal((4, H)))
    with pytest.warns(etrax.RuleWarning, match="as the inputs do") as seen:
        run(params, learner.init(), x)
        run(params, learner.init(), x)
    assert len(seen) == 1
    run = make("relu").value_and_grad(lambda o, t: o.sum(), window=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(params, learner.init(), jnp.abs(x))
        assert "(they are)" in make("square of x").report.verdicts["w",].reason
