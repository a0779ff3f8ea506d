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
    LeakyStates,
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
from .._transport import WindowData
from .._view import reduced_view
from ._wider import WiderStep

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
        wider = self._with_filters(together=True)
        layouts = plan_probes(reduced_view(wider), traced_relations(wider)).layouts
        # Blocks of many states are one array of all: each leak has filtered data of its own there.
        return self._with_filters(together=False) if any(x.stacked and x.counts for x in layouts) else wider

    def _with_filters(self, together: bool) -> Facts:
        """The facts of the step with filtered data, whose leaks are along one axis if they are held `together`."""
        number, filters, fixed, leaky = len(self.facts.step.select(Role.HIDDEN)), [], [], []
        first = len(self.facts.step.ins) + sum(map(self._size, range(len(self.relations)))) if together else 0
        for k, (r, count) in enumerate(zip(self.relations, self.counts, strict=True)):
            site, size, places = self.facts.sites[r.site], self._size(k), data_axes(self.facts.sites[r.site].call)
            one = Filter(site, self.plan.layout(k).links, tuple(places[axis] for axis in self.varying[k].samples))
            if together and count > 1:
                states, rates = tuple(range(number, number + size)), first + 2 * len(filters)
                leaky.append(LeakyStates(states, rates, rates + 1, count))
                one = one._replace(leaks=count, factors=count if self._has_factors(k) else 1)
            copies = 1 if together else count
            filters += [one] * copies
            fixed += [self.known.is_known(k, r.group)] * 2 * copies  # leaks and factors
            number += size * copies
        step = with_filters(self.facts.step, filters)
        inputs = frozenset(len(step.ins) - len(fixed) + n for n, known in enumerate(fixed) if known)
        wider = replace(analyse(step), parameter_inputs=inputs, leaky=tuple(leaky), lanes=self.facts.lanes)
        assert len(wider.sites) == len(self.facts.sites)
        return wider

    def _size(self, k: int) -> int:
        """The states of the leaky layer at a position."""
        return self.plan.layout(k).size

    def _has_factors(self, k: int) -> bool:
        """Whether the filtered data of relation k have a factor for each leak."""
        even = [f.along for f in self.known.rows[k]]
        return self.shared[k] is None and not all(along[axis] for along in even for axis in self.varying[k].columns)

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        number, hops = len(self.facts.step.select(Role.HIDDEN)), []
        for k, (r, count) in enumerate(zip(self.relations, self.counts, strict=True)):
            n = self._size(k) * (1 if self.wider.leaky else count)
            hops.append(Hop(r.site, r.group, tuple(range(number, number + n))))
            number += n
        return tuple(hops)

    def rates(self, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]) -> list[Array]:
        """κ (S, S, leaks, …) and f (S, leaks or 1, …) per hop: along other axes, one number stands for all."""
        assert weights is not None
        blocks, rows = self.plan.reader(leaves, weights, ys)
        rates = []
        for k, (r, row, shared) in enumerate(zip(self.relations, rows, self.shared, strict=True)):
            dtype = next(f.dtype for f in row if f is not None)
            factors = jnp.stack([self._by_column(k, f, dtype) for f in row])
            factors = factors if self._has_factors(k) else factors[:, :1]
            if shared is None:
                at_y = [[None if a is None else self._at_y(k, a) for a in line] for line in blocks[r.group]]
                leaks = jnp.stack([jnp.stack([self._by_column(k, a, dtype) for a in line]) for line in at_y])
            else:
                # An f that differs between columns meets the credit: one stands here.
                factors = jnp.ones_like(factors) if self.has_gains(k) else factors
                leaks = jnp.concatenate([jnp.full_like(factors, leak) for leak in shared.leaks], 1)[None]
            count = 1 if self.wider.leaky else self.counts[k]
            each = jnp.split(factors, count, 1) if self._has_factors(k) else [factors] * count
            rates += [a for pair in zip(jnp.split(leaks, count, 2), each, strict=True) for a in pair]
        return rates

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
            else:
                signal = slots[0] * self._gains(k, window) if self.has_gains(k) else slots[0]
                by_leak = signal * self._weights_at_y(k, signal.dtype)
                by_slot = [jnp.concatenate([pull_back(site.call, w, s, ()) for s in by_leak])]
            # Of states that stand for themselves, those of one column stand together, slot by slot.
            together = self.wider.leaky and self.counts[k] > 1
            bars = by_slot if together else [bar[n] for n in range(self.counts[k]) for bar in by_slot]
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


def hopped_with(facts: Facts, relations: Mapping[Relation, SharedLeaks | None]) -> Hopped:
    """The step with filtered data for these relations, by the leaks that they share, if they do."""
    return _hopped(facts, tuple(relations), tuple(relations.values()))


@memoised
def _hopped(facts: Facts, relations: tuple[Relation, ...], shared: tuple[SharedLeaks | None, ...]) -> Hopped:
    return Hopped(facts, relations, shared)
