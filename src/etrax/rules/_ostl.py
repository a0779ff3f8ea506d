"""OSTL, online spatio-temporal learning, and the first member of SnAp, which is the same.

    ε_t = D_t ε_{t-1} + u_t ⊗ F_t        D[p] = ∂h'[p]/∂h[p],   F[o] = ∂h'[pos(o)]/∂y[o]

as in D-RTRL, but of the step as it is, with nothing cut: a neuron's own recurrent weights and gates count. Positions
that meet within a step, by whatever path, are read in different pulls; where a weight op joins all neurons of a sample,
that is one pull for each of them (docs/mathematics.md, 6).

Bohnstingl, Woźniak, Pantazi and Eleftheriou, "Online spatio-temporal learning in deep neural networks", IEEE TNNLS 34,
2023.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jax.typing import DTypeLike

from ..compiler.analysis import ElementGraph, Elements, Facts, Node, Relation, StateNode, traced_elements, uncut_edges
from ..compiler.primitives import Dep
from ..runtime import Plan, Probe, Probes, Transport, carried_relations, layout_of, linked, plan_of, whole_view
from ..runtime.traces import PositionTrace, by_position_transport
from ._rule import Rule
from ._series import in_series
from ._verdicts import (
    Kind,
    Verdict,
    by_position_verdict,
    relations_of,
    with_least_window,
    worded,
    wordings_within,
)


def whole_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
) -> Transport[PositionTrace]:
    """OSTL, SnAp-1: the trace of D-RTRL, moved by the blocks of the whole recurrence."""
    return by_position_transport(whole_plan(facts, sites, trace_dtype))


def whole_plan(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Plan:
    """The plan of D-RTRL's traces in the step as it is, with nothing cut."""
    relations = carried_relations(facts, sites)
    uncut = replace(facts, cut=frozenset(), edges=uncut_edges(facts))
    layouts = [linked(uncut, layout_of(facts, g, sorted(facts.unreached))) for g in facts.groups]
    needed = {r.group for r in relations}
    pulls = []
    for g in sorted(needed):
        for colour in _colours(uncut, g, relations):
            pulls += [(Probe(g, s, colour),) for s in range(layouts[g].size)]
    probed = tuple(lay if lay.group.index in needed else lay.without_slots() for lay in layouts)
    probes = Probes(uncut, probed, tuple(relations), tuple(pulls), whole_view(uncut))
    return plan_of(probes, trace_dtype)


def _colours(facts: Facts, group: int, relations: list[Relation]) -> list[np.ndarray | None]:
    """Sets of positions of which no state and no traced op reaches two."""
    g = facts.groups[group]
    traced = {r.site: r.places.reshape(-1) for r in relations if r.group == group}
    graph = ElementGraph(g.num_positions)
    for (source, target), dep in facts.edges.dep.items():
        dep_of_source = _own(facts, group, source, traced, dep)
        if isinstance(target, StateNode) and target.index in g.leaves and dep_of_source is not None:
            graph.join(dep_of_source, g.place_of(target.index), dep)
    rank = graph.ranks()
    return [None] if rank.max(initial=0) == 0 else [rank == c for c in range(int(rank.max()) + 1)]


def _own(facts: Facts, group: int, source: Node, traced: dict[int, np.ndarray], dep: Dep) -> np.ndarray | None:
    """The position of each element of a source: a state of the group, or an op with a trace to it."""
    g = facts.groups[group]
    if isinstance(source, StateNode):
        return g.place_of(source.index).reshape(-1) if source.index in g.leaves else None
    if source.index not in traced:
        return None
    return np.resize(traced[source.index], dep.maps[0].size)  # an op in an inner loop has one place for all iterations


def ostl() -> Rule:
    """Online spatio-temporal learning: each position's own part of the whole recurrence. The same as `snap(1)`.

    >>> print(ostl())
    ostl()
    """
    return Rule("ostl", whole_transport, own_position, facts_for=in_series)


def own_position(facts: Facts, param: int) -> Verdict:
    """The verdict on each position's own share, with the least window."""
    plain = own_share(facts, param)
    carried = own_elements(facts, param) if plain.kind is Kind.APPROXIMATE else {}
    return with_least_window(facts, param, plain, carried)


def own_share(facts: Facts, param: int) -> Verdict:
    """The verdict on the trace alone: exact where nothing meets another position."""
    plain = by_position_verdict(facts, param)
    if plain.kind is not Kind.APPROXIMATE:
        return plain
    what = "each position keeps its own share of the whole recurrence; what positions do to each other is not carried"
    return worded(Kind.APPROXIMATE, *wordings_within(plain, f"{what}; "))


def own_elements(facts: Facts, param: int) -> Elements:
    """Elements of states to which a trace is carried."""
    return traced_elements(facts, relations_of(facts, param), uncut_edges(facts))
