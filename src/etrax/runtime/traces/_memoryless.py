"""Memoryless states: their trace is that of other new states, and the last step (`analysis/_memoryless.py`).

    ε_h = G ε_c + u_K ⊗ q        G = ∂h'/∂c'        q = ∂h'/∂y with c' held, both of the last step

G is as large as a state, q as an output of the op. Credit for h is G · ∂L/∂h_0 more for c, and one product more, of
the last step's data and q · ∂L/∂h_0. An op that acts on memoryless states alone (the output gate of an LSTM) has no
trace but its last step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from ...compiler.analysis import Facts, Relation, driven_slots, is_steep, memoryless_states
from ...compiler.ir import Detach, detaching_vjp
from ...compiler.opened import OpenStep
from ...compiler.ops import ALIGNED
from .. import _site_math as site_math
from .._layout import Gather, gather_of
from .._site_math import trace_dtype_of, wide_dtype, widened
from .._transport import EachStep, FusedCredit, Transport, WindowData, add_to
from .._view import reduced_view
from .._zeros import times
from ..blocks import total


class LastStep(NamedTuple):
    """Per memoryless leaf G for each of its sources; per op and leaf q; per op its data."""

    slopes: list[list[Array]]
    rows: list[list[Array]]
    data: list[tuple[Array, ...]]


class WithLast(NamedTuple):
    """The traces of other states, and the last step."""

    inner: Any
    last: LastStep


def memoryless_leaves(facts: Facts, relations: Sequence[Relation]) -> frozenset[int]:
    """Memoryless states that need no trace for these relations: copies of outputs keep theirs."""
    copied = [r for r in relations if r.copies is not None]
    return frozenset(i for i in memoryless_states(facts) if not any(_acts_on(facts, r, [i]) for r in copied))


def _acts_on(facts: Facts, relation: Relation, leaves: Collection[int]) -> bool:
    """Whether the op of a relation acts on one of these states of its group within a step."""
    group = facts.groups[relation.group]
    slots = [n for i, slot in zip(group.leaves, group.slot, strict=True) if i in leaves for n in np.unique(slot)]
    return bool(driven_slots(facts.edges, relation.site, group)[slots].any())


def on_other_states(facts: Facts, relations: Sequence[Relation], leaves: frozenset[int]) -> list[Relation]:
    """The relations that act on other states."""
    others = {g.index: [i for i in g.leaves if i not in leaves] for g in facts.groups}
    return [r for r in relations if _acts_on(facts, r, others[r.group])] if leaves else list(relations)


@dataclass(frozen=True, eq=False)
class _Memoryless:
    facts: Facts
    inner: Transport[Any]
    leaves: tuple[int, ...]
    relations: tuple[Relation, ...]
    trace_dtype: DTypeLike | None

    @cached_property
    def steep(self) -> bool:
        return is_steep(self.facts)

    @cached_property
    def sources(self) -> list[list[int]]:
        sources_of = memoryless_states(self.facts)
        return [sorted(sources_of[i]) for i in self.leaves]

    @cached_property
    def driven(self) -> list[list[int]]:
        """Per relation, the numbers of the memoryless leaves that its op acts on."""
        group_leaves = [self.facts.groups[r.group].leaves for r in self.relations]
        return [
            [n for n, i in enumerate(self.leaves) if i in leaves and _acts_on(self.facts, r, [i])]
            for r, leaves in zip(self.relations, group_leaves, strict=True)
        ]

    @cached_property
    def gathers(self) -> list[Gather]:
        groups = [self.facts.groups[r.group] for r in self.relations]
        pairs = zip(self.relations, groups, strict=True)
        return [gather_of(r.places, g.varshape, g.num_positions) for r, g in pairs]

    @cached_property
    def dtypes(self) -> list[np.dtype]:
        return [trace_dtype_of(self.facts, r, self.trace_dtype) for r in self.relations]

    def init(self) -> WithLast:
        sites = [self.facts.sites[r.site] for r in self.relations]
        states = self.facts.states
        slopes = [[jnp.zeros(states[k].aval.shape, self._wide(i)) for k in sources]
                  for i, sources in zip(self.leaves, self.sources, strict=True)]  # fmt: skip
        rows = [[jnp.zeros(s.y_shape, t) for _ in n] for s, t, n in zip(sites, self.dtypes, self.driven, strict=True)]
        data_structs = [[] if s.rule is ALIGNED else site_math.data_structs(s) for s in sites]  # a bias has no data
        data = [tuple(jnp.zeros(a.shape[1:], self._data_dtype(a.dtype)) for a in structs) for structs in data_structs]
        return WithLast(self.inner.init(), LastStep(slopes, rows, data))

    def _wide(self, leaf: int) -> np.dtype:
        return wide_dtype(self.facts.states[leaf].aval.dtype, self.trace_dtype)

    def _data_dtype(self, dtype: np.dtype) -> np.dtype:
        """The type in which the last step's data are kept: that of a trace; indices as they are."""
        return wide_dtype(dtype, self.trace_dtype) if jnp.issubdtype(dtype, jnp.inexact) else dtype

    def read(
        self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> tuple[list[list[Array]], list[list[Array]]]:
        """G and q at one step."""
        opened = OpenStep(self.facts.step, self.facts.sites, self.facts.cut)
        states = self.facts.step.states_of(leaves)
        held = {k: jnp.zeros_like(states[k]) for k in sorted(set().union(*self.sources))}

        def run(detach: Detach, new: dict[int, Array], deltas: dict[int, Array]) -> list[Array]:
            outs, _ = opened(leaves, deltas, weights, ys, held=new, detach=detach)
            return [outs[i] for i in self.leaves]

        out, pull = detaching_vjp(run, held, opened.no_deltas(sorted({r.site for r in self.relations})))
        # Each element of c' and of y reaches one position, so that all positions are read at once.
        bars = [pull([jnp.ones_like(a) if n == m else jnp.zeros_like(a) for m, a in enumerate(out)])
                for n in range(len(out))]  # fmt: skip
        slopes = [[bars[n][0][k].astype(self._wide(i)) for k in self.sources[n]] for n, i in enumerate(self.leaves)]
        triples = zip(self.relations, self.dtypes, self.driven, strict=True)
        return slopes, [[bars[n][1][r.site].astype(dtype) for n in driven] for r, dtype, driven in triples]

    def signals(self, trace: WithLast, g: Mapping[int, Array], window: WindowData) -> tuple[dict, list[Array]]:
        """Cotangents of states, with those of memoryless ones taken to their sources; and those of memoryless ones."""
        bare, cotangents = reduced_view(self.facts).pull(g, window.entry_states), dict(g)
        bars = [bare[i] for i in self.leaves]  # (3,) and (1, 3) may be states of one group
        for bar, sources, slopes in zip(bars, self.sources, trace.last.slopes, strict=True):
            for k, slope in zip(sources, slopes, strict=True):
                cotangents[k] = cotangents[k] + times(
                    slope, bar.reshape(slope.shape).astype(slope.dtype), self.steep
                ).astype(cotangents[k].dtype)
        return cotangents, bars

    def credit(self, trace: WithLast, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        cotangents, bars = self.signals(trace, g, window)
        out = dict(self.inner.credit(trace.inner, cotangents, self.view(window)))
        last = zip(self.relations, self.gathers, self.driven, trace.last.rows, trace.last.data, strict=True)
        for r, gather, driven, rows, data in last:
            site, shape = self.facts.sites[r.site], self.facts.groups[r.group].varshape
            bar = total(
                times(row, site_math.beside_loops(site, gather(bars[n].reshape(shape))).astype(row.dtype), self.steep)
                for n, row in zip(driven, rows, strict=True)
            )
            u = [widened(a, bar.dtype)[None] for a in data]
            add_to(out, r.site, site_math.grad(site, window.fixed[r.site], u, bar[None]))
        return out

    def in_product(self, trace: WithLast, g: Mapping[int, Array], window: WindowData) -> dict[int, Any]:
        return self.inner.fused.in_product(trace.inner, self.signals(trace, g, window)[0], self.view(window))

    def view(self, window: WindowData) -> WindowData:
        return window._replace(carry=window.carry[0])

    def move(self, trace: WithLast, window: WindowData) -> WithLast:
        data = [tuple(a[-1].astype(self._data_dtype(a.dtype)) for a in window.data(r.site)) for r in self.relations]
        slopes, rows = window.carry[1]
        return WithLast(self.inner.move(trace.inner, self.view(window)), LastStep(slopes, rows, data))

    def parts(self, trace: WithLast) -> dict[int, list[Array]]:
        by_op = {j: list(arrays) for j, arrays in self.inner.parts(trace.inner).items()}
        for r, rows, data in zip(self.relations, trace.last.rows, trace.last.data, strict=True):
            by_op.setdefault(r.site, []).extend([*rows, *data])
        return by_op


def memoryless_transport(
    facts: Facts, inner: Transport[Any], leaves: frozenset[int], relations: Sequence[Relation],
    trace_dtype: DTypeLike | None,
) -> Transport[Any]:  # fmt: skip
    """A transport of other states, with what some memoryless states are made of beside it."""
    met = tuple(r for r in relations if _acts_on(facts, r, leaves))
    if not met:
        return inner
    groups = {i for r in met for i in facts.groups[r.group].leaves}
    memoryless = _Memoryless(facts, inner, tuple(sorted(leaves & groups)), met, trace_dtype)
    each = inner.each_step

    def begin(trace: WithLast) -> tuple[Any, Any]:
        return each.begin(trace.inner), (trace.last.slopes, trace.last.rows)

    def advance(carry: tuple[Any, Any], *step: Any) -> tuple[Any, Any]:
        return each.advance(carry[0], *step), memoryless.read(*step)

    return Transport(
        memoryless.init,
        memoryless.credit,
        memoryless.move,
        # The last step itself is read anew at every step: there is nothing in it to clear.
        EachStep(each.record, begin, advance, lambda carry, flags: (each.restart(carry[0], flags), carry[1])),
        fused=FusedCredit(memoryless.in_product),
        parts=memoryless.parts,
    )
