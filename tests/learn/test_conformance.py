"""One table: every rule on every model under every transformation, and what it claims.

The fast suite runs the main rules under every transformation and every other rule under one, models in turn; the slow
one the whole table.
"""

from functools import lru_cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import CASES, T
from tests.learn.harness import in_numpy
from tests.learn.oracle import bptt, relative_error
from tests.learn.table import MAIN, PRECISIONS, ROWS, TRANSFORMATIONS, loss_in, plain, subject

from etrax.compiler.ir import leaves_with_paths


def rows(columns):
    """(rule, model, column), most of them slow."""
    found, seen = [], set()
    for rule, column, case in product(ROWS, columns, CASES):
        turn = list(CASES)[(list(ROWS).index(rule) + list(columns).index(column)) % len(CASES)]
        first = rule in MAIN or list(columns).index(column) == list(ROWS).index(rule) % len(columns)
        fast = case == turn and first
        seen.add(rule) if fast else None
        marks = () if fast else pytest.mark.slow
        found.append(pytest.param(rule, case, column, id=f"{rule}-{case}-{column}", marks=marks))
    assert seen == set(ROWS)
    return found


@lru_cache(maxsize=8)
def wide(rule, case):
    """The float64 learner and its plain gradients, shared by neighbours in the table."""
    s = subject(ROWS[rule], case)
    return s, [in_numpy(s.run, s.xs[n], s.targets[n]) for n in range(2)]


@pytest.mark.parametrize(("rule", "case", "name"), rows(TRANSFORMATIONS))
def test_transformation(rule, case, name):
    """Loss, gradients and the whole state equal those of one sequence at a time."""
    s, want = wide(rule, case)
    for got, wanted in zip(TRANSFORMATIONS[name](s), want, strict=True):
        paths = jax.tree_util.tree_leaves_with_path(wanted)
        for (path, b), a in zip(paths, jax.tree.leaves(got), strict=True):
            assert relative_error(a, b) < 1e-9, (path, name)


@pytest.mark.parametrize(("rule", "case", "name"), rows(PRECISIONS))
def test_precision(rule, case, name):
    """Gradients are of the model's type and finite, traces float32 at least; float32 follows float64."""
    s = subject(ROWS[rule], case, PRECISIONS[name])
    (_, grads), state = plain(s, 0)
    for p, g in zip(jax.tree.leaves(s.params), jax.tree.leaves(grads), strict=True):
        assert g.dtype == p.dtype and np.all(np.isfinite(np.asarray(g).astype(complex)))
    before, after = (jax.tree.map(lambda a: (a.shape, a.dtype), t) for t in (s.learner.init(), state))
    assert before == after
    sums = () if "steps" in s.learner.rule.options else state.trace  # states that are stored stay what they are
    kinds = {a.dtype for a in jax.tree.leaves(sums) if jnp.issubdtype(a.dtype, jnp.inexact)}
    assert kinds <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.complex64)}
    if name == "float32":
        (_, want), _ = wide(rule, case)[1][0]
        for path, g in leaves_with_paths(grads):
            assert relative_error(g, dict(leaves_with_paths(want))[path]) < 5e-3, path


def exact(rule, case):
    """What is called exact equals BPTT with windows shorter than the sequence; nothing carried is silently zero."""
    s, want = wide(rule, case)
    verdicts, (_, grads) = s.learner.report.verdicts, want[0][0]
    oracle = true_gradient(case)
    for path, g in leaves_with_paths(grads):
        error = relative_error(g, oracle[path])
        if verdicts[path].kind in ("exact", "unused"):
            assert error < 1e-9, (path, error, verdicts[path])
        elif verdicts[path].kind == "approximate":
            assert np.any(g), path


def whole(rule, case):
    """One window over the sequence is BPTT, unless the rule has a signal or a filter of its own."""
    s, _ = wide(rule, case)
    (_, grads), _ = in_numpy(partial(s.run, window=T), s.xs[0], s.targets[0])
    errors = {p: relative_error(g, true_gradient(case)[p]) for p, g in leaves_with_paths(grads)}
    if ROWS[rule].follows_loss:
        assert max(errors.values()) < 1e-9, errors
    else:
        assert max(errors.values()) > 1e-3, "a rule of its own inside a window, yet BPTT: the row is wrong"


def memory(rule, case):
    """The report's bytes are those of the trace."""
    s, _ = wide(rule, case)
    own = sum(np.size(a) * a.dtype.itemsize for a in jax.tree.leaves(s.learner.init().trace))
    assert s.learner.report.memory[s.learner.rule.name] == own
    assert str(s.learner.rule) in str(s.learner.report)


CLAIMS = {"exact": exact, "whole": whole, "memory": memory}


@lru_cache(maxsize=8)
def true_gradient(case):
    c = CASES[case]

    class Model:
        step, params, hidden, loss = staticmethod(c.model), c.params, c.hidden, staticmethod(loss_in(jnp.float64))

    return {p: T * g for p, g in leaves_with_paths(bptt(Model, (c.x,), c.targets, in_numpy))}


@pytest.mark.parametrize(("rule", "case", "claim"), rows(CLAIMS))
def test_claim(rule, case, claim):
    CLAIMS[claim](rule, case)
