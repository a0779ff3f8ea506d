"""What is remembered of a model lives as long as the model."""

import gc
import weakref

import jax.numpy as jnp
import pytest

import etrax
from etrax.compiler.analysis import memoised


def compiled(rule):
    step = lambda w, h, x: (jnp.tanh(0.9 * h + x @ w),) * 2
    return etrax.compile(step, rule, jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "snap", "e_prop"])
def test_dead_models_are_freed(rule):
    learner = compiled(etrax.snap(1) if rule == "snap" else rule)
    str(learner.report)
    facts = weakref.ref(learner.facts)
    del learner
    gc.collect()
    assert facts() is None


def test_results_are_computed_once_for_each_set_of_arguments():
    calls = []

    @memoised
    def product(facts, factor):
        calls.append(factor)
        return factor * len(facts.sites)

    one, other = compiled("d_rtrl").facts, compiled("d_rtrl").facts
    assert [product(one, 2), product(one, 2), product(one, 3), product(other, 2)] == [2, 2, 3, 2]
    assert calls == [2, 3, 2]
