"""What the analysis found in a step: rule-independent, frozen, and enough for every rule to give its verdict."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..._compat import is_complex
from ..ir import Leaf, Role, Step, equations, format_path, source_of_eqn
from ..opened import WeightSite
from ..primitives import Cause, Range, record_of
from ._edges import Edges
from ._fan_out import Copies, Reach
from ._lost import LostPath, lost_from_group, nonlinear_derivatives
from ._nodes import Node, OpNode, OutputNode, StateNode
from ._positions import Group, target_places
from ._ranges import data_ranges
from ._subgroups import subgroups_of
from ._tags import Tag, tag_of


@dataclass(frozen=True, eq=False)
class Relation:
    """A weight op reaches a hidden group; `place[e]` is the position that element e of y reaches (-1: none).

    An op in an inner loop has one place for all iterations. `place` is None where an element of y reaches several
    positions: the relation is not representable as it stands, but may be once y is repeated. It is then that of the
    copies of y (`fanned_out`), which `copies` describes.
    """

    site: int
    group: int
    place: np.ndarray | None
    cause: Cause | None = None
    reach: Reach = ()
    copies: Copies | None = None

    @property
    def representable(self) -> bool:
        return self.place is not None

    @property
    def places(self) -> np.ndarray:
        """`place` of a representable relation."""
        assert self.place is not None
        return self.place


class LeakyStates(NamedTuple):
    """States that each stand for `length` ones, which differ by their leaks alone: filtered data (`_filtered.py`).

    `leaks` and `factors` are the numbers of the input leaves that hold these, κ (S, S, length, …) and f, (S, length, …)
    or (S, 1, …), of the S states; the step reads the first of them.
    """

    states: tuple[int, ...]
    leaks: int
    factors: int
    length: int


@dataclass(frozen=True, eq=False)
class Facts:
    """The result of the analysis of one step.

    `parameter_inputs` are the numbers of input leaves that are made of parameters only, by whoever calls the step.
    `leaky` are states that stand for several, where whoever calls the step carries more than it shows.
    `lanes` is the number of streams along the first axis of every state, where each may start again on its own: no
    trace is then equal for several of them.
    `written` are the facts of the step as it was written, if linear maps in series are one product in this one.
    `memo` holds what functions marked `memoised` have computed from these facts.
    """

    step: Step
    sites: tuple[WeightSite, ...]
    cut: frozenset[int]
    edges: Edges
    groups: tuple[Group, ...]
    relations: tuple[Relation, ...]
    parameter_inputs: frozenset[int] = frozenset()
    leaky: tuple[LeakyStates, ...] = ()
    lanes: int | None = None
    written: Facts | None = None
    memo: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)

    @property
    def as_written(self) -> Facts:
        """The facts of the step as it was written."""
        return self if self.written is None else self.written

    @cached_property
    def casts(self) -> tuple[Cause, ...]:
        """Places where a complex number is cast to a real one, which drops its imaginary part."""
        casts = [
            Cause(eqn.primitive.name, source_of_eqn(eqn))
            for eqn in equations(self.step.jaxpr)
            if record_of(eqn.primitive.name).casts and is_complex(eqn.invars[0].aval) > is_complex(eqn.outvars[0].aval)
        ]
        return tuple(dict.fromkeys(casts))

    @cached_property
    def ranges(self) -> dict[int, Range]:
        """Per site, the range of the data that its weight meets, whatever the inputs."""
        return data_ranges(self.step, self.sites, positive_inputs=False)

    @cached_property
    def ranges_of_positive(self) -> dict[int, Range]:
        """Per site, the range of the data that its weight meets, for inputs that are never negative."""
        return data_ranges(self.step, self.sites, positive_inputs=True)

    @cached_property
    def states(self) -> list[Leaf]:
        """Hidden, then other state leaves; leaf numbers count these."""
        return self.step.states

    @property
    def subgroups(self) -> tuple[Group, ...]:
        """States that some ops reach alone, at finer positions than in their group; numbered behind the groups."""
        return subgroups_of(self)

    def group(self, index: int) -> Group:
        """A group, or a subgroup."""
        n = len(self.groups)
        return self.groups[index] if index < n else self.subgroups[index - n]

    @cached_property
    def group_of_leaf(self) -> dict[int, int]:
        return {leaf: g.index for g in self.groups for leaf in g.leaves}

    @cached_property
    def relations_of(self) -> dict[int, list[Relation]]:
        """The relations of each site that has any."""
        by_site: dict[int, list[Relation]] = {}
        for r in self.relations:
            by_site.setdefault(r.site, []).append(r)
        return by_site

    @cached_property
    def live(self) -> frozenset[Node]:
        """Nodes from which an output can be reached, now or later."""
        return self.edges.before({t for _, t in self.edges.every if isinstance(t, OutputNode)})

    @cached_property
    def _remembered(self) -> frozenset[Node]:
        """Nodes from which a hidden state that matters is reached within the step."""
        states = {t for _, t in self.edges.every if isinstance(t, StateNode) and t in self.live}
        ends = {s for s, t in self.edges.every if t in states}
        return self.edges.before(ends, through=OpNode)

    @cached_property
    def unreached(self) -> frozenset[int]:
        """States that no weight op ever reaches: no parameter acts on them, so that they have no trace."""
        reached: set[Node] = {s for s, _ in self.edges.dep if isinstance(s, OpNode)}
        while True:
            new = {t for s, t in self.edges.every if s in reached} - reached
            if not new:
                return frozenset(i for i in range(len(self.states)) if StateNode(i) not in reached)
            reached |= new

    @cached_property
    def _param_names(self) -> list[str]:
        return [format_path(leaf.path, "params") for leaf in self.step.select(Role.PARAM)]

    def params_of(self, site: int) -> list[str]:
        return [self._param_names[p] for p in sorted(self.sites[site].params)]

    def sites_of(self, param: int) -> list[int]:
        return [j for j, s in enumerate(self.sites) if param in s.params]

    def live_sites_of(self, param: int) -> list[int]:
        """The weight ops of a parameter that an output shows, now or later."""
        return [j for j in self.sites_of(param) if OpNode(j) in self.live]

    def state_name(self, leaf: int) -> str:
        return format_path(self.states[leaf].path, "hidden")

    def remembers(self, node: Node) -> bool:
        """Whether a hidden state that matters is reached from here within the step."""
        return node in self._remembered

    def carries(self, source: int, target: int, mask: np.ndarray | None = None) -> bool:
        """Whether the edge between two states, or from those elements that a mask marks, stays within positions."""
        dep = self.edges.dep.get((StateNode(source), StateNode(target)))
        if dep is None:
            return True
        a, b = self.group_of_leaf.get(source), self.group_of_leaf.get(target)
        if a is None or a != b:
            return False
        group, dep = self.groups[a], dep if mask is None else dep.masked(mask)
        reached = target_places(dep, group.place_of(target))
        place = group.place_of(source)
        return reached is not None and bool(((reached == place) | (reached < 0)).all())

    def matters(self, group: int) -> bool:
        """Whether an output can be reached from a state of this group."""
        return any(StateNode(i) in self.live for i in self.groups[group].leaves)

    @cached_property
    def lost_from_group(self) -> tuple[tuple[LostPath, ...], ...]:
        """For each group, the ways in which its states act on later states that blocks do not carry."""
        return tuple(lost_from_group(self, g.index) for g in self.groups)

    @cached_property
    def nonlinear(self) -> tuple[LostPath, ...]:
        """Derivative rules of the model that are not linear, or not known to be, in a gradient from a later step."""
        return nonlinear_derivatives(self)

    @cached_property
    def tags(self) -> tuple[Tag, ...]:
        return tuple(tag_of(self, g) for g in self.groups)
