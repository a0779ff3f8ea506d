"""What the analysis found in a step: rule-independent, frozen, and enough for every rule to give its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from ..ir import Leaf, Role, Step, format_path
from ..primitives import Cause, Dep, Precision, Range, look_up
from ._casts import complex_casts
from ._edges import Edges, state_leaves
from ._nodes import Node, OpNode, OutputNode, StateNode
from ._positions import Group
from ._propagate import UNKNOWN
from ._ranges import data_ranges
from ._sites import WeightSite
from ._tags import Tag, tag_of


class LossKind(StrEnum):
    """Why a path is not carried by per-position blocks."""

    TAIL = "tail"  # op → state spreads over several positions
    THROUGH_OP = "through another weight op"  # op → another weight op → state
    MIXING = "mixing"  # state → state across positions
    RECURRENT_OP = "recurrent weight op"  # state → weight op → state
    OTHER_GROUP = "other group"  # state → state of another group
    OTHER_STATE = "other state"  # through a state that is not a hidden state
    HALF = "half of a product"  # op → state, multiplied or divided by a state that has no trace
    NONLINEAR = "nonlinear derivative"  # a derivative rule that is not linear


_DECLARE = "declare it as one to have it carried"


@dataclass(frozen=True)
class Loss:
    """One path that per-position blocks do not carry, with the place in the model that makes it so."""

    kind: LossKind
    text: str
    cause: Cause | None = None


@dataclass(frozen=True, eq=False)
class Relation:
    """A weight op reaches a hidden group; `place[e]` is the position that element e of y reaches (-1: none).

    An op in an inner loop has one place for all iterations. `place` is None where an element of y reaches several
    positions: the relation is not representable.
    """

    site: int
    group: int
    place: np.ndarray | None
    cause: Cause | None = None

    @property
    def representable(self) -> bool:
        return self.place is not None

    @property
    def places(self) -> np.ndarray:
        """`place` of a representable relation."""
        assert self.place is not None
        return self.place


@dataclass(frozen=True, eq=False)
class Facts:
    """The result of the analysis of one step."""

    step: Step
    sites: tuple[WeightSite, ...]
    cut: frozenset[int]
    edges: Edges
    groups: tuple[Group, ...]
    relations: tuple[Relation, ...]

    @cached_property
    def casts(self) -> tuple[Cause, ...]:
        """Places where a complex number is cast to a real one, which drops its imaginary part."""
        return complex_casts(self.step)

    @cached_property
    def ranges(self) -> dict[int, Range]:
        """Per site, the range of the data that its weight meets, whatever the inputs."""
        return data_ranges(self.step, self.sites, positive_inputs=False)

    @cached_property
    def ranges_of_positive(self) -> dict[int, Range]:
        """The same for inputs that are never negative."""
        return data_ranges(self.step, self.sites, positive_inputs=True)

    @cached_property
    def states(self) -> list[Leaf]:
        """Hidden, then other state leaves; leaf numbers count these."""
        return state_leaves(self.step)

    @cached_property
    def group_of_leaf(self) -> dict[int, int]:
        return {leaf: g.index for g in self.groups for leaf in g.leaves}

    @cached_property
    def live(self) -> frozenset[Node]:
        """Nodes from which an output can be reached, now or later."""
        live: set[Node] = {t for _, t in self.edges.dep if isinstance(t, OutputNode)}
        while True:
            new = {s for s, t in self.edges.dep if t in live} - live
            if not new:
                return frozenset(live)
            live |= new

    def params_of(self, site: int) -> list[str]:
        leaves = self.step.select(Role.PARAM)
        return [format_path(leaves[p].path, "params") for p in sorted(self.sites[site].params)]

    def sites_of(self, param: int) -> list[int]:
        return [j for j, s in enumerate(self.sites) if param in s.params]

    def state_name(self, leaf: int) -> str:
        return format_path(self.states[leaf].path, "hidden")

    def remembers(self, node: Node) -> bool:
        """Whether a hidden state that matters is reached from here within the step."""
        seen, todo = {node}, [node]
        while todo:
            for target in self.edges.out(todo.pop()):
                if isinstance(target, StateNode) and target in self.live:
                    return True
                if isinstance(target, OpNode) and target not in seen:
                    seen.add(target)
                    todo.append(target)
        return False

    def carries(self, source: int, target: int) -> bool:
        """Whether the edge between two states stays within positions of one group."""
        dep = self.edges.dep.get((StateNode(source), StateNode(target)))
        if dep is None:
            return True
        a, b = self.group_of_leaf.get(source), self.group_of_leaf.get(target)
        if a is None or a != b:
            return False
        group = self.groups[a]
        found = target_places(dep, group.place_of(target))
        own = group.place_of(source)
        return found is not None and bool(((found == own) | (found < 0)).all())

    @cached_property
    def group_losses(self) -> tuple[tuple[Loss, ...], ...]:
        """For each group, the ways in which its states act on later states that blocks do not carry."""
        return tuple(tuple(_unique(self._losses_from(leaf) for leaf in g.leaves)) for g in self.groups)

    def _losses_from(self, leaf: int) -> list[Loss]:
        losses: list[Loss] = []
        ops: list[int] = []
        here = self.state_name(leaf)
        for target, dep in self.edges.out(StateNode(leaf)).items():
            if target not in self.live:
                continue
            if isinstance(target, StateNode) and not self.carries(leaf, target.index):
                losses.append(self._state_loss(leaf, target.index, dep))
            if isinstance(target, OpNode) and self.remembers(target):
                ops.append(target.index)
        if ops:
            through = ", ".join(f"{', '.join(self.params_of(j))} ({self.sites[j].label})" for j in sorted(ops))
            first = self.sites[min(ops)]
            text = f"state {here} acts on states through the weight op{'s' * (len(ops) > 1)} of {through}"
            losses.append(Loss(LossKind.RECURRENT_OP, text, Cause(first.call.primitive, first.source)))
        return losses

    def _state_loss(self, leaf: int, target: int, dep: Dep) -> Loss:
        here, there = self.state_name(leaf), self.state_name(target)
        where = f" ({dep.cause})" if dep.cause else ""
        if target not in self.group_of_leaf:
            text = f"state {here} acts on {there}, which is not a hidden state{where}; {_DECLARE}"
            return Loss(LossKind.OTHER_STATE, text, dep.cause)
        if self.group_of_leaf[leaf] != self.group_of_leaf[target]:
            return Loss(LossKind.OTHER_GROUP, f"state {here} acts on state {there} of another group{where}", dep.cause)
        return Loss(LossKind.MIXING, f"positions of state {here} act on other positions of {there}{where}", dep.cause)

    def site_losses(self, site: int) -> list[Loss]:
        """Paths from a weight op to hidden states that are not carried, within its own step."""
        losses = [self.nonlinear[0]] if self.nonlinear and self.remembers(OpNode(site)) else []
        for r in self.relations:
            if r.site == site and not r.representable and self._group_live(r.group):
                names = ", ".join(self.state_name(i) for i in self.groups[r.group].leaves)
                where = f" ({r.cause})" if r.cause else ""
                text = f"one element of {self.sites[site].label} reaches several positions of {names}{where}"
                losses.append(Loss(LossKind.TAIL, text, r.cause))
        for target in self.edges.out(OpNode(site)):
            if isinstance(target, OpNode) and target in self.live and self.remembers(target):
                names = ", ".join(self.params_of(target.index))
                other = self.sites[target.index]
                text = f"its output passes through the weight op of {names} ({other.label}) before it reaches a state"
                losses.append(Loss(LossKind.THROUGH_OP, text, Cause(other.call.primitive, other.source)))
            if isinstance(target, StateNode) and target in self.live and target.index not in self.group_of_leaf:
                text = f"it reaches {self.state_name(target.index)}, which is not a hidden state; {_DECLARE}"
                losses.append(Loss(LossKind.OTHER_STATE, text, None))
        return losses

    def rounding(self, param: int) -> list[Loss]:
        """Where gradients of a parameter's weights are rounded on their way to it."""
        causes = dict.fromkeys(self.sites[j].rounded for j in self.sites_of(param) if OpNode(j) in self.live)
        text = "the gradient of its weight is rounded at {}, once for all steps instead of at each of them"
        return [Loss(LossKind.NONLINEAR, text.format(c), c) for c in causes if c is not None]

    def _group_live(self, group: int) -> bool:
        return any(StateNode(i) in self.live for i in self.groups[group].leaves)

    @cached_property
    def nonlinear(self) -> tuple[Loss, ...]:
        """Derivative rules of the model that are not linear, or not known to be, in a gradient that comes from a state.

        What only the outputs of a step send back is differentiated by the window itself, whatever its rule.
        """
        own = "the model's own derivative rule at {} {}, so no trace can stand for it"
        unknown = "the derivative passes through {}, which {}, so nothing can be proved about it"
        found = [p for p in self.edges.problems if any(self._comes_back(node, p.kept) for node in p.sources)]
        return tuple(
            Loss(LossKind.NONLINEAR, (unknown if p.text == UNKNOWN else own).format(p.cause, p.text), p.cause)
            for p in found
        )

    def _comes_back(self, node: Node, kept: Precision | None) -> bool:
        """Whether the gradient that arrives at a node may come from a later step, and is finer than what is kept."""
        if node not in self.live or isinstance(node, OutputNode):
            return False
        if isinstance(node, OpNode) and not self.remembers(node):
            return False
        own = self.states[node.index].aval if isinstance(node, StateNode) else self.sites[node.index].call.out
        return kept is None or not kept.holds(Precision.of(own.dtype))

    @cached_property
    def tags(self) -> tuple[Tag, ...]:
        return tuple(tag_of(self, g) for g in self.groups)


def _unique(many: Iterable[Sequence[Loss]]) -> list[Loss]:
    return list(dict.fromkeys(loss for losses in many for loss in losses))


def target_places(dep: Dep, place: np.ndarray) -> np.ndarray | None:
    """Position that each element reaches (-1: none), or None if one of them reaches several."""
    flat = place.reshape(-1)
    if dep.part.labels is not None:
        blocks = np.full(int(dep.part.labels.max()) + 1, -1, np.int32)
        blocks[dep.part.labels] = flat
        whole = blocks[dep.part.labels] == flat  # a block within one position agrees with all of its elements
        spread = np.zeros(blocks.size, bool)
        spread[dep.part.labels[~whole]] = True
        flat = np.where(spread, -2, blocks)
    first, *rest = (look_up(flat, m) for m in dep.maps)
    if (first == -2).any():
        return None
    for at in rest:
        if (at == -2).any() or ((first >= 0) & (at >= 0) & (first != at)).any():
            return None
        first = np.maximum(first, at)
    return first
