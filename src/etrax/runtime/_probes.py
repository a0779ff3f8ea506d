"""D and F of the cut step, by reverse mode: which cotangents are pulled back together.

One pull reads one state scalar of many positions at once. Positions that act on each other, and groups that share a
source, are probed in different pulls: a block is then never a sum over several positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    derived_states,
    driven_slots,
    slot_links,
)
from ..compiler.dataflow import number_outputs
from ..compiler.ir import Detach, detaching_vjp
from ..compiler.opened import OpenStep, weights
from . import _site_math as site_math
from ._blocks import Block
from ._layout import Layout, layout_of
from ._pulls import AnyBlock, Probe, Pulls, Rows
from ._pushes import Pushes
from ._stacked import Sparse


@dataclass(frozen=True, eq=False)
class Probes:
    """A plan to read D and F off a step; `derived` are states that follow from others, by group.

    `without` are states that it leaves out beside those.
    """

    facts: Facts
    layouts: tuple[Layout, ...]
    relations: tuple[Relation, ...]
    pulls: tuple[tuple[Probe, ...], ...]
    derived: Mapping[int, Derived] = field(default_factory=dict)
    without: frozenset[int] = frozenset()

    def of(self, relations: Sequence[Relation]) -> Probes:
        """The same states for other relations."""
        return plan_probes(self.facts, relations, reduced=True, without=self.without)

    @cached_property
    def reading(self) -> Pulls:
        pulled = {k: _source(r) for k, r in enumerate(self.relations) if k not in self.pushes}
        places = tuple(_beside_loops(self.facts, r) for r in pulled.values())
        return Pulls(self.layouts, self.pulls, tuple(pulled.values()), places, tuple(map(self.drives, pulled)))

    @cached_property
    def pushes(self) -> dict[int, Pushes]:
        """By the number of the relation."""
        copied = {k: r for k, r in enumerate(self.relations) if _source(r).copies is not None}
        return {k: Pushes(self.facts, r, self.layouts[r.group], self.drives(k)) for k, r in copied.items()}

    def drives(self, k: int) -> np.ndarray:
        """(S,): the slots that the op of relation k acts on within its step."""
        return _drives(self.facts, self.relations[k], self.layouts[self.relations[k].group])

    def by_slot(self, k: int, rows: Rows, lead: int = 0) -> list[tuple[int, Array]]:
        """F of relation k slot by slot, with so many axes before that of slots, for the slots that its op acts on."""
        driven = np.flatnonzero(self.drives(k)).tolist()
        if not isinstance(rows, list):
            return list(zip(driven, jnp.moveaxis(rows, lead, 0), strict=True))
        return [(s, rows[s]) for s in driven]

    def without_derived(self, g: Mapping[int, Array], states: Sequence[Array]) -> Mapping[int, Array]:
        """Cotangents of states, with those of derived states taken to the states that they are made of."""
        found = dict(g)
        for d in self.derived.values():
            _, pull = jax.vjp(d, {i: states[i] for i in d.kept})
            for i, value in pull({i: g[i] for i in d.gone})[0].items():
                found[i] = found[i] + value
        return found

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[AnyBlock], list[Rows]]:
        """D per group, and F per relation (one array of y's shape per slot), at one step, given the outputs of ops.

        F of a relation with copies has the shape of these.
        """
        facts, moving = self.facts, self.reading.leaves
        opened = OpenStep(facts.step, facts.sites, facts.cut)
        old, used = facts.step.states_of(leaves), sorted({r.site for r in self.relations})

        def run(detach: Detach, h: dict[int, Array], deltas: dict[int, Array]) -> dict[int, Array]:
            states = dict(enumerate(old)) | h
            for d in self.derived.values():  # their values are what they were, their derivatives those of the others
                for i, value in d({k: states[k] for k in d.kept}).items():
                    states[i] = old[i] + (value - detach(value))
            outs, _ = opened(leaves, deltas, weights, ys, states=states, detach=detach)
            return {i: outs[i] for i in moving}

        _, pull = detaching_vjp(run, {i: old[i] for i in moving}, opened.no_deltas(used))
        blocks, pulled = self.reading(pull)
        rows = iter(pulled)

        def from_all(cotangents: Mapping[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
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
        made = jax.eval_shape(lambda *p: weights(facts.step, facts.sites, p).weight, *params)
        return structs, made, {j: s.y_struct for j, s in enumerate(facts.sites)}

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


def as_lists(found: tuple[list[AnyBlock], list[Rows]]) -> tuple[list[Block], list[list[Array]]]:
    """D and F of groups of which none is stacked."""
    blocks = [d for d in found[0] if not isinstance(d, Sparse)]
    rows = [f for f in found[1] if isinstance(f, list)]
    assert (len(blocks), len(rows)) == (len(found[0]), len(found[1]))
    return blocks, rows


def _source(relation: Relation) -> Relation:
    """The relation that F is read of: with all columns of y, where the given one leaves some out."""
    source = relation.copies.source if relation.copies is not None else None
    return relation if source is None else source


def _at_columns(relation: Relation, rows: Rows) -> Rows:
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
    facts: Facts, relations: Sequence[Relation], reduced: bool = False, groups: Sequence[Group] | None = None,
    without: Collection[int] = (), follow: bool = False,
) -> Probes:  # fmt: skip
    """Layouts and pulls for the groups that the relations reach, or for all (`groups`, with states in their order).

    `groups` show every state that they have; otherwise states that no weight op reaches are left out, for they have no
    trace. `reduced` leaves out states that follow from others or reach no output, and blocks of states that do not act
    on each other; `without` are further states to leave out. With `follow`, states that follow from others have rows of
    D and F, but act on nothing: those that they are made of act in their place.
    """
    needed = sorted({r.group for r in relations}) if groups is None else list(range(len(groups)))
    known, groups = groups is None, facts.groups if groups is None else groups
    derived = {g: d for g, d in derived_states(facts).items() if g in needed} if reduced or follow else {}
    unreached = facts.unreached if known else frozenset()
    layouts = tuple(
        layout_of(facts, g, (*(untraced_leaves(facts, g.index) if reduced else unreached), *without)) for g in groups
    )
    if known:
        layouts = tuple(linked(facts, layout, derived.get(layout.group.index)) for layout in layouts)
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
            probes = probes_of(g, layouts[g], colours(facts, facts.groups[g]))
            lists.append(together(probes, layouts[g], _drivers(facts, relations, layouts[g])))
        for k in range(max(map(len, lists))):
            pulls.append(tuple(p for found in lists if k < len(found) for p in found[k]))
    layouts = tuple(layout if layout.group.index in needed else layout.without_slots() for layout in layouts)
    return Probes(facts, layouts, tuple(relations), tuple(pulls), derived, frozenset(without))


def probes_of(g: int, layout: Layout, colour: np.ndarray | None) -> list[Probe]:
    """One probe per colour of the positions of group g, and state scalar; None: one colour is enough."""
    masks = [None] if colour is None else [colour.reshape(-1) == c for c in range(int(colour.max()) + 1)]
    return [Probe(g, s, mask) for mask in masks for s in range(layout.size)]


def untraced_leaves(facts: Facts, group: int) -> tuple[int, ...]:
    """Leaves of a group that need no trace: it follows from that of others, or they are unreached, or unread."""
    derived = derived_states(facts).get(group)
    unread = (i for i in facts.groups[group].leaves if StateNode(i) not in facts.live or i in facts.unreached)
    return tuple(dict.fromkeys((*(derived.gone if derived is not None else ()), *unread)))


def linked(facts: Facts, layout: Layout, derived: Derived | None = None) -> Layout:
    """A layout that knows which of its slots act on which, by themselves or through states that follow from them."""
    group, known = layout.group, slot_links(facts.edges, layout.group)
    own = np.array([s.number for s in layout.slots], np.int64)
    links = known[np.ix_(own, own)]
    for i, sources in (derived.sources if derived is not None else {}).items():
        acted_on = known[np.ix_(own, np.unique(group.slot[group.leaves.index(i)]))].any(1)
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
    found: list[list[Probe]] = []
    for p in probes:
        for pull in found:
            if pull[0].colour is p.colour and not any(meet[p.slot, q.slot] for q in pull):
                pull.append(p)
                break
        else:
            found.append([p])
    return [tuple(pull) for pull in found]


def _disturb(facts: Facts, a: int, b: int) -> bool:
    """Whether some state or weight op reaches both groups within a step."""
    one, two = set(facts.groups[a].leaves), set(facts.groups[b].leaves)
    reached: dict[Node, set[int]] = {}
    for source, target in facts.edges.dep:
        if isinstance(target, StateNode):
            reached.setdefault(source, set()).add(target.index)
    return any(found & one and found & two for found in reached.values())


def differentiable(facts: Facts) -> list[int]:
    """State leaves that have derivatives."""
    return [i for i, leaf in enumerate(facts.states) if is_inexact(leaf.aval)]
