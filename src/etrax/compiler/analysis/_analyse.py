"""From a step to its facts: sites, edges, groups, relations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..._compat import is_inexact
from ..ir import Role, Step
from ..opened import WeightSite, find_sites, with_elementwise_ops, with_heads_apart
from ..primitives import record_of
from ._edges import Edges, reach_edges
from ._facts import Facts, Relation
from ._lists import joined_by_list
from ._nodes import Node, OpNode, StateNode
from ._positions import MAX_STATES, Anchor, Group, find_groups, reached_places


def analyse(step: Step, as_written: bool = False, by_copies: frozenset[tuple[Node, Node]] = frozenset()) -> Facts:
    """Analyse a step: sites, edges, groups, relations.

    The facts hold the step with weight ops that mix nothing written out, unless it is analysed as it was written, for
    people who hold its jaxpr. `by_copies` are edges that copies of their source carry.
    """
    step, sites = (step, find_sites(step)) if as_written else with_elementwise_ops(step)
    mixing = frozenset(j for j, s in enumerate(sites) if s.rule.mixes)
    suspects = frozenset(j for j, s in enumerate(sites) if s.reads_hidden and _is_product(s))

    def assembled(cut: frozenset[int], edges: Edges | None = None) -> Facts:
        edges = reach_edges(step, sites, cut) if edges is None else edges
        return _assemble(step, sites, cut, edges.carried_by_copies(by_copies))

    if not suspects:
        return assembled(mixing)
    edges = reach_edges(step, sites, mixing | suspects)
    lists = {j: size for j in suspects if (size := joined_by_list(edges, j))}
    if max(lists.values(), default=0) <= MAX_STATES:  # none, or the parts of one neuron may be what they connect
        facts = assembled(mixing)
        if not lists or all(facts.carries(s.index, t.index) for s, t, _ in facts.edges.between(StateNode, StateNode)):
            return facts
    cut = mixing | lists.keys()
    return assembled(cut, edges if len(lists) == len(suspects) else None)


def with_rows_apart(facts: Facts) -> Facts:
    """Facts of the step with axes of heads in the weights of ops that drive positions of several states.

    Many of these may be moved alike, which is seen along an axis of their own.
    """
    driving = {r.site for r in facts.relations if r.representable and facts.groups[r.group].num_state > 1}
    apart = with_heads_apart(facts.step, facts.sites, driving)
    return facts if apart is facts.step else analyse(apart, as_written=True)


def _is_product(site: WeightSite) -> bool:
    """Whether a weight is multiplied with data element by element."""
    record = record_of(site.call.primitive)
    return not site.rule.mixes and record.elementwise and record.product


def _assemble(step: Step, sites: Sequence[WeightSite], cut: frozenset[int], edges: Edges) -> Facts:
    states = step.states
    hidden = [
        i for i, leaf in enumerate(states) if leaf.role is Role.HIDDEN and is_inexact(leaf.aval) and leaf.aval.size
    ]
    links = [
        (s.index, t.index, d)
        for s, t, d in edges.between(StateNode, StateNode)
        if s.index in hidden and t.index in hidden
    ]
    anchors = [
        Anchor(
            t.index, d, int(np.prod([n for _, n in sites[s.index].loops], dtype=np.int64)), sites[s.index].rule.mixes
        )
        for s, t, d in edges.between(OpNode, StateNode)
        if t.index in hidden
    ]
    groups = tuple(find_groups(states, hidden, links, anchors))
    return Facts(step, tuple(sites), cut, edges, groups, tuple(_relations(sites, edges, groups)))


def _relations(sites: Sequence[WeightSite], edges: Edges, groups: Sequence[Group]) -> Iterable[Relation]:
    for j in range(len(sites)):
        reached = edges.states_from(j)
        for g in groups:
            deps = {leaf: d for leaf, d in reached.items() if leaf in g.leaves}
            if not deps:
                continue
            place = reached_places(deps, g)
            place = None if place is None else sites[j].one_place(place)
            cause = next((d.cause for d in deps.values() if d.cause), None)
            reach = tuple((dep, g.place_of(leaf)) for leaf, dep in deps.items())
            yield Relation(j, g.index, place, cause, reach)
