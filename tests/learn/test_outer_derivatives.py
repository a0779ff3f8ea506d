"""Derivatives of what a learner computes, in everything that it is given: forward and reverse mode.

The oracle is finite differences in float64 along a random direction of all numbers at once: parameters, the whole state
with its trace, inputs, targets and mask. Reverse mode is held against forward mode by random cotangents.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import CASES, T, loss
from tests.learn.harness import in_numpy
from tests.learn.oracle import moving, put
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
