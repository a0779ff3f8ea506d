"""One hop: what a layer does to a leaky layer above it, carried at its own positions.

A leaky layer with one leak over its positions commutes with its weight op, r = r̃·V with r̃' = κ r̃ + f u (`with_filters`
in `analysis`). r̃ lives where the data u do, at the positions of the layer below. The influence of a weight w of that
layer on r is then no (w × outputs) matrix, but that on r̃, one state scalar more at each of its positions:

    D gains the row [f ∂u/∂h, κ], F the entry f ∂u/∂y        credit through r: (∂L/∂r_0 · Vᵀ) · ε_r̃

Where κ and f differ between the columns of V (a leak per unit, a layer of few spiking neurons), each column o has
filtered data r̃_o of its own, and credit (∂L/∂r_0[o] V[:, o]) · ε_r̃_o. They may depend on states and on the sample.

Where κ are many constants λ_o, few shared ones may stand for them, λ_o^t ≈ Σ_j w_j(λ_o) κ_j^t (`shared_leaks`):

    r̃_j' = κ_j r̃_j + f u        credit (Σ_o ∂L/∂r_0[o] w_j(λ_o) V[:, o]) · ε_r̃_j for each j

A factor f that differs between the columns, but is made of parameters, is then left out of r̃ and meets the credit.

V is today's V: exact for parameters that stand still. While V learns, what the layer did to r long ago is weighed with
V as it is now. It does not go two hops up: there the derivative in between stays inside the sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ..._compat import is_complex
from ...compiler.analysis import (
    Facts,
    Filter,
    OpNode,
    Relation,
    SharedLeaks,
    analyse,
    lost_from_op,
    memoised,
    traced_relations,
    with_filters,
)
from ...compiler.dataflow import constant_outputs, without_zeros
from ...compiler.ir import Role
from ...compiler.ops import column_axes, data_axes
from .._plan import Plan, plan_of
from .._probes import plan_probes
from .._structure import Structure, structure_of
from .._transport import EachStep, FusedCredit, Transport, WindowData
from .._view import reduced_view

R = TypeVar("R")


class Rates(NamedTuple):
    """Along which axes of y the leak κ and the factor f of a layer differ: columns of the weight, axes of the data."""

    columns: tuple[int, ...]
    samples: tuple[int, ...]


class Hop(NamedTuple):
    """A weight op through which a layer acts on a leaky group; `states` are its filtered data in the wider step."""

    site: int
    group: int
    states: tuple[int, ...]


@memoised
def possible_hops(facts: Facts) -> Hopped | None:
    """Ops that feed a group without weight ops in its recurrence, which feeds nothing but outputs, and no other group.

    Its leaks may differ between samples, and between columns of the weight.
    """
    if facts.written is not None:  # not beside maps in series: shapes of both kinds of trace do not fit in all models
        return None
    relations = [r for r in traced_relations(facts) if _feeds_leaky(facts, r)]
    layouts = plan_probes(reduced_view(facts), relations).layouts
    relations = [r for r in relations if not layouts[r.group].stacked]
    groups = Counter(r.site for r in facts.relations if facts.matters(r.group))
    relations = [r for r in relations if groups[r.site] == 1 and not lost_from_op(facts, r.site)]
    return hopped_with(facts, dict.fromkeys(relations)) if relations else None


def _rates(facts: Facts, relation: Relation, structure: Structure, k: int) -> Rates:
    """Along which axes the rates of relation k differ, by what is known of its blocks."""
    call, slots = facts.sites[relation.site].call, structure.slots(k)
    uneven = [axis for axis in range(len(call.out.shape)) if not all(slot.along[axis] for slot in slots)]
    columns = column_axes(call)
    return Rates(tuple(a for a in uneven if a in columns), tuple(a for a in uneven if a not in columns))


def _column_count(facts: Facts, relation: Relation, rates: Rates) -> int:
    return math.prod(facts.sites[relation.site].call.out.shape[a] for a in rates.columns)


def _feeds_leaky(facts: Facts, r: Relation) -> bool:
    site, group = facts.sites[r.site], facts.groups[r.group]
    if site.rule.data_bar is None or len(site.at) > 1 or site.loops or facts.lost_from_group[r.group]:
        return False
    numbers = [site.call.out, *site.call.operands, *(facts.states[i].aval for i in group.leaves)]
    if any(is_complex(a) for a in numbers) or r.places.shape != site.call.out.shape or (r.places < 0).any():
        return False
    return OpNode(r.site) in facts.live and len({a.dtype for a in numbers}) == 1


class WiderStep:
    """A step with more states than the one that runs, of which only derivatives count, and inputs for what moves them.

    `rates` are these inputs at a step; `signals` the cotangents of its states, given those of the step that runs.
    """

    facts: Facts

    @cached_property
    def wider(self) -> Facts:
        raise NotImplementedError

    def rates(self, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]) -> list[Array]:
        raise NotImplementedError

    def rates_before(self, params: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """Read the rates that are made of parameters only, once, before a window runs."""
        raise NotImplementedError

    def signals(self, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        raise NotImplementedError

    def with_data(self, states: Sequence[Any]) -> list[Any]:
        """States in the order of the wider step; those that were added are zero."""
        first, last = (len(step.select(Role.HIDDEN)) for step in (self.facts.step, self.wider.step))
        more = [leaf.aval for leaf in self.wider.states[first:last]]
        return [*states[:first], *(jnp.zeros(a.shape, a.dtype) for a in more), *states[first:]]

    def leaves(self, leaves: Sequence[Array], rates: Sequence[Array]) -> list[Array]:
        step = self.facts.step
        first, count = step.first_state, len(step.states)
        return [*leaves[:first], *self.with_data(leaves[first : first + count]), *leaves[first + count :], *rates]


@dataclass(frozen=True, eq=False)
class Hopped(WiderStep):
    """A step with filtered data for some hops, which `wider` are the facts of.

    `shared` are the leaks that stand for those of a relation; None has filtered data for each leak.
    """

    facts: Facts
    relations: tuple[Relation, ...]
    shared: tuple[SharedLeaks | None, ...]

    @cached_property
    def plan(self) -> Plan:
        """For the rates of the leaky groups."""
        return plan_of(plan_probes(reduced_view(self.facts), self.relations), None)

    @cached_property
    def known(self) -> Structure:
        return structure_of(self.plan.reader, self.plan.gathers, self.plan.dtypes)

    @cached_property
    def varying(self) -> list[Rates]:
        """Per relation, the axes of y along which its rates differ; shared leaks are those of all samples."""
        varying = [_rates(self.facts, r, self.known, k) for k, r in enumerate(self.relations)]
        return [
            rates if s is None else rates._replace(samples=self._uneven(k, rates.samples))
            for k, (rates, s) in enumerate(zip(varying, self.shared, strict=True))
        ]

    def _uneven(self, k: int, axes: Sequence[int]) -> tuple[int, ...]:
        """Axes along which the factor f of relation k, which acts on one state, differs."""
        return tuple(axis for axis in axes if not self.known.rows[k][0].along[axis])

    @cached_property
    def columns(self) -> list[int]:
        """Per relation, how many columns of its weight have rates of their own."""
        return [_column_count(self.facts, r, rates) for r, rates in zip(self.relations, self.varying, strict=True)]

    @cached_property
    def counts(self) -> list[int]:
        """Per relation, how many times its data are filtered."""
        return [n if s is None else len(s.leaks) for n, s in zip(self.columns, self.shared, strict=True)]

    def has_gains(self, k: int) -> bool:
        """Whether the factor f of relation k differs between columns that share leaks, and meets the credit."""
        return self.shared[k] is not None and bool(self._uneven(k, self.varying[k].columns))

    @cached_property
    def wider(self) -> Facts:
        filters, steady = [], []
        for k, (r, count) in enumerate(zip(self.relations, self.counts, strict=True)):
            site = self.facts.sites[r.site]
            places = data_axes(site.call)
            varies = tuple(places[axis] for axis in self.varying[k].samples)
            filters += [Filter(site, self.plan.layout(k).links, varies)] * count
            steady += [self.known.is_known(k, r.group)] * count
        step = with_filters(self.facts.step, filters)
        first = len(step.ins) - len(filters)
        inputs = frozenset(first + n for n, fixed in enumerate(steady) if fixed)
        wider = replace(analyse(step), parameter_inputs=inputs, lanes=self.facts.lanes)
        assert len(wider.sites) == len(self.facts.sites)
        return wider

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        number, hops = len(self.facts.step.select(Role.HIDDEN)), []
        for k, (r, count) in enumerate(zip(self.relations, self.counts, strict=True)):
            n = self.plan.layout(k).size * count
            hops.append(Hop(r.site, r.group, tuple(range(number, number + n))))
            number += n
        return tuple(hops)

    def rates(self, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]) -> list[Array]:
        """κ and f per hop and filtered data, (S, S + 1, …): along other axes, one number stands for all."""
        assert weights is not None
        blocks, rows = self.plan.reader(leaves, weights, ys)
        rates = []
        for k, (r, row, shared) in enumerate(zip(self.relations, rows, self.shared, strict=True)):
            dtype = next(f.dtype for f in row if f is not None)
            if shared is not None:
                rates += self._shared_rates(k, shared, row[0], dtype)
                continue
            at_y = [[None if a is None else self._at_y(k, a) for a in line] for line in blocks[r.group]]
            lines = [[*line, f] for line, f in zip(at_y, row, strict=True)]
            numbers = [[self._by_column(k, a, dtype) for a in line] for line in lines]
            rates += list(jnp.stack([jnp.stack(line, 1) for line in numbers], 1))
        return rates

    def _shared_rates(self, k: int, shared: SharedLeaks, f: Array | None, dtype: DTypeLike) -> list[Array]:
        """κ_j and f for each shared leak; one in place of an f that meets the credit."""
        factor = self._by_column(k, f, dtype)[0]
        factor = jnp.ones_like(factor) if self.has_gains(k) else factor
        return [jnp.stack([jnp.full_like(factor, leak), factor])[None] for leak in shared.leaks]

    def _at_y(self, k: int, a: Array) -> Array:
        """Values per position, at the elements of y."""
        return self.plan.gathers[k](jnp.broadcast_to(a, self.plan.layout(k).shape))

    def _by_column(self, k: int, a: Array | None, dtype: DTypeLike) -> Array:
        """Values at the elements of y as (columns, axes of the data…), with axes of one where they do not differ."""
        call, rates = self.facts.sites[self.relations[k].site].call, self.varying[k]
        u, shared = call.operands[1 - call.weight], data_axes(call)
        lengths = [1] * len(u.shape)
        for axis in rates.samples:
            lengths[shared[axis]] = u.shape[shared[axis]]
        if a is None:
            return jnp.zeros((self.columns[k], *lengths), dtype)
        a = jnp.broadcast_to(a, call.out.shape)
        varying_axes = (*rates.columns, *rates.samples)
        a = a[tuple(slice(None) if axis in varying_axes else slice(0, 1) for axis in range(a.ndim))]
        # The axes of columns first, then those of samples as the data have them; all others are of length one.
        samples = sorted(rates.samples, key=lambda axis: shared[axis])
        others = [axis for axis in range(a.ndim) if axis not in varying_axes]
        return jnp.transpose(a, (*rates.columns, *samples, *others)).reshape(self.columns[k], *lengths)

    def rates_before(self, params: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """Read the rates that are made of parameters only, once, before a window runs."""
        return self._read_before(self.rates, params, weights)

    def _read_before(self, read: Callable[..., R], params: Sequence[Array], weights: Sequence[Array]) -> R:
        leaves, _, ys = self.plan.reader.stand_ins()
        nothing = [jnp.zeros(a.shape, a.dtype) for a in leaves[self.facts.step.first_state :]]
        none = {j: jnp.zeros(y.shape, y.dtype) for j, y in ys.items()}
        return without_zeros(read, [*params, *nothing], list(weights), none)

    def signals(self, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        """Cotangents of the states, and of filtered data: those of the leaky groups, taken back through the ops."""
        hidden = range(len(self.facts.step.select(Role.HIDDEN)))
        cotangents = {i: g[i] for i in hidden if i in g}
        bare = self.plan.reader.view.pull(g, window.entry_states)
        for k, hop in enumerate(self.hops):
            site, w, columns = self.facts.sites[hop.site], window.weights[hop.site], self.varying[k].columns
            pull_back = site.rule.data_bar
            assert pull_back is not None  # it would not be a hop
            slots = [s.astype(site.call.out.dtype) for s in self.plan.signals(k, bare)]
            if self.shared[k] is None:
                by_slot = [pull_back(site.call, w, s, columns) for s in slots]
                # The states of one column stand together, slot by slot.
                bars = [bar[column] for column in range(self.columns[k]) for bar in by_slot]
            else:
                signal = slots[0] * self._gains(k, window) if self.has_gains(k) else slots[0]
                by_leak = signal * self._weights_at_y(k, signal.dtype)
                bars = [pull_back(site.call, w, s, ())[0] for s in by_leak]
            cotangents |= dict(zip(hop.states, bars, strict=True))
        return cotangents

    def _gains(self, k: int, window: WindowData) -> Array:
        """The factor f of relation k at the elements of y, made of parameters only."""

        def gain(*args: Any) -> Array:
            return self.plan.reader(*args)[1][k][0]

        return self._read_before(gain, window.params, window.weights)

    def _weights_at_y(self, k: int, dtype: DTypeLike) -> Array:
        """The weights w of shared leaks, (leaks, *y), with axes of one beside the columns."""
        shared, call = self.shared[k], self.facts.sites[self.relations[k].site].call
        assert shared is not None
        columns = self.varying[k].columns
        shape = [n if axis in columns else 1 for axis, n in enumerate(call.out.shape)]
        return jnp.asarray(shared.weights.reshape(-1, *shape), dtype)

    @cached_property
    def constant_leaks(self) -> list[np.ndarray | None]:
        """Per relation, the leak of each column, if one state has it and leaks are constants that few may stand for.

        Factors must be equal between columns, or made of parameters and equal between samples.
        """
        candidates = [k for k in range(len(self.relations)) if self._may_share(k)]
        leaves, weight_structs, ys = self.plan.reader.stand_ins()

        def read(*args: Any) -> list[Array]:
            blocks = self.plan.reader(*args)[0]
            return [self._at_y(k, blocks[self.relations[k].group][0][0]) for k in candidates]

        leaks: list[np.ndarray | None] = [None] * len(self.relations)
        for k, at_y in zip(candidates, constant_outputs(read, leaves, weight_structs, ys), strict=True):
            if at_y is not None:
                columns = self.varying[k].columns
                one = at_y[tuple(slice(None) if axis in columns else slice(0, 1) for axis in range(at_y.ndim))]
                leaks[k] = one.reshape(-1) if (at_y == one).all() else None
        return leaks

    def _may_share(self, k: int) -> bool:
        layout, group = self.plan.layout(k), self.relations[k].group
        if self.columns[k] == 1 or layout.size > 1 or not layout.links[0, 0] or not self.known.is_fixed(group):
            return False
        rates, fixed = self.varying[k], self.known.rows[k][0].fixed
        return not self._uneven(k, rates.columns) or (fixed and not self._uneven(k, rates.samples))


def wider_transport(hopped: WiderStep, inner: Transport[Any]) -> Transport[Any]:
    """A transport over a wider step, for windows of the step that runs."""
    each = inner.each_step

    def view(window: WindowData) -> WindowData:
        steady = hopped.rates_before(window.params, window.weights)
        return window._replace(entry_states=hopped.with_data(window.entry_states), steady=steady)

    def record(leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Any:
        return each.record(hopped.leaves(leaves, hopped.rates(leaves, weights, ys)), weights, ys)

    def advance(carry: Any, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Any:
        return each.advance(carry, hopped.leaves(leaves, hopped.rates(leaves, weights, ys)), weights, ys)

    return Transport(
        inner.init,
        lambda trace, g, window: inner.credit(trace, hopped.signals(g, window), view(window)),
        lambda trace, window: inner.move(trace, view(window)),
        EachStep(record, each.begin, advance, each.restart),
        fused=FusedCredit(
            lambda trace, g, window: inner.fused.in_product(trace, hopped.signals(g, window), view(window))
        ),
        parts=inner.parts,
    )


def hopped_with(facts: Facts, relations: Mapping[Relation, SharedLeaks | None]) -> Hopped:
    """The step with filtered data for these relations, by the leaks that they share, if they do."""
    return _hopped(facts, tuple(relations), tuple(relations.values()))


@memoised
def _hopped(facts: Facts, relations: tuple[Relation, ...], shared: tuple[SharedLeaks | None, ...]) -> Hopped:
    return Hopped(facts, relations, shared)
