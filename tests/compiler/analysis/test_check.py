"""Facts that break an invariant are refused, and all facts that tests make are checked."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax.compiler.analysis import Facts, OpNode, StateNode, check_facts


@pytest.fixture(scope="module")
def facts():
    def step(p, h, x):
        h = jnp.tanh(h @ p["u"] + p["b"] * h + x)
        return h, h

    params = {"u": jnp.ones((3, 3)), "b": jnp.ones(3)}
    return etrax.compile(step, "tbptt", jnp.ones(3), params=params, hidden=jnp.zeros(3)).facts


def with_edge(facts, pair, dep):
    return {"edges": replace(facts.edges, dep={**facts.edges.dep, pair: dep})}


def with_group(facts, **fields):
    return {"groups": (replace(facts.groups[0], **fields),)}


BREAK = {
    "sites in another order": lambda f: {"sites": f.sites[::-1]},
    "a site that lies nowhere": lambda f: {"sites": (*f.sites, replace(f.sites[0], at=(99,)))},
    "something else that is cut": lambda f: {"cut": f.cut | {99}},
    "an edge to an op that is not cut": lambda f: with_edge(
        f, (StateNode(0), OpNode(min({0, 1} - f.cut))), next(iter(f.edges.dep.values()))
    ),
    "an edge that leads nowhere": lambda f: with_edge(
        f, (StateNode(0), StateNode(0)), replace(f.edges.dep[StateNode(0), StateNode(0)], maps=(np.full(3, -1),))
    ),
    "an edge out of its target": lambda f: with_edge(
        f, (StateNode(0), StateNode(0)), replace(f.edges.dep[StateNode(0), StateNode(0)], maps=(np.arange(1, 4),))
    ),
    "a group with another number": lambda f: with_group(f, index=1),
    "two elements in one slot": lambda f: with_group(f, place=(np.zeros(3, np.int32),), slot=(np.zeros(3, np.int32),)),
    "a relation too few": lambda f: {"relations": f.relations[1:]},
    "a place that is no position": lambda f: {
        "relations": (replace(f.relations[0], place=np.full(3, 7)), *f.relations[1:])
    },
}  # fmt: skip


@pytest.mark.parametrize("name", BREAK)
def test_a_broken_invariant_is_seen(facts, name):
    assert check_facts(facts) is facts
    with pytest.raises(etrax.EtraxError, match="facts are malformed"):
        replace(facts, **BREAK[name](facts))  # checked as it is made, by conftest


def test_all_facts_are_checked():
    assert Facts.__init__.__name__ == "make_and_check"
