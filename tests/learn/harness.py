"""Run a rule on a small case and hold it against a reference."""

from functools import lru_cache

import jax
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.cases import CASES, T, loss
from tests.learn.oracle import relative_error

import etrax

# The fast suite runs windows of 2 out of 6 steps (a trace must be moved twice to be told from one that starts anew).
WINDOWS = [pytest.param((2,), id="2"), pytest.param((1, 3, T), id="1,3,6", marks=pytest.mark.slow)]


@lru_cache(maxsize=64)
def _compiled(name, key):
    case = CASES[name]
    return etrax.compile(case.model, _RULES[key], case.x[0], params=case.params, hidden=case.hidden)


_RULES = {}


def in_numpy(function, *args):
    """Evaluated equation by equation: compiling takes ten times as long, and is not under test where this is used."""
    return Evaluator()(function, *args)


def compiled(name, rule):
    """A learner, one per case and rule as printed."""
    _RULES[str(rule)] = rule
    return _compiled(name, str(rule))


def gradients(name, rule, window, loss_fn=loss, targets=None, learner=None):
    case = CASES[name]
    learner = learner or compiled(name, rule)
    targets = case.targets if targets is None else targets
    run = learner.value_and_grad(loss_fn, window=window)
    (_, grads), state = in_numpy(run, case.params, learner.init(), case.x, targets)
    return grads, state


def assert_close(got, want, tol=1e-10, context=()):
    for path, g in got.items():
        error = relative_error(g, want[path])
        assert error <= tol, (*context, path, error)


def agrees(name, rule, reference, windows, tol=1e-10):
    """The window engine against `reference(name, window)`."""
    for k in windows:
        assert_close(gradients(name, rule, k)[0], reference(name, k), tol, (name, k))


def differs(got, want):
    """The largest relative difference of two gradients."""
    return max(relative_error(g, want[path]) for path, g in got.items())


def numbers(tree):
    return sum(np.size(a) for a in jax.tree.leaves(tree))
