"""Settings of JAX and derivative rules that are the caller's own: what Etrax does under them keeps to them."""

from functools import wraps

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.ode import odeint
from tests.zoo import ZOO

import etrax

T, B, I, H = 5, 2, 3, 4
RNG = np.random.RandomState(0)
PARAMS = {k: jnp.asarray(RNG.standard_normal(s) * 0.4) for k, s in (("w", (I, H)), ("r", (H, H)), ("b", (H,)))}
XS, YS = (jnp.asarray(RNG.standard_normal((T, B, n))) for n in (I, H))
FAST = {"size/one_number", "cells/gru"}
RULES = ["d_rtrl", "pp_prop", "rtrl", etrax.snap(2), etrax.uoro(1), etrax.e_prop(0.3, "random", key=1), "three_factor"]


def cell(p, h, x):
    h = jnp.tanh(0.9 * h + x @ p["w"] + h @ p["r"] + p["b"][None])
    return h, h


def loss(output, target):
    return ((output - target) ** 2).mean()


def allowed(function):
    """A model's own code may do what it likes."""

    @wraps(function)
    def run(*args):
        with jax.numpy_rank_promotion("allow"):
            return function(*args)

    return run


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
def test_ranks_are_never_joined_silently(rule):
    with jax.numpy_rank_promotion("raise"):
        learner = etrax.compile(cell, rule, XS[0], params=PARAMS, hidden=jnp.zeros((B, H)))
        optimizer, mask = optax.sgd(0.1), jnp.ones((T, B))
        learner.value_and_grad(loss, window=2)(PARAMS, learner.init(), XS, YS, mask)
        learner.train(optimizer, loss, window=2)(PARAMS, optimizer.init(PARAMS), learner.init(), XS, YS)
        learner.step(PARAMS, learner.init(), XS[0])
        etrax.testing.bptt(learner, loss)(PARAMS, learner.hidden, XS, YS, mask)
        learner.online(optimizer, loss).feed(XS[0], YS[0])
        assert str(learner.report)


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_ranks_over_the_zoo(name):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    with jax.numpy_rank_promotion("allow"):
        model = entry()
        inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    with jax.numpy_rank_promotion("raise"):
        learner = etrax.compile(allowed(model.step), "d_rtrl", *first, params=model.params, hidden=model.hidden)
        run = learner.value_and_grad(allowed(model.loss), window=2)
        found, _ = run(model.params, learner.init(), inputs, targets)
    plain = etrax.compile(model.step, "d_rtrl", *first, params=model.params, hidden=model.hidden)
    want, _ = plain.value_and_grad(model.loss, window=2)(model.params, plain.init(), inputs, targets)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_a_callers_own_ranks_are_still_refused():
    """What is forbidden is forbidden in the step and in the loss."""
    joined = lambda p, h, x: (jnp.tanh(h + x @ p["w"] + p["b"]),) * 2
    with jax.numpy_rank_promotion("raise"):
        with pytest.raises(Exception, match="rank_promotion"):
            etrax.compile(joined, "d_rtrl", XS[0], params=PARAMS, hidden=jnp.zeros((B, H)))
        learner = etrax.compile(cell, "d_rtrl", XS[0], params=PARAMS, hidden=jnp.zeros((B, H)))
        with pytest.raises(Exception, match="rank_promotion"):
            learner.value_and_grad(lambda o, t: (o - t[0]).sum(), window=2)(PARAMS, learner.init(), XS, YS)


@pytest.mark.parametrize("check_finite", [False, True])
def test_warm_calls_transfer_nothing(check_finite):
    """On a GPU each would be a copy between host and device, at every sample."""
    learner = etrax.compile(cell, "d_rtrl", XS[0], params=PARAMS, hidden=jnp.zeros((B, H)), check_finite=check_finite)
    optimizer = optax.adam(1e-2)
    state, opt_state, x, y = learner.init(), optimizer.init(PARAMS), XS[0], YS[0]
    masks = (None, jnp.ones(T), jnp.ones((T, B)) > 0)
    gradient, train = learner.value_and_grad(loss, window=2), learner.train(optimizer, loss, window=2)
    streams = [learner.online(optimizer, loss, window=k) for k in (1, 2)]

    def everything():
        for mask in masks:
            gradient(PARAMS, state, XS, YS, mask)
            train(PARAMS, opt_state, state, XS, YS, mask)
        learner.step(PARAMS, state, x)
        for stream in streams:
            stream.feed(x, y)
            stream.feed(x, y)
            stream.state = state

    everything()
    with jax.transfer_guard("disallow"):
        everything()


def ordinary(w, h, x):
    """A step that solves a differential equation: its backward rule reads the times by a counter."""
    h = odeint(lambda y, t, w, x: jnp.tanh(w * y) + x, h, jnp.array([0.0, 0.5, 1.0]), w, x, rtol=1e-10, atol=1e-10)[-1]
    return h, h


@jax.custom_vjp
def filtered(h, taps):
    return h * taps[0] + jnp.roll(h, 1) * taps[1]


def _back(taps, g):
    def one(i, total):
        return total + taps[i] * jnp.roll(g, -i)  # `taps` was a constant of the step

    return jax.lax.fori_loop(0, 2, one, jnp.zeros_like(g)), jnp.zeros_like(taps)


filtered.defvjp(lambda h, taps: (filtered(h, taps), taps), _back)
TAPS = np.array([0.5, 0.25])


def by_constant(w, h, x):
    h = jnp.tanh(filtered(h, TAPS) + w * x)
    return h, h


def by_constant_in_a_loop(w, h, x):
    h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(filtered(h, TAPS) + w * x), None), h, None, length=2)
    return h, h


def weight_by_constant(w, h, x):
    h = jnp.tanh(0.5 * h + x * filtered(w, TAPS))
    return h, h


BY_CONSTANT = (by_constant, by_constant_in_a_loop, weight_by_constant)
CALLED = [(step, rule) for step in BY_CONSTANT for rule in ("d_rtrl", "rtrl")]


@pytest.mark.parametrize(("step", "rule"), [(ordinary, "d_rtrl"), *CALLED])
def test_rules_of_the_user_are_given_arrays(step, rule):
    """A derivative rule may index its constants by a tracer. BPTT: in one window, and where the verdict is exact."""
    w, xs, ys = (jnp.asarray(RNG.standard_normal(s) * 0.5) for s in ((3,), (T, 3), (T, 3)))
    learner = etrax.compile(step, rule, xs[0], params=w, hidden=jnp.zeros(3))

    def total(w):
        return jax.vmap(loss)(jax.lax.scan(lambda h, x: step(w, h, x), jnp.zeros(3), xs)[1], ys).mean()

    want, wanted = jax.value_and_grad(total)(w)
    exact = learner.report.verdicts[()].kind == "exact"
    assert exact or rule == "d_rtrl"
    for window in (2, T) if exact else (T,):
        (value, grads), _ = learner.value_and_grad(loss, window=window)(w, learner.init(), xs, ys)
        np.testing.assert_allclose(value, want, rtol=1e-7)
        np.testing.assert_allclose(grads, wanted, rtol=1e-6)
