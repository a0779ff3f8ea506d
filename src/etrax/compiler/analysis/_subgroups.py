"""Subgroups: states of a group on which its other states do not act, at finer positions.

A short convolution acts on all N states of its channel c, which is therefore one position of taps + N state scalars:

    conv'[c] = shift(conv[c], u[c])        h'[c, n] = a[c, n] h[c, n] + (conv'[c] · taps[c]) b[n]

An op that reaches h alone (A, Δ, B) changes nothing in conv, and no h[c, n] acts on another. For such an op each of
them is a position of its own, so that its trace holds, for each output, those states alone that this output reaches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ._fan_out import FanOut, fanned_out
from ._memo import memoised
from ._nodes import StateNode
from ._positions import Group, positions_of, reached_places

if TYPE_CHECKING:
    from ._facts import Facts, Relation


@memoised
def subgroups_of(facts: Facts) -> tuple[Group, ...]:
    """The subgroups that the ops of a step reach, numbered behind the groups."""
    out: list[Group] = []
    for g in facts.groups:
        reached = (_reached(facts, g, r.site) for r in facts.relations if r.group == g.index and g.num_state > 1)
        for leaves in dict.fromkeys(reached):
            sub = _subgroup(facts, g, leaves) if len(leaves) < len(g.leaves) else None
            if sub is not None:
                out.append(replace(sub, index=len(facts.groups) + len(out)))
    return tuple(out)


def _reached(facts: Facts, group: Group, site: int) -> tuple[int, ...]:
    """The leaves of a group that an op reaches in any number of steps."""
    reached = {leaf for leaf in facts.edges.states_from(site) if leaf in group.leaves}
    while True:
        new = set(_acted_on(facts, group, reached)) - reached
        if not new:
            return tuple(sorted(reached))
        reached |= new


def _acted_on(facts: Facts, group: Group, leaves: Iterable[int]) -> list[int]:
    sources = [StateNode(i) for i in leaves]
    return [j for j in group.leaves if any((s, StateNode(j)) in facts.edges.dep for s in sources)]


def _subgroup(facts: Facts, group: Group, leaves: tuple[int, ...]) -> Group | None:
    """These leaves at positions of their own; None if they are no finer than those of the group."""
    if not all(facts.carries(a, b) for a in leaves for b in leaves):
        return None
    edges = [(s.index, t.index, dep) for s, t, dep in facts.edges.between(StateNode, StateNode)
             if s.index in leaves and t.index in leaves]  # fmt: skip
    sub = positions_of(facts.states, leaves, edges)
    return sub if sub is not None and sub.num_positions > group.num_positions else None


@memoised
def at_subgroup(facts: Facts, relation: Relation, limit: FanOut) -> Relation | None:
    """A relation to the subgroup of all that its op reaches in its group; None if there is none, or too many pairs."""
    group = facts.groups[relation.group]
    leaves = _reached(facts, group, relation.site)
    sub = next((s for s in facts.subgroups if s.leaves == leaves), None)
    if sub is None:
        return None
    deps = {leaf: dep for leaf, dep in facts.edges.states_from(relation.site).items() if leaf in leaves}
    place = reached_places(deps, sub)
    place = None if place is None else facts.sites[relation.site].one_place(place)
    reach = tuple((dep, sub.place_of(leaf)) for leaf, dep in deps.items())
    finer = replace(relation, group=sub.index, place=place, reach=reach, copies=None)
    return finer if finer.representable else fanned_out(facts, finer, limit)
