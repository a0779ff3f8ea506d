"""Which relations have a trace, position by position, and which are left out because they are half of a product.

An op may drive a state z, to which its relation is representable, and beside it a state S, to which none can be carried
(a key of linear attention drives its normaliser z and its memory S). Where the two are added, a trace to z alone is a
part of the gradient that is true as far as it goes. Where they are multiplied or divided by each other, what is
missing often cancels what is there (q·S / q·z does not change at all when every key is scaled), and the part can point
the wrong way. So a trace to z is left out if

- z and S stand side by side: a step makes neither of the other, so that S is not a layer above z;
- S has a memory of its own: it acts on itself through the cut step;
- a factor made of one of them is multiplied with, or divides, something made of the other.

`benchmarks/half_carried.py` compares both on 33 models, 16 draws each, by the cosine with BPTT at windows of one step:
mean 0.82, worst model 0.35 by these conditions; 0.73 and -0.14 with every trace kept, 0.74 and 0.27 with all left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from .._compat import CUSTOM, INLINED, Jaxpr, JaxprEqn, Literal, cond_branches, inner_jaxpr, scan_parts
from ..ir import Site, interpret
from ..primitives import record_of
from ._facts import Facts, Relation
from ._fan_out import NO_FAN_OUT, FanOut, fanned_out
from ._lost import LostKind, LostPath, lost_within_step, state_nodes
from ._nodes import Node, OpNode, StateNode

# The groups that a value is made of.
Origins: TypeAlias = frozenset[int]
_NONE: Origins = frozenset()


class Half(NamedTuple):
    """A relation that is left out, and the group that its op drives beside it."""

    relation: Relation
    beside: int


@lru_cache(maxsize=64)
def traced_relations(facts: Facts, fan_out: FanOut = NO_FAN_OUT) -> tuple[Relation, ...]:
    """Relations that per-position blocks carry: representable, able to reach an output, and no half of a product.

    `fan_out` says which of those that reach several positions are representable, by copies of their op's outputs.
    """
    out = {(h.relation.site, h.relation.group) for h in halves(facts, fan_out)}
    return tuple(r for r in _possible(facts, fan_out) if (r.site, r.group) not in out)


@lru_cache(maxsize=64)
def halves(facts: Facts, fan_out: FanOut = NO_FAN_OUT) -> tuple[Half, ...]:
    """Relations that could be carried, but are half of a product with a state to which none can be."""
    possible = _possible(facts, fan_out)
    beside = {j: _not_carried(facts, j, fan_out) for j in {r.site for r in possible}}
    pairs = [Half(r, s) for r in possible for s in beside[r.site] if _keeps_itself(facts, s)]
    if not pairs:
        return ()
    made_of, factors = _origins(facts)
    found = []
    for half in pairs:
        z, other = half.relation.group, half.beside
        if other not in made_of[z] and z not in made_of[other] and frozenset((z, other)) in factors:
            found.append(half)
    return tuple({(h.relation.site, h.relation.group): h for h in reversed(found)}.values())


def lost_from_op(facts: Facts, site: int, fan_out: FanOut = NO_FAN_OUT) -> list[LostPath]:
    """Paths from a weight op to hidden states that have no trace, within its own step."""
    halved = [
        LostPath(
            LostKind.HALF,
            source=OpNode(site),
            targets=state_nodes(facts.groups[relation.group].leaves),
            beside=state_nodes(facts.groups[beside].leaves),
        )
        for relation, beside in halves(facts, fan_out)
        if relation.site == site
    ]
    return list(dict.fromkeys([*lost_within_step(facts, site, fan_out), *halved]))


def _possible(facts: Facts, fan_out: FanOut) -> list[Relation]:
    found = (r if r.representable else fanned_out(facts, r, fan_out) for r in facts.relations)
    return [r for r in found if r is not None and _drives_what_matters(facts, r)]


def _drives_what_matters(facts: Facts, relation: Relation) -> bool:
    """Whether an op reaches a state from which an output can be reached; others of the same group do not count."""
    ends = [StateNode(i) for i in facts.groups[relation.group].leaves if StateNode(i) in facts.live]
    return any((OpNode(relation.site), end) in facts.edges.dep for end in ends)


def _not_carried(facts: Facts, site: int, fan_out: FanOut) -> list[int]:
    """Groups that an op reaches in its own step, directly or through other ops, with no representable relation."""
    seen: set[Node] = set()
    todo: list[Node] = [OpNode(site)]
    while todo:
        new = facts.edges.out(todo.pop()).keys() - seen
        seen |= new
        todo += [node for node in new if isinstance(node, OpNode)]
    reached = {facts.group_of_leaf.get(node.index) for node in seen if isinstance(node, StateNode)}
    relations = facts.relations_of.get(site, ())
    own = {r.group for r in relations if r.representable or fanned_out(facts, r, fan_out)}
    return sorted(g for g in reached - own if g is not None and facts.matters(g))


def _keeps_itself(facts: Facts, group: int) -> bool:
    leaves = facts.groups[group].leaves
    return any((StateNode(a), StateNode(b)) in facts.edges.dep for a in leaves for b in leaves)


def _origins(facts: Facts) -> tuple[list[Origins], set[frozenset[int]]]:
    """For each group, the groups of which a step makes its new states; and pairs of groups that meet as factors.

    A pair does not count where each factor is made of both: x · σ(x) is no product of what x is made of.
    """
    step, factors = facts.step, set()
    own = {i: frozenset((g,)) for i, g in facts.group_of_leaf.items()}
    new = {step.jaxpr.outvars[i]: origin for i, origin in own.items() if not isinstance(step.jaxpr.outvars[i], Literal)}

    def handle(at: Site, eqn: JaxprEqn, values: list[Any]) -> list[Origins]:
        operands = [v if isinstance(v, frozenset) else _NONE for v in values]
        if record_of(eqn.primitive.name).product:
            a, b = operands[:2]
            factors.update(frozenset((i, j)) for i in a for j in b if i != j and (j not in a or i not in b))
        return [o | new.get(v, _NONE) for v, o in zip(eqn.outvars, _outputs(eqn, operands, handle), strict=True)]

    first = step.first_state
    values = [*step.consts, *(own.get(i - first, _NONE) for i in range(len(step.ins)))]
    outs = interpret(step.jaxpr, [], values, handle)
    return [_NONE.union(*(o for i in g.leaves if isinstance(o := outs[i], frozenset))) for g in facts.groups], factors


def _outputs(eqn: JaxprEqn, operands: list[Origins], handle: Any) -> list[Origins]:
    """What the outputs of an equation are made of: of all that it reads, unless a body can be followed."""

    def inside(body: tuple[Jaxpr, Sequence[Any]], given: Sequence[Origins]) -> list[Origins]:
        return [o if isinstance(o, frozenset) else _NONE for o in interpret(*body, given, handle)]

    name = eqn.primitive.name
    if name in INLINED or name in CUSTOM:
        return inside(inner_jaxpr(eqn), operands)
    if name == "cond":
        branches = [inside(body, operands[1:]) for body in cond_branches(eqn)]
        return [_NONE.union(*each) for each in zip(*branches, strict=True)]
    if name == "scan":
        scan = scan_parts(eqn)
        n, m = scan.num_consts, scan.num_consts + scan.num_carry
        while True:
            outs = inside((scan.jaxpr, scan.consts), operands)
            carry = [a | b for a, b in zip(operands[n:m], outs[: m - n], strict=True)]
            if carry == operands[n:m]:
                return outs
            operands = [*operands[:n], *carry, *operands[m:]]
    return [_NONE.union(*operands)] * len(eqn.outvars)
