"""Rules are equal, and hash alike, if they do the same; a partition carries the trace of equal rules once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import CASES

import etrax
from etrax import Rule


def scaled(factor):
    return lambda output, target: factor * target


ONE, TWO, PARTIAL = scaled(1), scaled(2), functools.partial(max, 3)


def every(path):
    return True


MADE = {
    "tbptt": lambda: etrax.tbptt(),
    "d_rtrl": lambda: etrax.d_rtrl(),
    "pp_prop 0.9": lambda: etrax.pp_prop(0.9),
    "pp_prop 0.8": lambda: etrax.pp_prop(0.8),
    "rtrl": lambda: etrax.rtrl(),
    "e_prop": lambda: etrax.e_prop(),
    "e_prop 0.5": lambda: etrax.e_prop(0.5),
    "random 1": lambda: etrax.e_prop(0.0, "random", key=1),
    "random 2": lambda: etrax.e_prop(0.0, "random", key=2),
    "adaptive": lambda: etrax.e_prop(0.0, "adaptive", key=1),
    "adaptive, rate": lambda: etrax.e_prop(0.0, "adaptive", key=1, feedback_rate=0.1),
    "three_factor": lambda: etrax.three_factor(),
    "three_factor, filtered": lambda: etrax.three_factor(kappa=0.1),
    "modulator 1": lambda: etrax.three_factor(ONE),
    "modulator 2": lambda: etrax.three_factor(TWO),
    "modulator, partial": lambda: etrax.three_factor(PARTIAL),
    "uoro 0": lambda: etrax.uoro(0),
    "uoro 1": lambda: etrax.uoro(jax.random.key(1)),
    "ottt": lambda: etrax.ottt(0.8),
    "rflo": lambda: etrax.rflo(0.8),
    "ostl": lambda: etrax.ostl(),
    "snap 1": lambda: etrax.snap(1),
    "snap 2": lambda: etrax.snap(2),
    "synthetic": lambda: etrax.synthetic(),
    "synthetic 0.2": lambda: etrax.synthetic(0.2),
    "frozen": lambda: etrax.frozen(),
    "partition": lambda: etrax.partition({"w": etrax.uoro(0)}, default=etrax.d_rtrl()),
    "partition, other rule": lambda: etrax.partition({"w": etrax.uoro(1)}, default=etrax.d_rtrl()),
    "partition, other key": lambda: etrax.partition({"u": etrax.uoro(0)}, default=etrax.d_rtrl()),
    "partition by function": lambda: etrax.partition({every: etrax.uoro(0)}, default=etrax.d_rtrl()),
}


def test_equal_if_made_alike():
    first, again = ({name: make() for name, make in MADE.items()} for _ in range(2))
    for a in MADE:
        for b in MADE:
            assert (first[a] == again[b]) is (a == b), (a, b)
        assert hash(first[a]) == hash(again[a])
    assert len({*first.values(), *again.values()}) == len(MADE)
    assert etrax.uoro(0) == etrax.uoro(jax.random.key(0)) and etrax.tbptt() != "tbptt()"


def test_functions_are_equal_if_they_are_the_same():
    assert etrax.three_factor(scaled(1)) != etrax.three_factor(scaled(1))


def test_a_rule_from_outside_is_told_apart_by_its_options():
    def mine(leak, table):
        rflo = etrax.rflo(leak)
        return Rule("mine", rflo.transport, rflo.verdict, {"leak": leak, "table": table})

    assert mine(0.5, [1]) == mine(0.5, [1]) != mine(0.6, [1]) != mine(0.6, [2])
    assert mine(0.5, np.ones(2)) == mine(0.5, jnp.ones(2)) != mine(0.5, np.ones(3))


def test_keys_of_a_trace_are_not_compared_before_they_have_numbers():
    assert jax.jit(lambda key: jnp.asarray(etrax.uoro(key) == etrax.uoro(key)))(jax.random.key(0))


@pytest.mark.parametrize("rule", [lambda: etrax.pp_prop(0.9), lambda: etrax.uoro(3), lambda: etrax.synthetic()])
def test_equal_rules_of_a_partition_are_carried_once(rule):
    case = CASES["vanilla"]

    def learner(rule):
        return etrax.compile(case.model, rule, case.x[0], params=case.params, hidden=case.hidden)

    def gradient(learner):
        run = learner.value_and_grad(lambda o, t: ((o - t) ** 2).sum(), window=2)
        return run(case.params, learner.init(), case.x, case.targets)[0][1]

    apart, alone = learner(etrax.partition({"wh": rule(), "wi": rule()}, default=rule())), learner(rule())
    assert apart.memory(window=2).trace == alone.memory(window=2).trace
    for a, b in zip(jax.tree.leaves(gradient(apart)), jax.tree.leaves(gradient(alone)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_parameters_of_one_weight_may_have_equal_rules():
    step = lambda p, h, x: (0.9 * h + x @ (p["a"] @ p["b"]),) * 2
    params = {"a": jnp.ones((3, 2)), "b": jnp.ones((2, 4))}
    rule = etrax.partition({"a": etrax.pp_prop(0.9)}, default=etrax.pp_prop(0.9))
    learner = etrax.compile(step, rule, jnp.ones(3), params=params, hidden=jnp.zeros(4))
    assert {str(v.kind) for v in learner.report.verdicts.values()} == {"approximate"}
