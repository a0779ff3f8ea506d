"""Synthetic gradients against the same sums with dense matrices, and that the estimate learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from tests.learn.cases import CASES, B, T
from tests.learn.harness import WINDOWS, agrees, differs, gradients
from tests.learn.oracle import relative_error
from tests.learn.tape import inside, tape, to_real, windows

import etrax

RATE, DISCOUNT = 0.4, 0.9


def rows_of(name):
    """Which flat state scalars belong to which sample, (samples, scalars of one)."""
    hidden = CASES[name].hidden
    numbers = jax.tree.map(lambda a: jnp.broadcast_to(jnp.arange(B)[:, None], a.shape), hidden)
    pairs = jax.tree.map(lambda a, n: (n, n) if jnp.iscomplexobj(a) else n, hidden, numbers)
    owner = np.asarray(ravel_pytree(pairs)[0])
    return np.stack([np.flatnonzero(owner == b) for b in range(B)])


def reference(name, k):
    """The rule with the tape's dense derivatives: M [h; 1] for every sample, trained at every entry."""
    t, rows = tape(name), rows_of(name)
    m = np.zeros((rows.shape[1], rows.shape[1] + 1))
    total = np.zeros(t.full_c.shape[2])
    ends = [*t.steps, None]
    case = CASES[name]
    h = case.hidden
    for s in range(T):
        h, _ = case.model(case.params, h, case.x[s])
    ends[T] = np.asarray(ravel_pytree(to_real(h))[0])

    def features(h):
        return np.concatenate([np.asarray(h)[rows], np.ones((B, 1))], 1)

    for steps in windows(k):
        influence, across = np.zeros(t.full_c.shape[1:]), np.eye(len(t.full_d[0]))
        for s in steps:
            influence = t.full_d[s] @ influence + t.full_c[s]
            across = t.full_d[s] @ across
        ahead = np.zeros(len(across))
        ahead[rows] = DISCOUNT * features(ends[steps[-1] + 1]) @ m.T
        g_theta, g_entry = inside(t, steps)
        total += g_theta + ahead @ influence
        found, seen = (g_entry + ahead @ across)[rows], features(ends[steps[0]])
        error = (seen @ m.T - found) / (seen**2).sum(1, keepdims=True)
        m -= RATE * error.T @ seen / B
    return t.unravel(total / T)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_against_dense_matrices(name, windows):
    agrees(name, etrax.synthetic(RATE, DISCOUNT), reference, windows)


def test_it_is_not_truncated_bptt():
    got = gradients("gru", etrax.synthetic(RATE), 2)[0]
    assert differs(got, gradients("gru", etrax.tbptt(), 2)[0]) > 1e-3


def test_other_rules_beside_it_hear_nothing_of_it():
    rule = etrax.partition({"wh": etrax.synthetic(RATE, DISCOUNT)}, default=etrax.d_rtrl())
    got, plain, alone = (gradients("vanilla", r, 2)[0] for r in (rule, etrax.d_rtrl(), etrax.synthetic(RATE, DISCOUNT)))
    for name, g in got.items():
        want = alone if name == "wh" else plain
        assert relative_error(g, want[name]) < 1e-10, name
    assert relative_error(got["wh"], plain["wh"]) > 1e-3


def test_a_linear_estimate_learns_linear_credit():
    """h' = a h + b x, loss h·c: every later loss owes c a^n to h, and M's bias finds Σ_n c aⁿ in a long stream."""
    a = 0.8
    c = jnp.asarray([1.0, -0.5, 2.0])

    def step(params, h, x):
        h = a * h + x * params["b"]
        return h, h

    learner = etrax.compile(
        step, etrax.synthetic(0.2), jnp.ones((1, 3)), params={"b": jnp.ones(3)}, hidden=jnp.zeros((1, 3))
    )
    run = learner.value_and_grad(lambda output, target: (output * c).sum(), window=2, reduction="sum")
    state = learner.init()
    x = jnp.asarray(np.random.RandomState(0).standard_normal((4000, 1, 3)))
    _, state = run(learner.params, state, x)
    (_, grads), _ = run(learner.params, state, x[:2])
    future = c * a / (1 - a)  # what the losses after a step owe to its state
    want = sum((x[t, 0] * (c / (1 - a))) for t in range(2))
    assert relative_error(state.trace.matrix[:, -1], future) < 1e-3
    assert relative_error(state.trace.matrix[:, :-1], np.zeros((3, 3))) < 1e-2
    assert relative_error(grads["b"], want) < 1e-2


def test_evolving_leaves_the_estimate():
    case = CASES["vanilla"]
    learner = etrax.compile(case.model, etrax.synthetic(), case.x[0], params=case.params, hidden=case.hidden)
    (_, _), state = learner.value_and_grad(lambda o, t: (o * t).sum(), window=2)(
        case.params, learner.init(), case.x, case.targets
    )
    assert np.any(state.trace)
    after, _ = learner.step(case.params, state, case.x[0])
    np.testing.assert_array_equal(after.trace, state.trace)


@pytest.mark.parametrize(
    "make", [lambda: etrax.synthetic(0), lambda: etrax.synthetic(2.5), lambda: etrax.synthetic(True)]
)
def test_bad_rate(make):
    with pytest.raises(ValueError, match="`synthetic` takes a `rate` between 0 and 2"):
        make()


def test_two_futures():
    with pytest.raises(ValueError, match="at most one `synthetic`"):
        etrax.partition({"a": etrax.synthetic()}, default=etrax.synthetic(0.2))


def test_a_running_maximum_that_starts_at_minus_infinity():
    """The estimate is linear in the states; an infinite one tells it nothing, and the gradient stays finite."""

    def step(w, h, x):
        top = jnp.maximum(h["top"], x @ w)
        new = jnp.exp(h["top"] - top) * h["sum"] + jnp.exp(x @ w - top)
        return {"top": top, "sum": new}, new

    w = jax.random.normal(jax.random.key(0), (3, 2))
    hidden = {"top": jnp.full(2, -jnp.inf), "sum": jnp.zeros(2)}
    xs = jax.random.normal(jax.random.key(1), (7, 3))
    learner = etrax.compile(step, etrax.synthetic(), xs[0], params=w, hidden=hidden)
    loss = lambda out, target: (out**2).sum()
    (_, grad), state = learner.value_and_grad(loss, window=2)(w, learner.init(), xs, None)
    assert np.isfinite(grad).all() and np.any(np.asarray(grad) != 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(learner.learned(state)))
