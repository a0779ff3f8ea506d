"""D and F of the cut step, by reverse mode: which cotangents are pulled back together.

One pull reads one state scalar of many positions at once. Positions that act on each other, and groups that share a
source, are probed in different pulls: a block is then never a sum over several positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._compat import is_inexact
from ..compiler.analysis import (
    Derived,
    Facts,
    Group,
    Node,
    Relation,
    StateNode,
    colours,
    driven_slots,
    slot_links,
)
from ..compiler.dataflow import number_outputs
from ..compiler.ir import Detach, detaching_vjp
from ..compiler.opened import OpenStep, weights
from . import _site_math as site_math
from ._layout import Layout, layout_of
from ._pulls import Pack, Probe, Pulls
from ._pushes import Pushes
from ._view import View
from .blocks import Block, Vector


@dataclass(frozen=True, eq=False)
class Probes:
    """A plan to read D and F off a step, in a view of its states."""

    facts: Facts
    layouts: tuple[Layout, ...]
    relations: tuple[Relation, ...]
    pulls: tuple[tuple[Probe, ...], ...]
    view: View
    packs: Mapping[int, Pack] = field(default_factory=dict)

    def of(self, relations: Sequence[Relation]) -> Probes:
        """Probes for other relations, in the same view."""
        return plan_probes(self.view, relations, packs=self.packs)

    def packed(self, packs: Mapping[int, Pack]) -> Probes:
        """Probes that read many slots of some groups in one pull."""
        return plan_probes(self.view, self.relations, packs=packs)

    @cached_property
    def derived(self) -> list[Derived]:
        """States of the groups of these relations that follow from others."""
        needed = {layout.group.index for layout in self.layouts if layout.slots}
        return [d for g, d in self.view.derived.items() if g in needed]

    @cached_property
    def reading(self) -> Pulls:
        pulled = {k: _source(r) for k, r in enumerate(self.relations) if k not in self.pushes}
        places = tuple(_beside_loops(self.facts, r) for r in pulled.values())
        drives = tuple(map(self.drives, pulled))
        return Pulls(self.layouts, self.pulls, tuple(pulled.values()), places, drives, self.packs)

    @cached_property
    def pushes(self) -> dict[int, Pushes]:
        """Pushes by the number of the relation, for those whose outputs reach several positions."""
        copied = {k: r for k, r in enumerate(self.relations) if _source(r).copies is not None}
        return {k: Pushes(self.facts, r, self.layouts[r.group], self.drives(k)) for k, r in copied.items()}

    def drives(self, k: int) -> np.ndarray:
        """(S,): the slots that the op of relation k acts on within its step."""
        return _drives(self.facts, self.relations[k], self.layouts[self.relations[k].group])

    def low_pass(self, group: int) -> Mapping[int, tuple[int, float]]:
        """Slots that are low-pass copies of others: none."""
        return {}

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[Block], list[Vector]]:
        """D per group, and F per relation (one array of y's shape per slot), at one step, given the outputs of ops.

        F of a relation with copies has the shape of these.
        """
        facts, moving = self.facts, self.reading.leaves
        opened = OpenStep(facts.step, facts.sites, facts.cut)
        old, used = facts.step.states_of(leaves), sorted({r.site for r in self.relations})

        def run(detach: Detach, h: dict[int, Array], deltas: dict[int, Array]) -> dict[int, Array]:
            states = dict(enumerate(old)) | h
            for d in self.derived:  # their values are what they were, their derivatives those of the others
                for i, value in d({k: states[k] for k in d.kept}).items():
                    # Adds zero that has a derivative: the value stays what the step had.
                    states[i] = old[i] + (value - detach(value))
            outs, _ = opened(leaves, deltas, weights, ys, states=states, detach=detach)
            return {i: outs[i] for i in moving}

        _, pull = detaching_vjp(run, {i: old[i] for i in moving}, opened.no_deltas(used))
        blocks, pulled = self.reading(pull)
        rows = iter(pulled)

        def from_all(cotangents: Mapping[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
            # A pull-back takes cotangents of all its outputs; those that nobody asked for are zero.
            none = {i: jnp.zeros_like(old[i]) for i in moving}
            return pull({**none, **cotangents})

        return blocks, [
            self.pushes[k](from_all) if k in self.pushes else _at_columns(r, next(rows))
            for k, r in enumerate(self.relations)
        ]

    def stand_ins(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], dict]:
        """Shapes and types of what it is called with: leaves of the step, weights, outputs of ops."""
        facts = self.facts
        structs = [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in facts.step.ins]
        params = structs[: facts.step.first_state]
        weight_structs = jax.eval_shape(lambda *p: weights(facts.step, facts.sites, p).weight, *params)
        return structs, weight_structs, {j: s.y_struct for j, s in enumerate(facts.sites)}

    def alike(self) -> list[int]:
        """Per relation, the first one whose rows of F are the same values at every step, to the same positions.

        Ops that are summed before anything else happens to them (input, recurrence) have the same.
        """
        # A plain function: JAX prints what it traces, and a plan of a deep net is long to print.
        traced, tree = jax.make_jaxpr(lambda *given: self(*given), return_shape=True)(*self.stand_ins())
        names = jax.tree.unflatten(jax.tree.structure(tree), number_outputs(traced))
        keys = [
            (r.group, r.places.shape, r.places.tobytes(), tuple(jax.tree.leaves(row)))
            for r, row in zip(self.relations, names[1], strict=True)
        ]
        return [keys.index(key) for key in keys]


def _source(relation: Relation) -> Relation:
    """The relation that F is read of: with all columns of y, where the given one leaves some out."""
    source = relation.copies.source if relation.copies is not None else None
    return relation if source is None else source


def _at_columns(relation: Relation, rows: Vector) -> Vector:
    """F of all columns of y, at those that a relation has."""
    copies = relation.copies
    if copies is None:
        return rows
    return jax.tree.map(lambda a: site_math.at_columns(copies, a, a.ndim + copies.columns.out), rows)


def _beside_loops(facts: Facts, relation: Relation) -> np.ndarray | None:
    """Places of an op's elements, beside an array with axes of inner loops."""
    place = relation.place
    return None if place is None else place.reshape(facts.sites[relation.site].beside_loops(place.shape))


def plan_probes(
    view: View, relations: Sequence[Relation], groups: Sequence[Group] | None = None,
    packs: Mapping[int, Pack] | None = None,
) -> Probes:  # fmt: skip
    """Layouts and pulls for the groups that the relations reach, or for all (`groups`, with states in their order).

    `packs` are those of groups of which one pull may read many slots.
    """
    facts = view.facts
    packs = {g: pack for g, pack in (packs or {}).items() if _can_pack(facts, g, pack, relations)}
    needed = sorted({r.group for r in relations}) if groups is None else list(range(len(groups)))
    linkable, groups = groups is None, (*facts.groups, *facts.subgroups) if groups is None else groups
    layouts = tuple(layout_of(facts, g, sorted(view.gone)) for g in groups)
    if linkable:
        layouts = tuple(linked(facts, layout, view.derived.get(layout.group.index)) for layout in layouts)
    rounds: list[list[int]] = []
    for g in needed:
        for members in rounds:
            if not any(_disturb(facts, g, other) for other in members):
                members.append(g)
                break
        else:
            rounds.append([g])
    pulls: list[tuple[Probe, ...]] = []
    for members in rounds:
        lists = []
        for g in members:
            if g in packs:
                lists.append(packs[g].probes(g, layouts[g]))
                continue
            probes = probes_of(g, layouts[g], colours(facts, facts.group(g)))
            lists.append(together(probes, layouts[g], _drivers(facts, relations, layouts[g])))
        for k in range(max(map(len, lists))):
            pulls.append(tuple(p for pulls_of_group in lists if k < len(pulls_of_group) for p in pulls_of_group[k]))
    layouts = tuple(layout if layout.group.index in needed else layout.without_slots() for layout in layouts)
    return Probes(facts, layouts, tuple(relations), tuple(pulls), view, packs)


def _can_pack(facts: Facts, g: int, pack: Pack, relations: Sequence[Relation]) -> bool:
    """Whether positions do not act on each other, and it is known where F of each op that is pulled back is read."""
    pulled = [r for r in relations if r.group == g and _source(r).copies is None]
    outputs_are_read = all(r.site in pack.outputs and r.copies is None for r in pulled)
    return outputs_are_read and colours(facts, facts.group(g)) is None


def probes_of(g: int, layout: Layout, colour: np.ndarray | None) -> list[Probe]:
    """Probes of group g: one for each state scalar and each colour of its positions. Without colours, one reads all."""
    masks = [None] if colour is None else [colour.reshape(-1) == c for c in range(int(colour.max()) + 1)]
    return [Probe(g, s, mask) for mask in masks for s in range(layout.size)]


def linked(facts: Facts, layout: Layout, derived: Derived | None = None) -> Layout:
    """A layout that knows which of its slots act on which, by themselves or through states that follow from them."""
    group, group_links = layout.group, slot_links(facts.edges, layout.group)
    numbers = np.array([s.number for s in layout.slots], np.int64)
    links = group_links[np.ix_(numbers, numbers)]
    for i, sources in (derived.sources if derived is not None else {}).items():
        acted_on = group_links[np.ix_(numbers, np.unique(group.slot[group.leaves.index(i)]))].any(1)
        made_of = np.array([s.leaf in sources for s in layout.slots], bool)
        links |= np.logical_and.outer(acted_on, made_of)
    links[:, [derived is not None and s.leaf in derived.sources for s in layout.slots]] = False
    return replace(layout, known=links)


def _drives(facts: Facts, relation: Relation, layout: Layout) -> np.ndarray:
    if layout.known is None:
        return np.ones(layout.size, bool)
    return driven_slots(facts.edges, relation.site, layout.group)[[s.number for s in layout.slots]]


def _drivers(facts: Facts, relations: Sequence[Relation], layout: Layout) -> list[np.ndarray]:
    """Per relation that reaches the group, the slots that its op acts on."""
    return [_drives(facts, r, layout) for r in relations if r.group == layout.group.index]


def together(probes: Sequence[Probe], layout: Layout, drivers: Sequence[np.ndarray]) -> list[tuple[Probe, ...]]:
    """Probes of slots that no slot and no op acts on both, as one pull: one is enough for a delay line."""
    sources = np.concatenate([layout.links, *(d[:, None] for d in drivers)], 1).astype(np.int32)
    meet = (sources @ sources.T) > 0
    pulls: list[list[Probe]] = []
    for p in probes:
        for pull in pulls:
            if pull[0].colour is p.colour and not any(meet[p.slot, q.slot] for q in pull):
                pull.append(p)
                break
        else:
            pulls.append([p])
    return [tuple(pull) for pull in pulls]


def _disturb(facts: Facts, a: int, b: int) -> bool:
    """Whether some state or weight op reaches both groups within a step."""
    one, two = set(facts.group(a).leaves), set(facts.group(b).leaves)
    reached: dict[Node, set[int]] = {}
    for source, target in facts.edges.every:
        if isinstance(target, StateNode):
            reached.setdefault(source, set()).add(target.index)
    return any(groups & one and groups & two for groups in reached.values())


def differentiable(facts: Facts) -> list[int]:
    """State leaves that have derivatives."""
    return [i for i, leaf in enumerate(facts.states) if is_inexact(leaf.aval)]
