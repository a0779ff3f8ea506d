"""The plan of traces by position: per relation its copies and columns, its structure, and the view it is read in.

A relation says its copies (fan-out) and columns, `structure` what is known of D and F before running, `reader` the view
of the states. Whatever a plan holds, one transport serves it (`traces/_by_position.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._compat import common_dtype, materialised, promotes
from ..compiler.analysis import NO_FAN_OUT, Facts, FanOut, Relation, is_steep, traced_relations
from ..compiler.opened import WeightSite, fixed_operands
from . import _site_math as site_math
from ._before_reset import zero_where
from ._even import EvenGather, even_gather, pack_of
from ._layout import Gather, Layout, closure, gather_of
from ._pulls import Pack
from ._readers import Reader, plain_algebra
from ._recorder import FixedParts, Recorder
from ._resets import LaneMap, at_lanes, lanes_of_data, lanes_of_group, remaining
from ._site_math import Operands, trace_dtype_of, widened
from ._structure import Structure, Uniforms, known_structure, products
from ._transport import WindowData
from .blocks import (
    Algebra,
    Alike,
    Entry,
    Matrix,
    Stacked,
    Step,
    Unrolled,
    Vector,
    alike,
    narrowed,
    reverse,
    shortened,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Plan:
    """Per relation: how positions are read at the elements of y, the type of its trace, and what is known of it."""

    facts: Facts
    reader: Reader
    gathers: tuple[Gather, ...]
    dtypes: tuple[np.dtype, ...]
    structure: Structure = field(default_factory=Structure)

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.reader.relations

    @cached_property
    def steep(self) -> bool:
        """Whether products with influences have to be masked (`_zeros.py`)."""
        return is_steep(self.facts)

    @cached_property
    def groups(self) -> list[int]:
        return sorted({r.group for r in self.relations})

    def layout(self, k: int) -> Layout:
        return self.reader.layouts[self.relations[k].group]

    def site(self, k: int) -> WeightSite:
        """The op of relation k, with its outputs repeated where they reach several positions."""
        r = self.relations[k]
        return self.facts.sites[r.site] if r.copies is None else r.copies.site

    @cached_property
    def algebras(self) -> dict[int, Algebra]:
        """Per group, by its layout and by what is known of its blocks."""
        return {g: self._algebra(self.reader.layouts[g], self.structure.blocks.get(g)) for g in self.groups}

    def _algebra(self, layout: Layout, uniforms: Uniforms | None) -> Algebra:
        even = self.structure.even_blocks.get(layout.group.index)
        if even is not None:
            return Stacked(layout.size, shortened(layout.shape, even), self.steep, even=True)
        if uniforms is None:
            return plain_algebra(layout, self.steep)
        evens = zip(products(uniforms, layout.lead + len(layout.shape)), layout.leads, strict=True)
        shapes = [
            [None if e is None else shortened((*lead, *layout.shape), e.along) for e in line] for line, lead in evens
        ]
        return Unrolled(shapes, self.steep)

    def algebra(self, k: int) -> Algebra:
        return self.algebras[self.relations[k].group]

    @cached_property
    def alike(self) -> dict[int, Alike]:
        """By group of which nothing is known but which slots act on which: the algebra of slots that act alike."""
        layouts = {g: self.reader.layouts[g] for g in self.groups if g not in self.structure.blocks}
        algebras = {
            g: alike(layout.links, layout.shape, self.steep)
            for g, layout in layouts.items()
            if not layout.stacked and not layout.counts
        }
        return {g: algebra for g, algebra in algebras.items() if algebra is not None}

    def is_narrow(self, k: int) -> bool:
        """Whether D and F of relation k have axes of one where all along them is equal."""
        return k in self.structure.rows

    def source(self, k: int) -> int:
        """The relation whose trace serves relation k: its own, or one that it shares."""
        shared = self.structure.shared.get(k)
        return k if shared is None else shared.source

    @cached_property
    def drives(self) -> list[np.ndarray]:
        """Per relation, the slots that its op acts on within its step."""
        return [self.reader.drives(k) for k in range(len(self.relations))]

    @cached_property
    def carried(self) -> list[list[int]]:
        """Per relation, the slots that its op reaches in any number of steps: no other has a trace."""
        pairs = [(closure(self.layout(k).links), acts) for k, acts in enumerate(self.drives)]
        return [np.flatnonzero((links & acts).any(1)).tolist() for links, acts in pairs]

    @cached_property
    def along(self) -> dict[int, list[tuple[bool, ...]]]:
        """Per narrow relation and slot, the axes of y along which its trace is equal."""
        return {k: [slot.along for slot in self.structure.slots(k)] for k in self.structure.rows}

    @cached_property
    def even_gathers(self) -> dict[int, EvenGather]:
        """How blocks that are equal along axes of positions are read at y, per relation to a group of many states."""
        even, layouts = self.structure.even_blocks, self.reader.layouts
        reached = {k: r for k, r in enumerate(self.relations) if r.group in even}
        return {k: even_gather(r.places, layouts[r.group].shape, even[r.group]) for k, r in reached.items()}

    def even_along(self, k: int) -> tuple[bool, ...] | None:
        """The axes of y along which the trace of relation k is equal, for many states; None if there are none."""
        rows = self.structure.even_rows.get(k)
        if rows is None or k not in self.even_gathers or self.relations[k].copies is not None:
            return None
        along = tuple(a and b for a, b in zip(rows, self.even_gathers[k].along, strict=True))
        return along if any(e and n > 1 for e, n in zip(along, self.site(k).call.out.shape, strict=True)) else None

    @cached_property
    def recorder(self) -> Recorder:
        """What is read of D and F at each step, and once before a window."""
        return Recorder(self.reader, self.structure, [self.even_along(k) for k in range(len(self.relations))])

    @property
    def packs(self) -> dict[int, Pack]:
        """By group, how many of its slots can be read in one pull, since blocks are equal along axes of positions."""
        packs = {}
        for g, even in self.structure.even_blocks.items():
            alongs = {k: self.even_along(k) for k, r in enumerate(self.relations) if r.group == g}
            ops = {self.relations[k].site: (self.relations[k].places, a) for k, a in alongs.items() if a is not None}
            packs[g] = pack_of(self.reader.layouts[g].shape, even, ops)
        return packs

    # Lanes that start again.

    @cached_property
    def lanes(self) -> dict[int, LaneMap]:
        """Per group, the lane of every position, as arrays per slot have them."""
        layouts = {g: self.reader.layouts[g] for g in self.groups}
        return {g: lanes_of_group(self.facts, layout.group, layout.shape) for g, layout in layouts.items()}

    def lanes_at(self, k: int) -> LaneMap:
        """The lane of every element of relation k's y; one that reaches no position has any."""
        lanes, places = self.lanes[self.relations[k].group], self.relations[k].places
        return None if lanes is None else lanes.reshape(-1)[np.maximum(places, 0)]

    def lanes_of_data(self, sites: Collection[int]) -> dict[int, LaneMap]:
        """By site, the lane of each number that is remembered of its data."""
        if self.facts.lanes is None:
            return dict.fromkeys(sites)
        constants = fixed_operands(self.facts.step, self.facts.sites)
        lanes = {}
        for k, r in enumerate(self.relations):
            if r.site in sites:
                at = self.lanes_at(k)
                assert at is not None
                outputs = np.where(r.places < 0, -1, at)
                lanes[r.site] = lanes_of_data(self.site(k), constants[r.site], outputs)
        return lanes

    def resets(self, window: WindowData, until_exit: bool = False) -> dict[int, Array]:
        """Per group, flags at its positions over the steps of a window; nothing if none starts again.

        A flag is set where something starts again before a step, or, with `until_exit`, before it or a later one.
        """
        if window.resets is None:
            return {}
        layouts, flags = self.reader.layouts, ~remaining(window.resets)[:-1] if until_exit else window.resets
        return {g: at_lanes(flags, lanes, len(layouts[g].shape), 1) for g, lanes in self.lanes.items()}

    def since_reset(self, k: int, c: T, window: WindowData) -> T:
        """Values at y of relation k over the steps of a window, with zero at steps before a reset."""
        if window.resets is None:
            return c
        lanes, site, past = self.lanes_at(k), self.site(k), ~remaining(window.resets)[1:]
        if lanes is not None:
            lanes = np.broadcast_to(lanes.reshape(site.beside_loops(lanes.shape)), site.y_shape)
        return jax.tree.map(lambda a: zero_where(past, lanes, a, lead=1), c)

    def zeros(self, k: int) -> Array:
        """Zeros for one slot of the trace of relation k."""
        return jnp.zeros(site_math.trace_shape(self.site(k)), self.dtypes[k])

    @promotes
    def narrow_shape(self, k: int, along: Sequence[bool]) -> tuple[int, ...]:
        """The shape of one slot's share of a trace that is equal along axes of y: that of data times a narrow c."""
        site = self.site(k)
        c = jax.ShapeDtypeStruct((1, *shortened(site.call.out.shape, along)), self.dtypes[k])
        u = [site.call.operands[i] for i in site.rule.varying(site.call)]
        data = [jax.ShapeDtypeStruct((1, *a.shape), a.dtype) for a in u]
        fixed = [site.call.operands[i] for i in site.rule.fixed_operands]
        return jax.eval_shape(lambda f, u, c: site.rule.outer(site.call, f, u, c), fixed, data, c).shape

    def is_data(self, k: int, entry: Array) -> bool:
        """Whether an array of a narrow trace is of the form and type of the op's data."""
        site = self.site(k)
        if site.rule.as_data is None:
            return False
        data = site.call.operands[site.rule.varying(site.call)[0]]
        return data.dtype == site.call.out.dtype == entry.dtype and entry.size == math.prod(data.shape)

    # From positions to the elements of y.

    @cached_property
    def _products_at_ops(self) -> dict[int, Uniforms]:
        ranks = {k: self.layout(k).lead + len(self.gathers[k].shape) for k in self.structure.at_ops}
        return {k: products(evens, ranks[k]) for k, evens in self.structure.at_ops.items()}

    def at_op(self, k: int, a: Matrix, algebra: Algebra | None = None) -> Matrix:
        """A matrix per position, at the elements of relation k's y; by default of the group's own algebra."""
        layout, gather = self.layout(k), self.gathers[k]
        evens = self._products_at_ops.get(k)

        def read(p: Array, s: int, t: int) -> Entry:
            if k in self.even_gathers:
                return self.even_gathers[k](p)
            if evens is None:
                return layout.at_y(gather, p)
            even = evens[s][t]
            if gather.is_identity and layout.shape == gather.shape:
                return p
            # The identity is equal everywhere, also at elements that reach no position: F is zero there, not P.
            return None if even is None else narrowed(layout.at_y(gather.of_any, p), even.along)

        return (algebra or self.algebra(k)).map(read, a)

    def at_trace(self, k: int, p: Array, entry: Array, fixed: Sequence[Operands]) -> Array:
        """Values at the elements of y that a trace of relation k meets, broadcastable to it."""
        at = p if self.is_narrow(k) or k in self.even_gathers else self.met(k, entry, p, fixed)
        return site_math.spread(self.site(k), fixed[self.relations[k].site], at)

    def met(self, k: int, entry: Array, signal: Array, fixed: Sequence[Operands]) -> Array:
        """A signal at the elements of y, as a trace of relation k meets it: in a steep step, with 0 for 0 · ∞."""
        return site_math.met(self.site(k), fixed[self.relations[k].site], entry, signal) if self.steep else signal

    def signal(self, k: int, v: Vector, gains: Mapping[int, Array]) -> Vector:
        """A row of the group's slots, at the elements of y, as the trace meets it that serves relation k.

        A trace that is another's, turned, is that one, and the signal is turned back; a gain that was taken out of F
        is multiplied with it.
        """

        def at(x: Array) -> Array:
            x = self.layout(k).at_y(self.gathers[k], x)
            return x * gains[k].astype(x.dtype) if k in gains else x

        out, shared = self.algebra(k).map_vector(at, v), self.structure.shared.get(k)
        if shared is None:
            return out
        pairs = zip(shared.places, shared.signs, out, strict=True)
        turned = {p: x if sign > 0 or x is None else -x for p, sign, x in pairs}
        return [turned[s] for s in range(len(turned))]

    def signals(self, k: int, g: Mapping[int, Array]) -> list[Array]:
        """Cotangents of hidden leaves, per slot, at the elements of relation k's y."""
        layout = self.layout(k)
        slots = layout.read({i: g[i] for i in layout.group.leaves})
        return [self.gathers[k](s).astype(self.dtypes[k]) for s in slots]

    def vectors(self, g: Mapping[int, Array]) -> dict[int, Vector]:
        """Cotangents of hidden leaves, per group."""
        layouts = {n: self.reader.layouts[n] for n in self.groups}
        return {n: layout.vector({i: g[i] for i in layout.group.leaves if i in g}) for n, layout in layouts.items()}

    # From elements of y to weights.

    def apply(self, k: int, entry: Array, signal: Array, fixed: Sequence[Operands]) -> Array:
        """A trace against a signal at the elements of y, of the shape of the weights of `site(k)`."""
        r, signal = self.relations[k], self.met(k, entry, signal, fixed)
        return site_math.apply(self.site(k), fixed[r.site], entry, signal)

    def of_weight(self, k: int, g: Array) -> Array:
        """A gradient of the weights of `site(k)`, as that of the op's own."""
        copies = self.relations[k].copies
        if copies is None:
            return g
        # Written down first: a sum over samples that XLA fuses with zeros in other columns takes four times as long.
        g = materialised(g) if copies.source is not None else g
        return site_math.copies_added(copies, g, copies.columns.weight)

    def of_output(self, k: int, c: Array) -> Array:
        """Values at the copies of relation k's y, summed at y."""
        copies = self.relations[k].copies
        return c if copies is None else site_math.copies_added(copies, c, copies.columns.out)

    def outer(self, k: int, c: Array, window: WindowData) -> Array:
        """Σ_t u_t ⊗ c_t, in the trace's type."""
        r = self.relations[k]
        data = [widened(u, c.dtype) for u in window.data(r.site)]
        return site_math.outer(self.site(k), window.fixed[r.site], data, c).astype(self.dtypes[k])

    def grad(self, k: int, c: Array, window: WindowData) -> Array:
        """Σ_t (∂y_t/∂w)ᵀ c_t, of the weight's shape, for c at y itself."""
        r = self.relations[k]
        c = c.astype(common_dtype(c.dtype, self.dtypes[k]))
        data = [widened(u, c.dtype) for u in window.data(r.site)]
        return site_math.grad(self.facts.sites[r.site], window.fixed[r.site], data, c)

    # Products over a window.

    def pulled_rows(
        self, window: WindowData, records: Step, new: Mapping[int, Vector], old: Mapping[int, Vector],
        until_exit: bool = False,
    ) -> tuple[dict[int, Vector], dict[int, Array]]:  # fmt: skip
        """Rows per slot, taken back through a window: what is left at the entry, and a · F_k at y of each relation.

        `new` and `old` are what acts on the states after and before each step, per group and slot, over the steps; a
        at step k is what comes from later steps. `old` has all slots, `new` may have None for some. With `until_exit`
        what happened before a reset does not count at all.
        """
        fixed, algebras, recorder = self.recorder.fixed(window), self.algebras, self.recorder
        start = {g: algebras[g].row(jax.tree.map(lambda x: jnp.zeros_like(x[0]), v)) for g, v in old.items()}
        new_rows, old_rows = (
            {g: jax.vmap(algebras[g].row, axis_size=window.steps)(v) for g, v in part.items()} for part in (new, old)
        )

        def emit(a: Mapping[int, Matrix], step: Step) -> dict[int, Array]:
            met = {k: r.group for k, r in enumerate(self.relations) if r.group in a}
            return {k: self.driven_dot(k, algebras[g].of_row(a[g]), step, fixed) for k, g in met.items()}

        resets = {g: flags for g, flags in self.resets(window, until_exit).items() if g in start}
        entry, c = reverse(
            algebras, start, window.steps, lambda record: recorder.read(fixed, record), records, emit, new_rows,
            old_rows, resets,
        )  # fmt: skip
        if until_exit:
            c = {k: self.since_reset(k, a, window) for k, a in c.items()}
        return {g: algebras[g].of_row(a) for g, a in entry.items()}, c

    def driven_dot(self, k: int, a: Vector, step: Step, fixed: FixedParts) -> Array:
        """a · F at y of relation k, (loops…, …)."""
        m = self.source(k)
        algebra, site, signal = self.algebra(k), self.site(k), self.signal(k, a, fixed.gains)
        at = algebra.map_vector(lambda x: site_math.beside_loops(site, x), signal)
        shape = (*(n for _, n in site.loops), *site.call.out.shape)
        return self.of_output(k, jnp.broadcast_to(algebra.dot(step.rows[m], at, self.drives[m]), shape))


def plan_of(reader: Reader, trace_dtype: DTypeLike | None, structured: bool = False) -> Plan:
    """The plan of a reader's relations; `structured` with what is known of their blocks."""
    facts = reader.view.facts
    groups = [facts.group(r.group) for r in reader.relations]
    pairs = zip(reader.relations, groups, strict=True)
    gathers = [gather_of(r.places, g.varshape, g.num_positions) for r, g in pairs]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in reader.relations]
    structure = known_structure(reader, gathers, dtypes) if structured else Structure()
    return Plan(facts, reader, tuple(gathers), tuple(dtypes), structure)


def carried_relations(
    facts: Facts, sites: frozenset[int] | None = None, fan_out: FanOut = NO_FAN_OUT
) -> list[Relation]:
    """Relations of the given sites (None: all) that per-position blocks carry."""
    return [r for r in traced_relations(facts, fan_out) if sites is None or r.site in sites]
