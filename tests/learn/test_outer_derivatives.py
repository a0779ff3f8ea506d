"""Derivatives of what a learner computes, in everything that it is given: forward and reverse mode.

The oracle is finite differences in float64 along a random direction of all numbers at once: parameters, the whole state
with its trace, inputs, targets and mask. Reverse mode is held against forward mode by random cotangents.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.learn.cases import CASES, T, loss
from tests.learn.harness import in_numpy
from tests.learn.oracle import moving, put, relative_error
from tests.learn.table import ROWS

import etrax

SMOOTH = [name for name in CASES if not name.startswith("alif")]
SIZE = 1e-6


def rows():
    """(rule, model, window): in the fast suite every rule once, models in turn."""
    found = []
    for n, rule in enumerate(ROWS):
        for case in SMOOTH:
            for window in (2, 1, 3, T):
                fast = case == SMOOTH[n % len(SMOOTH)] and window == 2
                found.append(pytest.param(rule, case, window, marks=() if fast else pytest.mark.slow))
    return found


def direction(values, seed):
    rng = np.random.default_rng(seed)

    def one(a):
        v = rng.standard_normal(a.shape)
        return jnp.asarray(v + 1j * rng.standard_normal(a.shape) if jnp.iscomplexobj(a) else v).astype(a.dtype)

    return [one(a) for a in values]


def check_derivatives(function, given, tolerance=1e-6, seed=0):
    """Forward mode against finite differences, output by output; reverse mode against forward mode."""
    at, along = moving(given), direction(moving(given), seed)

    def values(numbers):
        return moving(function(*put(given, numbers)))

    there, back = (in_numpy(values, [a + s * SIZE * v for a, v in zip(at, along, strict=True)]) for s in (1, -1))
    want = [(a - b) / (2 * SIZE) for a, b in zip(there, back, strict=True)]
    _, pushed = in_numpy(lambda n, v: jax.jvp(values, (n,), (v,)), at, along)
    scale = np.linalg.norm([np.linalg.norm(w) for w in want]) / np.sqrt(len(want))
    paths = [p for p, a in jax.tree_util.tree_leaves_with_path(jax.eval_shape(function, *given)) if is_moving(a)]
    for path, got, wanted in zip(paths, pushed, want, strict=True):
        error = np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-2 * scale)
        assert error < tolerance, (path, error)
    cotangents = direction(pushed, seed + 1)
    (pulled,) = in_numpy(lambda n, c: jax.vjp(values, n)[1](c), at, cotangents)
    one, other = (sum(jnp.real(a * b).sum() for a, b in zip(x, y, strict=True))
                  for x, y in ((cotangents, pushed), (pulled, along)))  # fmt: skip
    assert abs(one - other) <= 1e-8 * (abs(one) + scale), (one, other)


def is_moving(a):
    return jnp.issubdtype(a.dtype, jnp.inexact)


def sequences(case):
    mask = jnp.asarray(np.random.default_rng(3).uniform(0.5, 1.5, T))
    return case.x, case.targets, mask


def some_state(learner, case):
    """A state with a past: at a trace of zero some rules have no derivative (the square root of a norm)."""
    run = learner.value_and_grad(loss, window=2)
    return in_numpy(run, case.params, learner.init(), case.x[::-1], case.targets)[1]


@pytest.mark.parametrize(("rule", "name", "window"), rows())
def test_gradient(rule, name, window):
    """Loss, gradients and the whole new state, in everything that is given."""
    case = CASES[name]
    learner = etrax.compile(case.model, ROWS[rule].rule, case.x[0], params=case.params, hidden=case.hidden)
    x, targets, mask = sequences(case)

    def run(params, state, x, targets, mask):
        return learner.value_and_grad(loss, window=window)(params, state, x, targets, mask)

    check_derivatives(run, (case.params, some_state(learner, case), x, targets, mask))


def compiled(name, rule="d_rtrl", **options):
    case = CASES[name]
    return case, etrax.compile(case.model, rule, case.x[0], params=case.params, hidden=case.hidden, **options)


@pytest.mark.parametrize("window", [2, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 3, T))])
def test_training(window):
    """Parameters, optimizer and losses, in the learning rate and everything else that is given."""
    case, learner = compiled("gru")
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.5)
    x, targets, mask = sequences(case)

    def run(params, opt_state, state, x, targets, mask):
        return learner.train(optimizer, loss, window=window)(params, opt_state, state, x, targets, mask)

    opt_state = optimizer.init(case.params)
    check_derivatives(run, (case.params, opt_state, some_state(learner, case), x, targets, mask))


def test_learning_rate_that_the_optimizer_closes_over():
    case, learner = compiled("vanilla")

    def last_loss(rate):
        run = learner.train(optax.sgd(rate), loss, window=2)
        return run(case.params, optax.sgd(rate).init(case.params), learner.init(), case.x, case.targets)[3][-1]

    want = (last_loss(0.1 + SIZE) - last_loss(0.1 - SIZE)) / (2 * SIZE)
    assert abs(want) > 1e-3
    np.testing.assert_allclose(jax.grad(last_loss)(0.1), want, rtol=1e-6)


def test_one_step():
    case, learner = compiled("lstm")
    check_derivatives(learner.step, (case.params, some_state(learner, case), case.x[0]))


def bptt_loss(case, params):
    def body(h, xy):
        h, output = case.model(params, h, xy[0])
        return h, loss(output, xy[1])

    return jax.lax.scan(body, case.hidden, (case.x, case.targets))[1].mean()


@pytest.mark.parametrize(
    "rule", [n if n in ("d_rtrl()", "uoro()") else pytest.param(n, marks=pytest.mark.slow) for n in ROWS]
)
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_the_loss_of_a_fresh_learner_has_the_gradient_of_bptt(rule, name):
    """A trace of zero makes no NaN."""
    case, learner = compiled(name, ROWS[rule].rule)

    def value(params):
        return learner.value_and_grad(loss, window=2)(params, learner.init(), case.x, case.targets)[0][0]

    got, want = (in_numpy(jax.grad(f), case.params) for f in (value, lambda p: bptt_loss(case, p)))
    for path, w in want.items():
        assert relative_error(got[path], w) < 1e-10, path


@pytest.mark.parametrize("name", ["alif_vjp", "alif_jvp"])
def test_derivatives_through_surrogates_are_refused(name):
    """JAX loses their rules in a second derivative: an error, not a wrong number."""
    case, learner = compiled(name)

    def value(params):
        return learner.value_and_grad(loss, window=2)(params, learner.init(), case.x, case.targets)[0][0]

    with pytest.raises(etrax.NotSupportedError, match="derivative rules of its own"):
        jax.grad(value)(case.params)


def by_rate(case, learner, a):
    optimizer = optax.sgd(0.01 * a)
    run = learner.train(optimizer, loss, window=2)
    return run(case.params, optimizer.init(case.params), learner.init(), case.x, case.targets)[3][-1]


def by_targets(case, learner, a):
    optimizer = optax.sgd(0.01)
    run = learner.train(optimizer, loss, window=2)
    return run(case.params, optimizer.init(case.params), learner.init(), case.x, a * case.targets)[3][-1]


def by_steps(case, learner, a):
    params = jax.tree.map(lambda p: a * p, case.params)
    _, outputs = jax.lax.scan(lambda s, x: learner.step(params, s, x), learner.init(), case.x)
    return loss(outputs, case.targets)


def by_a_constant(case, _, a):
    learner = etrax.compile(lambda p, s, x: case.model(p, s, a * x), "d_rtrl", case.x[0], params=case.params,
                            hidden=case.hidden)  # fmt: skip
    return learner.value_and_grad(loss, window=2)(case.params, learner.init(), case.x, case.targets)[0][0]


WAYS = (by_rate, by_targets, by_steps, by_a_constant)


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_every_way_around_a_surrogate_is_refused(way):
    """What loss, optimizer and step close over reaches the parameters of later windows."""
    case, learner = compiled("alif_vjp")
    with pytest.raises(etrax.NotSupportedError, match="derivative rules of its own"):
        jax.grad(lambda a: way(case, learner, a))(1.0)


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_every_way_without_one_is_right(way):
    case, learner = compiled("gru")
    want = (way(case, learner, 1 + SIZE) - way(case, learner, 1 - SIZE)) / (2 * SIZE)
    assert abs(want) > 1e-4
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(derivative(lambda a: way(case, learner, a))(1.0), want, rtol=1e-6)


def test_a_second_derivative_of_a_stateful_learner_with_a_surrogate_is_refused():
    brainstate = pytest.importorskip("brainstate")
    case = CASES["alif_vjp"]

    class Cell(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.s = brainstate.ParamState(case.params), brainstate.ShortTermState(case.hidden)

        def update(self, x):
            self.s.value, output = case.model(self.p.value, self.s.value, x)
            return output

    cell = Cell()
    online = etrax.Stateful(cell, "d_rtrl", case.x[0])
    first = brainstate.transform.grad(lambda: (online(case.x[0]) ** 2).sum(), cell.p)
    assert all(jnp.isfinite(a).all() for a in jax.tree.leaves(first()))
    with pytest.raises(etrax.NotSupportedError, match="derivative rules of its own"):
        brainstate.transform.grad(lambda: sum((g**2).sum() for g in jax.tree.leaves(first())), cell.p)()


def test_gradients_of_a_fresh_learner_have_finite_derivatives():
    for rule in ("uoro()", "kf_rtrl()", "pp_prop(decay=0.9)"):
        case, learner = compiled("vanilla", ROWS[rule].rule)

        def size(params, case=case, learner=learner):
            (_, grads), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), case.x, case.targets)
            return sum((g**2).sum() for g in jax.tree.leaves(grads))

        check_derivatives(size, (case.params,))


def test_a_frozen_parameter_counts_for_who_differentiates_the_learner():
    rule = etrax.partition({"wo": etrax.frozen()}, default=etrax.d_rtrl())
    case, learner = compiled("gru", rule)

    def run(params):
        return learner.value_and_grad(loss, window=2)(params, learner.init(), case.x, case.targets)

    assert not in_numpy(run, case.params)[0][1]["wo"].any()
    check_derivatives(run, (case.params,))


@pytest.mark.parametrize("spike", ["by its own rule", "by a threshold"])
def test_forward_mode_through_a_surrogate_is_refused(spike):
    case, learner = compiled("alif_vjp")
    value = lambda p: learner.value_and_grad(loss, window=2)(p, learner.init(), case.x, case.targets)[0][0]
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(value, (case.params,), (case.params,))


def test_higher_derivatives():
    """The Hessian of the loss is that of BPTT, and is the Jacobian of exact gradients."""
    step = lambda p, h, x: (jax.nn.sigmoid(p["a"]) * h + jnp.tanh(x @ p["w"]),) * 2
    rng = np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.normal(size=2)), "w": jnp.asarray(rng.normal(size=(3, 2)))}
    x, targets = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=(5, 2)))
    learner = etrax.compile(step, "d_rtrl", x[0], params=params, hidden=jnp.zeros(2))

    def run(p):
        return learner.value_and_grad(loss, window=2)(p, learner.init(), x, targets)[0]

    def total(p):
        return jax.lax.scan(lambda h, xy: (step(p, h, xy[0])[0], loss(step(p, h, xy[0])[1], xy[1])), jnp.zeros(2),
                            (x, targets))[1].mean()  # fmt: skip

    want = in_numpy(jax.hessian(total), params)
    for got in (in_numpy(jax.hessian(lambda p: run(p)[0]), params), in_numpy(jax.jacfwd(lambda p: run(p)[1]), params),
                in_numpy(jax.jacrev(lambda p: run(p)[1]), params)):  # fmt: skip
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
