"""One hop: what a layer does to a leaky layer above it, carried at its own positions.

A leaky layer with one leak over its positions commutes with its weight op, r = r̃·V with r̃' = κ r̃ + f u (`with_filters`
in `analysis`). r̃ lives where the data u do, at the positions of the layer below. The influence of a weight w of that
layer on r is then no (w × outputs) matrix, but that on r̃, one state scalar more at each of its positions:

    D gains the row [f ∂u/∂h, κ], F the entry f ∂u/∂y        credit through r: (∂L/∂r_0 · Vᵀ) · ε_r̃

V is today's V: exact for parameters that stand still. While V learns, what the layer did to r long ago is weighed with
V as it is now. It does not go two hops up: there the derivative in between stays inside the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..._compat import is_complex
from ...compiler.analysis import (
    Facts,
    Filter,
    OpNode,
    Relation,
    analyse,
    lost_from_op,
    memoised,
    traced_relations,
    with_filters,
)
from ...compiler.dataflow import without_zeros
from ...compiler.ir import Role
from .._plan import Plan, plan_of
from .._probes import plan_probes
from .._structure import Structure, structure_of
from .._transport import EachStep, FusedCredit, Transport, WindowData
from .._view import reduced_view


class Hop(NamedTuple):
    """A weight op through which a layer acts on a leaky group; `states` are its filtered data in the wider step."""

    site: int
    group: int
    states: tuple[int, ...]


@memoised
def possible_hops(facts: Facts) -> tuple[Relation, ...]:
    """Ops that feed a leaky group with one leak, which feeds nothing but outputs, and no other group."""
    found = [r for r in traced_relations(facts) if _feeds_leaky(facts, r)]
    layouts = plan_probes(reduced_view(facts), found).layouts
    found = [r for r in found if not layouts[r.group].stacked]
    groups = Counter(r.site for r in facts.relations if facts.matters(r.group))
    found = [r for r in found if groups[r.site] == 1 and not lost_from_op(facts, r.site)]
    if not found:
        return ()
    plan = plan_of(plan_probes(reduced_view(facts), found), None)
    known = structure_of(plan.reader, plan.gathers, plan.dtypes)
    return tuple(r for k, r in enumerate(found) if all(all(slot.along) for slot in known.slots(k)))


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
        """Those that are made of parameters only, before a window runs."""
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
    """A step with filtered data for some hops, which `wider` are the facts of."""

    facts: Facts
    relations: tuple[Relation, ...]

    @cached_property
    def plan(self) -> Plan:
        """For the rates of the leaky groups."""
        return plan_of(plan_probes(reduced_view(self.facts), self.relations), None)

    @cached_property
    def known(self) -> Structure:
        return structure_of(self.plan.reader, self.plan.gathers, self.plan.dtypes)

    @cached_property
    def wider(self) -> Facts:
        layouts = [self.plan.layout(k) for k in range(len(self.relations))]
        pairs = zip(self.relations, layouts, strict=True)
        step = with_filters(self.facts.step, [Filter(self.facts.sites[r.site], a.links) for r, a in pairs])
        first = len(step.ins) - len(self.relations)
        steady = [first + k for k, r in enumerate(self.relations) if self.known.is_known(k, r.group)]
        wider = replace(analyse(step), parameter_inputs=frozenset(steady), lanes=self.facts.lanes)
        assert len(wider.sites) == len(self.facts.sites)
        return wider

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        number, found = len(self.facts.step.select(Role.HIDDEN)), []
        for k, r in enumerate(self.relations):
            n = self.plan.layout(k).size
            found.append(Hop(r.site, r.group, tuple(range(number, number + n))))
            number += n
        return tuple(found)

    def rates(self, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]) -> list[Array]:
        """κ and f per hop, (S, S + 1): one number each stands for all positions."""
        assert weights is not None
        blocks, rows = self.plan.reader(leaves, weights, ys)
        found = []
        for r, row in zip(self.relations, rows, strict=True):
            dtype = next(f.dtype for f in row if f is not None)
            lines = [[*line, f] for line, f in zip(blocks[r.group], row, strict=True)]
            numbers = [[jnp.zeros((), dtype) if a is None else a.reshape(-1)[0] for a in line] for line in lines]
            found.append(jnp.stack([jnp.stack(line) for line in numbers]))
        return found

    def rates_before(self, params: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """The same before a window runs, for rates that are made of parameters only."""
        leaves, _, ys = self.plan.reader.stand_ins()
        nothing = [jnp.zeros(a.shape, a.dtype) for a in leaves[self.facts.step.first_state :]]
        none = {j: jnp.zeros(y.shape, y.dtype) for j, y in ys.items()}
        return without_zeros(self.rates, [*params, *nothing], list(weights), none)

    def signals(self, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        """Cotangents of the states, and of filtered data: those of the leaky groups, taken back through the ops."""
        hidden = range(len(self.facts.step.select(Role.HIDDEN)))
        found = {i: g[i] for i in hidden if i in g}
        bare = self.plan.reader.view.pull(g, window.entry_states)
        for k, hop in enumerate(self.hops):
            site = self.facts.sites[hop.site]
            assert site.rule.data_bar is not None  # it would not be a hop
            for i, s in zip(hop.states, self.plan.signals(k, bare), strict=True):
                found[i] = site.rule.data_bar(site.call, window.weights[hop.site], s.astype(site.call.out.dtype))
        return found


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


def hopped_with(facts: Facts, relations: Iterable[Relation]) -> Hopped:
    return _hopped(facts, tuple(relations))


@memoised
def _hopped(facts: Facts, relations: tuple[Relation, ...]) -> Hopped:
    return Hopped(facts, relations)
