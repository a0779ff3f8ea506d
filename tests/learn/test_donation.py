"""States that are given away: no two arrays of one share a buffer, and the numbers are the same."""

import jax
import numpy as np
import pytest
from tests.learn.cases import CASES
from tests.learn.table import ROWS
from tests.zoo import ZOO

import etrax

T = 5
FAST = {"size/one_number", "chains/current_to_adaptation", "states/lstm", "cells/lstm"}


def buffers(state):
    return [a.unsafe_buffer_pointer() for a in map(_plain, jax.tree.leaves(state)) if a.size]


def _plain(a):
    return jax.random.key_data(a) if jax.numpy.issubdtype(a.dtype, jax.dtypes.prng_key) else a


@pytest.mark.parametrize("rule", ROWS)
def test_no_buffer_twice(rule):
    for case in CASES.values():
        learner = etrax.compile(case.model, ROWS[rule].rule, case.x[0], params=case.params, hidden=case.hidden)
        for state in (learner.init(), jax.jit(learner.init)()):
            found = buffers(state)
            assert len(set(found)) == len(found), case.name


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_zoo(name):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    learner = etrax.compile(model.step, "d_rtrl", *first, params=model.params, hidden=model.hidden)
    kept, used = (learner.value_and_grad(model.loss, window=2, donate=d) for d in (False, True))
    want, found = learner.init(), learner.init()
    for _ in range(2):
        expected, want = kept(learner.params, want, inputs, targets)
        result, found = used(learner.params, found, inputs, targets)
        for a, b in zip(jax.tree.leaves((expected, want)), jax.tree.leaves((result, found)), strict=True):
            np.testing.assert_array_equal(_plain(a), _plain(b))
