"""What the rest of a step can see of a hidden group: the activity on which a learning signal acts.

A group's activity is what weight ops read of it in the step that computes it: the spike of a membrane, whether or
not it is a state and before or after a reset; the h of an LSTM; a rate. Readouts are asked first, then ops of other
layers, then the outputs themselves. A position that none of them reads one to one is *bare*: a signal then acts on
its new states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax import Array, lax

from ..._compat import is_inexact
from ..dataflow import reach_through
from ..ir import Detach, Role
from ..opened import OpenStep
from ..primitives import Dep
from ._carried import traced_relations
from ._facts import Facts
from ._fan_out import NO_FAN_OUT, FanOut
from ._memo import memoised
from ._nodes import Node, OpNode, OutputNode, StateNode
from ._positions import Group


@dataclass(frozen=True)
class Reader:
    """A data operand of a weight op, or (site is None) an output leaf."""

    site: int | None
    index: int


@dataclass(frozen=True, eq=False)
class Visible:
    """Per group: for each reader the position that each of its elements shows (-1: none), and the bare positions.

    A position has one reader in `place`. `outputs` has, per group, all output leaves that show positions of it with no
    weight op in between, by their index, also where a weight op reads these positions.
    """

    facts: Facts
    readers: tuple[Reader, ...]
    place: tuple[dict[int, np.ndarray], ...]
    bare: tuple[np.ndarray, ...]
    outputs: tuple[dict[int, np.ndarray], ...]

    def shown_by_outputs(self, group: int) -> bool:
        """Whether the outputs show the whole group themselves, with no weight op in between."""
        place = self.place[group]
        return bool(place) and all(self.readers[k].site is None for k in place) and not self.bare[group].any()


def observe(
    facts: Facts, readers: Sequence[Reader], cut: frozenset[int], leaves: Sequence[Array], deltas: Mapping[int, Array],
    weights: Sequence[Array] | None = None, states: Mapping[int, Array] | None = None,
    ys: Mapping[int, Array] | None = None, detach: Detach = lax.stop_gradient,
) -> tuple[list[Array], list[Array]]:  # fmt: skip
    """What each reader sees, and the new states, in the step with the given sites cut."""
    outs, observed = OpenStep(facts.step, facts.sites, cut)(leaves, deltas, weights, ys, states=states, detach=detach)
    n, values = len(facts.states), []
    for r in readers:
        if r.site is None:
            values.append(outs[n + r.index])
        else:
            varying = facts.sites[r.site].rule.varying(facts.sites[r.site].call)
            values.append(observed[r.site].data[varying.index(r.index)])
    return values, outs[:n]


@memoised
def find_visible(facts: Facts) -> Visible:
    readers = tuple(_readers(facts))
    deps = _reach(facts, readers) if readers and facts.groups else {}
    place, bare, outputs = [], [], []
    for group in facts.groups:
        free = np.ones(group.num_positions, bool)
        places: dict[int, np.ndarray] = {}
        shown: dict[int, np.ndarray] = {}
        for k, reader in enumerate(readers):
            reached = {s: d for (s, at), d in deps.items() if at == k}
            here = _places(facts, group, reader, reached)
            if here is None:
                continue
            if reader.site is None and (here >= 0).any():
                shown[reader.index] = here
            here = np.where((here >= 0) & free[np.maximum(here, 0)], here, -1)
            if (here >= 0).any():
                places[k] = here
                free[here[here >= 0]] = False
        place.append(places)
        bare.append(free)
        outputs.append(shown)
    return Visible(facts, readers, tuple(place), tuple(bare), tuple(outputs))


@memoised
def signalled_sites(facts: Facts, fan_out: FanOut = NO_FAN_OUT) -> frozenset[int]:
    """Weight ops to which signals on the activity of groups can come; others have a gradient of zero under them.

    To an op with a trace a signal comes through the cut step, in the op's own step or later through the states of its
    group; to one without, in its own step and with nothing cut.
    """
    visible, traced = find_visible(facts), traced_relations(facts, fan_out)
    ends = [_signal_ends(visible, g) for g in range(len(facts.groups))]
    out = set()
    for g, group in enumerate(facts.groups):
        through = {*map(StateNode, group.leaves), *(OpNode(j) for j in range(len(facts.sites)) if j not in facts.cut)}
        shown = _before(facts, ends[g], through)
        out |= {r.site for r in traced if r.group == g and OpNode(r.site) in shown}
    at_once = _before(facts, set().union(*ends), set(map(OpNode, range(len(facts.sites)))))
    with_trace = {r.site for r in traced}
    return frozenset(out | {j for j in range(len(facts.sites)) if OpNode(j) in at_once and j not in with_trace})


def _signal_ends(visible: Visible, group: int) -> set[Node]:
    """Nodes whose operands show a group's activity, and its states if a position is bare."""
    readers = [visible.readers[k] for k in visible.place[group]]
    ends: set[Node] = {OutputNode(r.index) if r.site is None else OpNode(r.site) for r in readers}
    return ends | set(map(StateNode, visible.facts.groups[group].leaves if visible.bare[group].any() else ()))


