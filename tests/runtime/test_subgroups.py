"""Ops that reach some states of a group alone: their traces are at finer positions, and no larger than they need be."""

import jax
import pytest
from tests.zoo import ZOO
from tests.zoo.subgroups import TAPS, B, H, I, N

import etrax

LAYER = B * H * N  # numbers in the states of a layer, behind its convolution
# Of A, Δ and B: what each of their weights does to the states that it reaches, of one number each.
ALONE = {"A": LAYER, "dt": I * LAYER, "B": I * LAYER}


def learner_of(name):
    model = ZOO[f"subgroups/{name}"]()
    return etrax.compile(model.step, "d_rtrl", *model.make_inputs(1, 0)[0], params=model.params, hidden=model.hidden)


def trace_sizes(learner):
    """By parameter, the numbers in its trace."""
    names = [leaf.path[-1] for leaf in learner.facts.step.ins]
    sizes = {}
    for j, arrays in learner.program.transport.parts(learner.init().trace).items():
        (param,) = learner.facts.sites[j].params
        sizes[names[param]] = sum(a.size for a in jax.tree.leaves(arrays))
    return sizes


@pytest.mark.parametrize("name", ["diagonal_by_sum", "diagonal_by_einsum", "diagonal_by_conv"])
def test_what_is_reached_alone_has_positions_of_its_own(name):
    learner = learner_of(name)
    (group,), (sub,) = learner.facts.groups, learner.facts.subgroups
    assert (group.num_positions, group.num_state) == (B * H, TAPS - 1 + N)
    assert (sub.num_positions, sub.num_state) == (LAYER, 1)
    sizes = trace_sizes(learner)
    assert {k: sizes[k] for k in ALONE} == ALONE
    assert sizes["in"] == B * I * H * (TAPS - 1 + N)  # reaches the convolution, too


def test_numbers_that_act_on_each_other_stay_together():
    (sub,) = learner_of("rotated_pairs").facts.subgroups
    assert (sub.num_positions, sub.num_state) == (LAYER // 2, 2)
    sizes = trace_sizes(learner_of("rotated_pairs"))
    # Δ reaches both numbers of a pair anyway; A and B reach one, which then turns into the other.
    assert {k: sizes[k] for k in ALONE} == {"A": 2 * ALONE["A"], "dt": ALONE["dt"], "B": 2 * ALONE["B"]}


@pytest.mark.parametrize("name", ["all_together", "read_by_the_convolution"])
def test_near_misses_have_no_subgroup(name):
    assert learner_of(name).facts.subgroups == ()
