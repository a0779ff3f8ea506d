"""Which relations have a trace, position by position, and which are left out as partly carried products.

An op may drive a state z, to which its relation is representable, and beside it a state S, to which none can be carried
(a key of linear attention drives its normaliser z and its memory S). Where the two are added, a trace to z alone is a
part of the gradient that is true as far as it goes. Where they are multiplied or divided by each other, what is
missing often cancels what is there (q·S / q·z does not change at all when every key is scaled), and the part can point
the wrong way. So a trace to z is left out if

- z and S stand side by side: a step makes neither of the other, so that S is not a layer above z;
- S has a memory of its own: it acts on itself through the cut step;
- a factor made of one of them is multiplied with, or divides, something made of the other.

A state may also be held in the units of another one, M: c' = exp(m - m')·c + …, the running maximum of an mLSTM. What
the new m' does to c in one step is taken back by what the old m does to it in the next. Where M is one number for many
positions of c, and what the old M does to c is not carried, a trace to c or to M is half of a difference, and both are
left out for every op that drives M.

`benchmarks/half_carried.py` compares both on 33 models, 16 draws each, by the cosine with BPTT at windows of one step:
mean 0.82, worst model 0.35 by these conditions; 0.73 and -0.14 with every trace kept, 0.74 and 0.27 with all left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ._facts import Facts, Relation
from ._fan_out import NO_FAN_OUT, FanOut, fanned_out
from ._lost import LostKind, LostPath, lost_within_step, state_nodes
from ._memo import memoised
from ._nodes import OpNode, StateNode
from ._origins import factors_of, rescaled_groups


class PartlyCarried(NamedTuple):
    """A relation that is left out, and the group that its op drives beside it.

    `rescaled`: one of the two is held in the units of the other.
    """

    relation: Relation
    beside: int
    rescaled: bool = False


@memoised
def traced_relations(facts: Facts, fan_out: FanOut = NO_FAN_OUT) -> tuple[Relation, ...]:
    """Relations that per-position blocks carry: representable, able to reach an output, and no partly carried product.

    `fan_out` says which of those that reach several positions are representable, by copies of their op's outputs.
    """
    out = {(h.relation.site, h.relation.group) for h in partly_carried(facts, fan_out)}
    return tuple(r for r in _possible(facts, fan_out) if (r.site, r.group) not in out)


@memoised
def partly_carried(facts: Facts, fan_out: FanOut = NO_FAN_OUT) -> tuple[PartlyCarried, ...]:
    """Relations that could be carried, but drive one factor of a product whose other factor has no trace."""
    possible = _possible(facts, fan_out)
    left_out = _of_differences(facts, possible)
    beside = {j: _not_carried(facts, j, fan_out) for j in {r.site for r in possible}}
    pairs = [PartlyCarried(r, s) for r in possible for s in beside[r.site] if _keeps_itself(facts, s)]
    if pairs:
        made_of, factors = factors_of(facts)
        for pair in pairs:
            z, other = pair.relation.group, pair.beside
            # The first and the third condition above: neither is made of the other, and they meet in a product.
            if other not in made_of[z] and z not in made_of[other] and frozenset((z, other)) in factors:
                left_out.append(pair)
    # One entry for each relation; of several reasons the first is told, which a dictionary built backwards leaves.
    return tuple({(h.relation.site, h.relation.group): h for h in reversed(left_out)}.values())


def _of_differences(facts: Facts, possible: list[Relation]) -> list[PartlyCarried]:
    """Relations to a group that is held in the units of another, and to that other, of ops that drive both."""
    lost = {(s.index, t.index) for s, t, _ in facts.edges.between(StateNode, StateNode)}
    lost = {(a, b) for a, b in lost if not facts.carries(a, b)}
    groups = {(facts.group_of_leaf.get(a), facts.group_of_leaf.get(b)) for a, b in lost}
    pairs = {(m, c) for m, c in groups if m is not None and c is not None and m != c}
    pairs = pairs & rescaled_groups(facts) if pairs else pairs
    return [
        PartlyCarried(r, c if r.group == m else m, rescaled=True)
        for m, c in sorted(pairs)
        for r in possible
        if r.group in (m, c) and {m, c} <= _driven(facts)[r.site]
    ]


def lost_from_op(facts: Facts, site: int, fan_out: FanOut = NO_FAN_OUT) -> list[LostPath]:
    """Paths from a weight op to hidden states that have no trace, within its own step."""
    products = [_lost(facts, p) for p in partly_carried(facts, fan_out) if p.relation.site == site]
    return list(dict.fromkeys([*lost_within_step(facts, site, fan_out), *products]))


def _lost(facts: Facts, product: PartlyCarried) -> LostPath:
    """Both terms of a difference are left out, which is one path."""
    pair = (product.relation.group, product.beside)
    group, beside = sorted(pair) if product.rescaled else pair
    kind = LostKind.RESCALED if product.rescaled else LostKind.HALF
    ends, others = (state_nodes(facts.groups[g].leaves) for g in (group, beside))
    return LostPath(kind, source=OpNode(product.relation.site), targets=ends, beside=others)


def _possible(facts: Facts, fan_out: FanOut) -> list[Relation]:
    relations = (r if r.representable else fanned_out(facts, r, fan_out) for r in facts.relations)
    return [r for r in relations if r is not None and _drives_what_matters(facts, r)]


def _drives_what_matters(facts: Facts, relation: Relation) -> bool:
    """Whether an op reaches a state from which an output can be reached; others of the same group do not count."""
    ends = [StateNode(i) for i in facts.groups[relation.group].leaves if StateNode(i) in facts.live]
    return any((OpNode(relation.site), end) in facts.edges.dep for end in ends)


@memoised
def _driven(facts: Facts) -> Sequence[frozenset[int]]:
    """For each op, the groups that it reaches in its own step, directly or through other ops."""
    reached: list[frozenset[int]] = [frozenset()] * len(facts.sites)
    grew = True
    while grew:  # ops mostly reach later ones: one pass backwards finds all, and a second one that it did
        grew = False
        for op in reversed(range(len(reached))):
            groups = set(reached[op])
            for node in facts.edges.out(OpNode(op)):
                if isinstance(node, OpNode):
                    groups |= reached[node.index]
                elif isinstance(node, StateNode) and node.index in facts.group_of_leaf:
                    groups.add(facts.group_of_leaf[node.index])
            if len(groups) > len(reached[op]):
                reached[op], grew = frozenset(groups), True
    return reached


def _not_carried(facts: Facts, site: int, fan_out: FanOut) -> list[int]:
    """Groups that an op reaches in its own step, with no representable relation."""
    relations = facts.relations_of.get(site, ())
    carried = {r.group for r in relations if r.representable or fanned_out(facts, r, fan_out)}
    return sorted(g for g in _driven(facts)[site] - carried if facts.matters(g))


def _keeps_itself(facts: Facts, group: int) -> bool:
    leaves = facts.groups[group].leaves
    return any((StateNode(a), StateNode(b)) in facts.edges.dep for a in leaves for b in leaves)
