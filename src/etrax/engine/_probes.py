"""D and F of the cut step, by reverse mode: which cotangents to pull back, and how to read the blocks off.

One pull reads one state scalar of many positions at once. Positions that act on each other, and groups that share a
source, are probed in different pulls: a block is then never a sum over several positions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._compat import is_inexact
from ..analysis import (
    Derived,
    Facts,
    Group,
    Node,
    OpenStep,
    Relation,
    StateNode,
    colours,
    derived_states,
    driven_slots,
    slot_links,
)
from ..ir import mapped, number_outputs
from . import _site_math as site_math
from ._blocks import Block, Entry, full
from ._layout import Layout, layout_of
from ._pushes import Pushes
from ._stacked import Pattern, Sparse
from ._transport import PullBack
from ._weights import weights


@dataclass(frozen=True, eq=False)
class Probe:
    """Read slot `slot` of group `group`, at the positions where `colour` is true (None: all)."""

    group: int
    slot: int
    colour: np.ndarray | None


# D of a group, and F of a relation: lists of arrays per slot; of a group that is stacked, arrays.
AnyBlock: TypeAlias = Block | Sparse
Rows: TypeAlias = list[Array] | Array

# More pulls than this are made as one.
SEPARATE_PULLS = 8


@dataclass(frozen=True, eq=False)
class Pulls:
    """Which cotangents to pull back, and where blocks stand in what comes back.

    `layouts` has one entry per group. Each pull is a set of probes that do not disturb each other. `places[k]` is the
    position that each element of relation k's y reaches, `drives[k]` the slots that they act on.
    """

    layouts: tuple[Layout, ...]
    pulls: tuple[tuple[Probe, ...], ...]
    relations: tuple[Relation, ...] = ()
    places: tuple[np.ndarray | None, ...] = ()
    drives: tuple[np.ndarray, ...] = ()

    @property
    def leaves(self) -> list[int]:
        """The states whose cotangents are pulled back."""
        return sorted({slot.leaf for layout in self.layouts for slot in layout.slots})

    def __call__(self, pull: PullBack) -> tuple[list[AnyBlock], list[Rows]]:
        """D per group and F per relation, given the pull-back of new states to old states and outputs of ops.

        Of a group that is stacked, D is `Sparse`, and F an array over the slots that the op drives.
        """
        avals = {i: layout.avals[i] for layout in self.layouts for i in layout.avals}
        zeros = {i: np.zeros(avals[i].shape, avals[i].dtype) for i in self.leaves}
        if len(self.pulls) > SEPARATE_PULLS or any(layout.stacked for layout in self.layouts):
            return self._all_at_once(pull, zeros)
        blocks, rows = self._blank()
        for probes in self.pulls:
            cotangents = dict(zeros)
            for p in probes:
                for i, c in self.layouts[p.group].probe(p.slot, p.colour).items():
                    if i in zeros:  # a state that follows from others is not probed
                        cotangents[i] = cotangents[i] + c.astype(avals[i].dtype)
            h_bar, d_bar = pull({i: jnp.asarray(c) for i, c in cotangents.items()})
            for p in probes:
                self._read(p, h_bar, d_bar, blocks, rows)
        return [*blocks], [full(row) for row in rows]

    def _blank(self) -> tuple[list[Block], list[list[Entry]]]:
        rows: list[list[Entry]] = [[None] * self.layouts[r.group].size for r in self.relations]
        return [[[None] * g.size for _ in range(g.size)] for g in self.layouts], rows

    def _all_at_once(self, pull: PullBack, zeros: Mapping[int, np.ndarray]) -> tuple[list[AnyBlock], list[Rows]]:
        """Many pulls as one with a leading axis: what each is to read is chosen from the stack."""
        blocks, rows = self._blank()
        stacked = {i: np.zeros((len(self.pulls), *a.shape), a.dtype) for i, a in zeros.items()}
        readers: dict[tuple[int, int], list[int]] = {}
        for n, probes in enumerate(self.pulls):
            for p in probes:
                readers.setdefault((p.group, p.slot), []).append(n)
                for i, c in self.layouts[p.group].probe(p.slot, p.colour).items():
                    if i in stacked:  # a state that follows from others is not probed
                        stacked[i][n] += c.astype(stacked[i].dtype)
        h_bar, d_bar = mapped(pull, {i: jnp.asarray(c) for i, c in stacked.items()})
        found: list[AnyBlock] = [*blocks]
        arrays: dict[int, Array] = {}
        for g in sorted({g for g, _ in readers if self.layouts[g].stacked}):
            which = self._readers(g, readers)
            found[g] = self._stacked_block(g, which, h_bar)
            arrays |= {k: self._stacked_rows(k, which, d_bar) for k, r in enumerate(self.relations) if r.group == g}
        for (g, s), at in readers.items():
            layout = self.layouts[g]
            if layout.stacked:
                continue
            colours = [next(p.colour for p in self.pulls[n] if (p.group, p.slot) == (g, s)) for n in at]
            which = _which(colours, layout.group.num_positions)
            own = {i: h_bar[i][np.array(at)] for i in layout.group.leaves if i in h_bar}
            read = jax.vmap(layout.read)(own)
            for t in np.flatnonzero(layout.links[s]):
                flat = read[t].reshape(len(at), -1)
                blocks[g][s][t] = jnp.take_along_axis(flat, which[None], 0)[0].reshape(layout.shape)
            for k, r in enumerate(self.relations):
                if r.group == g:
                    value = _chosen(d_bar[r.site][np.array(at)], self.places[k], which)
                    rows[k][s] = value if self.drives[k][s] else jnp.zeros_like(value)
        return found, [arrays[k] if k in arrays else full(row) for k, row in enumerate(rows)]

    def _readers(self, g: int, readers: Mapping[tuple[int, int], list[int]]) -> np.ndarray:
        """(S, positions): the number of the pull that reads a slot."""
        found = []
        for s in range(self.layouts[g].size):
            at = readers[g, s]
            masks = [next(p.colour for p in self.pulls[n] if (p.group, p.slot) == (g, s)) for n in at]
            found.append(np.array(at)[_which(masks, self.layouts[g].group.num_positions)])
        return np.stack(found)

    def _stacked_block(self, g: int, which: np.ndarray, h_bar: Mapping[int, Array]) -> Sparse:
        layout = self.layouts[g]
        pattern = Pattern.of(layout.links)
        rows, cols = pattern.entries
        read = jax.vmap(layout.stack)({i: h_bar[i] for i in layout.group.leaves if i in h_bar})
        if (which == which[:, :1]).all():
            return Sparse(read[which[rows, 0], cols], pattern)
        flat = read.reshape(*read.shape[:2], -1)
        values = flat[which[rows], cols[:, None], np.arange(flat.shape[2])]
        return Sparse(values.reshape(-1, *layout.shape), pattern)

    def _stacked_rows(self, k: int, which: np.ndarray, d_bar: Mapping[int, Array]) -> Array:
        """F at the slots that relation k drives."""
        stack, place = d_bar[self.relations[k].site], self.places[k]
        which = which[self.drives[k]]
        if place is None or (which == which[:, :1]).all():
            found = stack[which[:, 0]]
        else:
            at = np.broadcast_to(place, stack.shape[1:])
            found = jnp.take_along_axis(stack, which[:, np.maximum(at, 0)], 0)
        return found if place is None or (place >= 0).all() else jnp.where(place >= 0, found, 0)

    def _read(
        self,
        p: Probe,
        h_bar: Mapping[int, Array],
        d_bar: Mapping[int, Array],
        blocks: list[Block],
        rows: list[list[Entry]],
    ) -> None:
        """Add what one pull gave for a probe."""
        layout = self.layouts[p.group]
        links = layout.links[p.slot]
        for t, value in enumerate(layout.read(h_bar)):
            if links[t]:
                value = value if p.colour is None else jnp.where(p.colour.reshape(layout.shape), value, 0)
                blocks[p.group][p.slot][t] = _plus(blocks[p.group][p.slot][t], value)
        for k, r in enumerate(self.relations):
            if r.group != p.group:
                continue
            value, place = d_bar[r.site], self.places[k]
            if not self.drives[k][p.slot]:
                value = jnp.zeros_like(value)
            if p.colour is not None and place is not None:
                value = jnp.where((place >= 0) & p.colour[np.maximum(place, 0)], value, 0)
            rows[k][p.slot] = _plus(rows[k][p.slot], value)


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
        return self.read(*lax.stop_gradient((list(leaves), list(weights), dict(ys))))

    def read(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[AnyBlock], list[Rows]]:
        """The same, as values that can be differentiated in turn."""
        facts, moving = self.facts, self.reading.leaves
        opened = OpenStep(facts.step, facts.sites, facts.cut)
        old, used = facts.step.states_of(leaves), sorted({r.site for r in self.relations})

        def run(h: dict[int, Array], deltas: dict[int, Array]) -> dict[int, Array]:
            states = dict(enumerate(old)) | h
            for d in self.derived.values():  # their values are what they were, their derivatives those of the others
                for i, value in d({k: states[k] for k in d.kept}).items():
                    states[i] = old[i] + (value - lax.stop_gradient(value))
            outs, _ = opened(leaves, deltas, weights, ys, states=states)
            return {i: outs[i] for i in moving}

        _, pull = jax.vjp(run, {i: old[i] for i in moving}, opened.no_deltas(used))
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


def _which(colours: Sequence[np.ndarray | None], positions: int) -> np.ndarray:
    """Per position, which of several pulls reads it."""
    found = np.zeros(positions, np.int32)
    for n, colour in enumerate(colours):
        found[... if colour is None else colour] = n
    return found


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


def _chosen(stack: Array, place: np.ndarray | None, which: np.ndarray) -> Array:
    """Per element of y, what the pull of its position gave."""
    if place is None:
        return stack.sum(0)
    at = np.broadcast_to(place, stack.shape[1:])
    found = jnp.take_along_axis(stack, which[np.maximum(at, 0)][None], 0)[0]
    return jnp.where(at >= 0, found, 0) if (at < 0).any() else found


def _plus(a: Entry, b: Array) -> Array:
    return b if a is None else a + b


def plan_probes(
    facts: Facts, relations: Sequence[Relation], reduced: bool = False, groups: Sequence[Group] | None = None,
    without: Collection[int] = (), follow: bool = False,
) -> Probes:  # fmt: skip
    """Layouts and pulls for the groups that the relations reach, or for all (`groups`, with states in their order).

    `reduced` leaves out states that follow from others or reach no output, and blocks of states that do not act on
    each other; `without` are further states to leave out. With `follow`, states that follow from others have rows of
    D and F, but act on nothing: those that they are made of act in their place.
    """
    needed = sorted({r.group for r in relations}) if groups is None else list(range(len(groups)))
    known, groups = groups is None, facts.groups if groups is None else groups
    derived = {g: d for g, d in derived_states(facts).items() if g in needed} if reduced or follow else {}
    layouts = tuple(
        layout_of(facts, g, (*(untraced_leaves(facts, g.index) if reduced else ()), *without)) for g in groups
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
    layouts = tuple(layout if layout.group.index in needed else _empty(layout) for layout in layouts)
    return Probes(facts, layouts, tuple(relations), tuple(pulls), derived, frozenset(without))


def probes_of(g: int, layout: Layout, colour: np.ndarray | None) -> list[Probe]:
    """One probe per colour of the positions of group g, and state scalar; None: one colour is enough."""
    masks = [None] if colour is None else [colour.reshape(-1) == c for c in range(int(colour.max()) + 1)]
    return [Probe(g, s, mask) for mask in masks for s in range(layout.size)]


def untraced_leaves(facts: Facts, group: int) -> tuple[int, ...]:
    """Leaves of a group that need no trace: it follows from that of others, or they reach no output."""
    derived = derived_states(facts).get(group)
    unread = (i for i in facts.groups[group].leaves if StateNode(i) not in facts.live)
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


def _empty(layout: Layout) -> Layout:
    return Layout(layout.group, (), layout.shape, layout.avals)


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
