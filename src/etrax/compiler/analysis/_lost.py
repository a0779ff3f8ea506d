"""Paths from a parameter to a state that per-position blocks do not carry, as data. Words are in `rules/_words`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from ..dataflow import UNKNOWN
from ..ir import source_of_eqn
from ..primitives import Cause, Precision
from ._fan_out import FanOut, bytes_over_pairs, can_fan_out, fanned_out
from ._nodes import Node, OpNode, OutputNode, StateNode

if TYPE_CHECKING:
    from ._facts import Facts


class LostKind(StrEnum):
    """Why a path is not carried by per-position blocks."""

    TAIL = "tail"  # op → state spreads over several positions
    THROUGH_OP = "through another weight op"  # op → another weight op → state
    MIXING = "mixing"  # state → state across positions
    RECURRENT_OP = "recurrent weight op"  # state → weight op → state
    OTHER_GROUP = "other group"  # state → state of another group
    OTHER_STATE = "other state"  # through a state that is not a hidden state
    HALF = "half of a product"  # op → state, multiplied or divided by a state that has no trace
    RESCALED = "half of a difference"  # op → state, kept in the units of another state that acts on it without a trace
    NONLINEAR = "nonlinear derivative"  # a derivative rule that is not linear
    UNKNOWN = "unknown derivative"  # a derivative that passes through a primitive of which nothing is known
    ROUNDED = "rounded gradient"  # weight → parameter, rounded on the way


@dataclass(frozen=True)
class LostPath:
    """One path that is not carried: where it begins, what it reaches, and the place in the model that makes it so.

    `beside` are the states that a half of a product is multiplied or divided by; `detail` is what a primitive's record
    says of a derivative that is not linear; `nbytes` is what a trace over all pairs would take, where one is possible.
    """

    kind: LostKind
    cause: Cause | None = None
    source: Node | None = None
    targets: tuple[Node, ...] = ()
    beside: tuple[Node, ...] = ()
    detail: str = ""
    nbytes: int | None = None


def state_nodes(leaves: Sequence[int]) -> tuple[Node, ...]:
    return tuple(StateNode(i) for i in leaves)


def lost_from_group(facts: Facts, group: int) -> tuple[LostPath, ...]:
    """The ways in which the states of a group act on later states that blocks do not carry."""
    return tuple(dict.fromkeys(path for leaf in facts.groups[group].leaves for path in lost_from_state(facts, leaf)))


def lost_from_state(facts: Facts, leaf: int, mask: np.ndarray | None = None) -> list[LostPath]:
    """The ways in which a state, or those of its elements that a mask marks, acts on states without being carried."""
    lost: list[LostPath] = []
    ops: list[int] = []
    here = StateNode(leaf)
    for target, dep in facts.edges.out(here).items():
        if target not in facts.live or (mask is not None and dep.masked(mask).is_empty):
            continue
        if isinstance(target, StateNode) and not facts.carries(leaf, target.index, mask):
            cause = dep.cause or _made_at(facts, target.index)
            lost.append(LostPath(_kind_between(facts, leaf, target.index), cause, here, (target,)))
        if isinstance(target, OpNode) and facts.remembers(target):
            ops.append(target.index)
    if ops:
        first = facts.sites[min(ops)]
        cause = Cause(first.call.primitive, first.source)
        lost.append(LostPath(LostKind.RECURRENT_OP, cause, here, tuple(OpNode(j) for j in sorted(ops))))
    return lost


def _made_at(facts: Facts, leaf: int) -> Cause | None:
    """The equation that computes a new state; None if it is an old one, or a constant."""
    new = facts.step.jaxpr.outvars[leaf]
    makers = (eqn for eqn in facts.step.jaxpr.eqns if any(v is new for v in eqn.outvars))
    return next((Cause(eqn.primitive.name, source_of_eqn(eqn)) for eqn in makers), None)


def _kind_between(facts: Facts, leaf: int, target: int) -> LostKind:
    if target not in facts.group_of_leaf:
        return LostKind.OTHER_STATE
    same = facts.group_of_leaf[leaf] == facts.group_of_leaf[target]
    return LostKind.MIXING if same else LostKind.OTHER_GROUP


def lost_within_step(facts: Facts, site: int, fan_out: FanOut) -> list[LostPath]:
    """Paths from a weight op to hidden states that are not carried, within its own step."""
    here = OpNode(site)
    lost = [facts.nonlinear[0]] if facts.nonlinear and facts.remembers(here) else []
    for r in facts.relations_of.get(site, ()):
        if r.representable or not facts.matters(r.group) or fanned_out(facts, r, fan_out):
            continue
        nbytes = bytes_over_pairs(facts, r) if can_fan_out(facts, r) else None
        ends = state_nodes(facts.groups[r.group].leaves)
        lost.append(LostPath(LostKind.TAIL, r.cause, here, ends, nbytes=nbytes))
    for target in facts.edges.out(here):
        if isinstance(target, OpNode) and target in facts.live and facts.remembers(target):
            other = facts.sites[target.index]
            cause = Cause(other.call.primitive, other.source)
            lost.append(LostPath(LostKind.THROUGH_OP, cause, here, (target,)))
        if isinstance(target, StateNode) and target in facts.live and target.index not in facts.group_of_leaf:
            lost.append(LostPath(LostKind.OTHER_STATE, _made_at(facts, target.index), here, (target,)))
    return lost


def rounded_gradients(facts: Facts, param: int) -> list[LostPath]:
    """Where gradients of a parameter's weights are rounded on their way to it."""
    causes = dict.fromkeys(facts.sites[j].rounded for j in facts.live_sites_of(param))
    return [LostPath(LostKind.ROUNDED, cause) for cause in causes if cause is not None]


def nonlinear_derivatives(facts: Facts) -> tuple[LostPath, ...]:
    """Derivative rules of the model that are not linear, or not known to be, in a gradient that comes from a state.

    What only the outputs of a step send back is differentiated by the window itself, whatever its rule.
    """
    problems = [p for p in facts.edges.problems if any(_comes_back(facts, node, p.precision) for node in p.sources)]
    return tuple(
        LostPath(LostKind.UNKNOWN if p.text == UNKNOWN else LostKind.NONLINEAR, p.cause, detail=p.text)
        for p in problems
    )


def _comes_back(facts: Facts, node: Node, precision: Precision | None) -> bool:
    """Whether the gradient that arrives at a node may come from a later step, and is finer than what is kept."""
    if node not in facts.live or isinstance(node, OutputNode):
        return False
    if isinstance(node, OpNode) and not facts.remembers(node):
        return False
    aval = facts.states[node.index].aval if isinstance(node, StateNode) else facts.sites[node.index].call.out
    return precision is None or not precision.holds(Precision.of(aval.dtype))