def _before(facts: Facts, ends: set[Node], through: set[Node]) -> set[Node]:
    """Nodes from which an end can be reached by way of others; an end itself only if it reaches one."""
    before: set[Node] = set()
    while True:
        new = {s for s, t in facts.edges.dep if t in ends or (t in before and t in through)} - before
        if not new:
            return before
        before |= new


def _readers(facts: Facts) -> list[Reader]:
    """Readouts, then other weight ops, then outputs."""
    ops = [j for j, s in enumerate(facts.sites) if s.rule.mixes and len(s.at) == 1 and OpNode(j) in facts.live]
    ops.sort(key=lambda j: facts.remembers(OpNode(j)))
    readers = []
    for call, rule, j in ((facts.sites[j].call, facts.sites[j].rule, j) for j in ops):
        readers += [Reader(j, i) for i in rule.varying(call) if is_inexact(call.operands[i])]
    outputs = facts.step.select(Role.OUTPUT)
    return readers + [Reader(None, k) for k, leaf in enumerate(outputs) if is_inexact(leaf.aval)]


def _reach(facts: Facts, readers: Sequence[Reader]) -> dict[tuple[Node, int], Dep]:
    """How elements of old states and of weight ops reach elements of each reader through the cut step."""
    states, sites = sorted(facts.group_of_leaf), sorted({r.site for r in facts.relations})

    def run(moving: list[Array], leaves: list[Array]) -> list[Array]:
        old, deltas = dict(zip(states, moving, strict=False)), dict(zip(sites, moving[len(states) :], strict=True))
        return observe(facts, readers, facts.cut, leaves, deltas, states=old)[0]

    moving = [*(facts.states[i].aval for i in states), *(facts.sites[j].y_struct for j in sites)]
    rows, _ = reach_through(run, moving, [leaf.aval for leaf in facts.step.ins], range(len(readers)))
    nodes: list[Node] = [*map(StateNode, states), *map(OpNode, sites)]
    return {(node, k): dep for node, row in zip(nodes, rows, strict=True) for k, dep in row.items()}


def _places(facts: Facts, group: Group, reader: Reader, deps: Mapping[Node, Dep]) -> np.ndarray | None:
    """The position that each element of a reader shows, or None if one of them shows several.

    An element that only an old state reaches shows what the group was a step ago, and does not count. Nor does one that
    an op reads on its way to the group, which no state of the group reaches: it is no activity of the group yet.
    """
    shape = _shape(facts, reader)
    place = np.full(int(np.prod(shape, dtype=np.int64)), -1, np.int32)
    driven = np.zeros(place.size, bool)
    shows_states = np.full(place.size, all(r.site != reader.site or r.group != group.index for r in facts.relations))
    driven_by = {r.site: r.place for r in facts.relations if r.group == group.index and r.place is not None}
    for node, dep in deps.items():
        if isinstance(node, StateNode):
            source = group.place_of(node.index) if node.index in group.leaves else None
        else:
            source = driven_by.get(node.index)
        if source is None:
            continue
        if dep.part.labels is not None:
            return None
        flat = np.resize(source.reshape(-1), dep.maps[0].size)  # one place for all iterations of an inner loop
        for m in (m.reshape(-1) for m in dep.maps):
            at = np.flatnonzero((m >= 0) & (flat >= 0))
            before = place[m[at]]
            place[m[at]] = flat[at]
            if ((before >= 0) & (before != flat[at])).any() or (place[m[at]] != flat[at]).any():
                return None
            (driven if isinstance(node, OpNode) else shows_states)[m[at]] = True
    shown = driven & shows_states
    return np.where(shown, place, -1).reshape(shape) if shown.any() else None


def _shape(facts: Facts, reader: Reader) -> tuple[int, ...]:
    if reader.site is None:
        return facts.step.select(Role.OUTPUT)[reader.index].aval.shape
    return facts.sites[reader.site].call.operands[reader.index].shape


def elements_without_memory(facts: Facts, site: int) -> np.ndarray:
    """Elements of a weight op's output that reach no state, of the shape of y: outputs of the step are all they act on.

    An element that another weight op reads counts by that op: it may reach a state through it.
    """
    shown = np.ones(facts.sites[site].y_shape, bool)
    for target, dep in facts.edges.out(OpNode(site)).items():
        if isinstance(target, StateNode) or (isinstance(target, OpNode) and facts.remembers(target)):
            for m in dep.maps:
                shown &= m.reshape(shown.shape) < 0
    return shown
