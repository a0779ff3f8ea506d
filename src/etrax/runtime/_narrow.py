"""Traces that are narrow: of blocks that do not change in time, or are equal for many outputs of an op.

    ε_K = P ε_0 + Σ_k u_k ⊗ c_k        P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k

*Time-invariant*: D is made of parameters only (linear recurrences, leaky integrators). P and the products of D are then
those of every window and every sample, D^K and D^(K−k). They are computed once, not recorded step by step, and
have no axis of samples: where F is made of parameters too, Σ_k u_k ⊗ c_k is one plain product (B·I, K) × (K, O).

*Factored*: D and F are equal for all outputs of the op (one leak for a layer; they may change in time and differ
from sample to sample). All columns of ε are then equal, ε[i, o] = x̂[i], and one of them is kept:

    x̂ ← D x̂ + F u        credit: Σ_b x̂[b, i] (∂L/∂h_0)[b, o], which is one row more in the window's own product

A gain c[o] for each output, made of parameters only, does not hinder that: with F = c[o] it is ε[i, o] = c[o] x̂[i],
x̂ ← D x̂ + u, and c, as it is now, is multiplied with the credit.

*Shared*: two ops on the same data whose F differ by a turn R that D commutes with (real and imaginary part of a complex
matrix) have traces that differ by it. One is kept, and the other's credit is taken of it: g · R ε = (Rᵀ g) · ε.

All are one thing: arrays have an axis of length one wherever all along it is equal, and so has the trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._compat import promotes
from ..compiler.analysis import Facts, Relation
from ..compiler.dataflow import Uniform as Even
from ..compiler.dataflow import without_zeros
from . import _site_math as site_math
from ._blocks import Block, block_times
from ._plan import Plan, plan_of, wide_dtype, widened
from ._powers import Products, narrowed, shortened
from ._probes import Probes, as_lists
from ._structure import Structure, products, structure_of
from ._transport import CreditElsewhere, EachStep, Transport, WindowData, add_to, by_site


def can_be_narrow(facts: Facts, relation: Relation) -> bool:
    """Whether the axes of y are those of F and of D, so that what holds along them can be compared."""
    site = facts.sites[relation.site]
    plain = site.rule.narrow and not site.loops and relation.copies is None
    return plain and relation.places.shape == site.call.out.shape


def is_narrow(plan: Plan, known: Structure, k: int) -> bool:
    """Whether the trace of relation k gains by what is known of D and F."""
    r = plan.relations[k]
    site = plan.facts.sites[r.site]
    saved = any(e and n > 1 for slot in known.slots(k) for e, n in zip(slot.along, site.call.out.shape, strict=True))
    return saved or known.is_fixed(r.group)


@dataclass(frozen=True, eq=False)
class NarrowTraces:
    """The relations of a plan, all narrow; per relation and state scalar one array."""

    plan: Plan
    known: Structure

    @cached_property
    def _changing(self) -> Probes:
        """Probes for what changes from step to step."""
        own = ((k, r) for k, r in enumerate(self.plan.relations) if k not in self.known.shared)
        relations = [r for k, r in own if not self.known.is_known(k, r.group)]
        return self.plan.probes.of(relations)

    @cached_property
    def groups(self) -> list[int]:
        return sorted({r.group for r in self.plan.relations})

    @cached_property
    def slots(self) -> list[list[tuple[bool, ...]]]:
        """Per relation and state scalar, the axes of y along which its trace is even."""
        return [[slot.along for slot in self.known.slots(k)] for k in range(len(self.plan.relations))]

    @cached_property
    def shapes(self) -> list[list[tuple[int, ...]]]:
        """Per relation and state scalar, the shape of its trace."""
        return [[self._shape(k, along) for along in slots] for k, slots in enumerate(self.slots)]

    @promotes
    def _shape(self, k: int, along: Sequence[bool]) -> tuple[int, ...]:
        site = self.plan.facts.sites[self.plan.relations[k].site]
        c = jax.ShapeDtypeStruct((1, *shortened(site.call.out.shape, along)), self.plan.dtypes[k])
        u = [site.call.operands[i] for i in site.rule.varying(site.call)]
        data = [jax.ShapeDtypeStruct((1, *a.shape), a.dtype) for a in u]
        fixed = [site.call.operands[i] for i in site.rule.fixed_operands]
        return jax.eval_shape(lambda f, u, c: site.rule.outer(site.call, f, u, c), fixed, data, c).shape

    def factored(self, k: int, s: int) -> bool:
        """Whether a trace is of the form and type of the op's data."""
        site, dtype = self.plan.facts.sites[self.plan.relations[k].site], self.plan.dtypes[k]
        if site.rule.as_data is None:
            return False
        data = site.call.operands[site.rule.varying(site.call)[0]]
        return data.dtype == site.call.out.dtype == dtype and math.prod(self.shapes[k][s]) == math.prod(data.shape)

    def sizes(self, k: int) -> tuple[int, int]:
        """Bytes of the trace of relation k, and what it would take without structure."""
        r, each = self.plan.relations[k], self.plan.dtypes[k].itemsize
        whole = math.prod(site_math.trace_shape(self.plan.facts.sites[r.site])) * len(self.shapes[k])
        own = () if k in self.known.shared else self.shapes[k]
        return each * sum(math.prod(shape) for shape in own), each * whole

    def init(self) -> list[tuple[Array, ...]]:
        own = [() if k in self.known.shared else shapes for k, shapes in enumerate(self.shapes)]
        pairs = zip(own, self.plan.dtypes, strict=True)
        return [tuple(jnp.zeros(shape, dtype) for shape in shapes) for shapes, dtype in pairs]

    def record(self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Any:
        """Entries of D and F that change from step to step."""
        probes = self._changing
        if not probes.relations:
            return {}, {}
        blocks, rows = as_lists(probes(leaves, weights, ys))
        return self._kept(blocks, dict(zip(map(self.plan.relations.index, probes.relations), rows, strict=True)), False)

    def _kept(self, blocks: Sequence[Block], rows: Mapping[int, list[Array]], fixed: bool) -> Any:
        """What is fixed, or what is not, by group or relation and place: axes are of one where all along is equal."""
        known = self.known
        out = (
            {
                (g, s, t): narrowed(d, even.along)
                for g in self.groups
                for s, line in enumerate(known.blocks[g])
                for t, even in enumerate(line)
                if even is not None and even.fixed is fixed and (d := blocks[g][s][t]) is not None
            },
            {
                (k, s): narrowed(row[s], even.along)
                for k, row in rows.items()
                for s, even in enumerate(known.rows[k])
                if even.fixed is fixed
            },
        )
        return out

    def _known_before(self, window: WindowData) -> Any:
        """Entries of D and F that are made of parameters only."""
        step = self.plan.facts.step
        leaves, _, ys = self.plan.probes.stand_ins()
        first, last = step.first_state, len(leaves) - len(window.steady)
        nothing = [jnp.zeros(a.shape, a.dtype) for a in leaves[first:last]]  # nothing that is kept reads them
        none = {j: jnp.zeros(y.shape, y.dtype) for j, y in ys.items()}
        leaves = [*window.params, *nothing, *window.steady]
        blocks, rows = as_lists(without_zeros(self.plan.probes, leaves, list(window.weights), none))
        gains = {k: narrowed(rows[k][s], c.along) for k, (s, c) in self.known.gains.items()}
        ones = {
            k: [jnp.ones_like(f) if s == self.known.gains[k][0] else f for s, f in enumerate(rows[k])] for k in gains
        }
        return self._kept(blocks, {**dict(enumerate(rows)), **ones}, True), gains

    def credit(self, trace: list[tuple[Array, ...]], g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        for k, entry, signal, factored in self._met(trace, g, window):
            if not factored:
                signal = signal.astype(wide_dtype(entry.dtype))
                add_to(out, self.plan.relations[k].site, self.plan.apply(k, entry, signal, window.fixed))
        return out

    def _met(
        self, trace: list[tuple[Array, ...]], g: Mapping[int, Array], window: WindowData
    ) -> Iterator[tuple[int, Array, Array, bool]]:
        """Per relation and state scalar its trace, the signal that it meets, and whether it is of the data's form.

        A trace that is another's, turned, is that one, and the signal is turned back.
        """
        for k, signals in enumerate(self._signals(g, window)):
            shared = self.known.shared.get(k)
            if shared is not None:
                pairs = zip(shared.places, shared.signs, signals, strict=True)
                turned = {place: signal if sign > 0 else -signal for place, sign, signal in pairs}
                signals = [turned[s] for s in range(len(turned))]
            m = k if shared is None else shared.source
            for s, (entry, signal) in enumerate(zip(trace[m], signals, strict=True)):
                yield k, entry, signal, self.factored(m, s)

    def _signals(self, g: Mapping[int, Array], window: WindowData) -> list[list[Array]]:
        """Per relation and state scalar, g at the elements of y, times what was taken out of the trace."""
        gains = self._known_before(window)[1] if self.known.gains else {}
        out = []
        for k, gather in enumerate(self.plan.gathers):
            layout = self.plan.layout(k)
            found = [gather(s) for s in layout.read({i: g[i] for i in layout.group.leaves})]
            out.append([s * gains[k].astype(s.dtype) for s in found] if k in gains else found)
        return out

    def in_product(
        self, trace: list[tuple[Array, ...]], g: Mapping[int, Array], window: WindowData
    ) -> dict[int, tuple[Array, Array]]:
        """Credit of factored traces, as rows of the window's products."""
        rows: dict[int, list[tuple[Array, Array]]] = {}
        for k, entry, signal, factored in self._met(trace, g, window):
            j = self.plan.relations[k].site
            site, signal = self.plan.facts.sites[j], self.plan.met(k, entry, signal, window.fixed)
            if factored and site.rule.as_data is not None:
                pair = site.rule.as_data(site.call, entry), signal.astype(site.call.out.dtype)
                rows.setdefault(j, []).append(pair)
        return {j: (jnp.stack([u for u, _ in found]), jnp.stack([c for _, c in found])) for j, found in rows.items()}

    def move(self, trace: list[tuple[Array, ...]], window: WindowData) -> list[tuple[Array, ...]]:
        (blocks, rows), (changing, seen) = self._known_before(window)[0], window.records
        steps, known, out = window.steps, self.known, []
        made = {g: Products(self.plan.probes.layouts[g], known.blocks[g], g, blocks, changing, self.plan.steep)
                for g in self.groups}  # fmt: skip
        found = {g: p.powers(steps) if known.is_fixed(g) else p.suffixes(steps) for g, p in made.items()}
        for k, (r, entries) in enumerate(zip(self.plan.relations, trace, strict=True)):
            if k in known.shared:
                out.append(())
                continue
            row = [seen[k, s] if (k, s) in seen else rows[k, s][None] for s in range(len(entries))]
            out.append(self._moved(k, entries, *found[r.group], row, window))
        return out

    def _moved(
        self, k: int, entries: tuple[Array, ...], whole: Block, stack: Block, row: Sequence[Array], window: WindowData
    ) -> tuple[Array, ...]:
        """P ε_0 + Σ_k u_k ⊗ c_k for one relation."""
        r, dtype = self.plan.relations[k], wide_dtype(self.plan.dtypes[k])
        site, fixed = self.plan.facts.sites[r.site], window.fixed[r.site]
        late = block_times(self._at_op(k, stack, 1), row, self.plan.steep)
        rows = self._at_trace(k, whole, window)
        data, new = [widened(u, dtype) for u in window.data(r.site)], []
        for own, (entry, line, c, along) in enumerate(zip(entries, rows, late, self.slots[k], strict=True)):
            if c is not None:
                c = jnp.broadcast_to(c, (window.steps, *shortened(site.call.out.shape, along)))
                kept = site_math.moved(site, fixed, line, entries, own, data, c.astype(dtype), self.plan.steep)
            else:
                (kept,) = block_times([line], entries, self.plan.steep)
            new.append(entry if kept is None else jnp.broadcast_to(kept, entry.shape).astype(entry.dtype))
        return tuple(new)

    def _at_trace(self, k: int, whole: Block, window: WindowData) -> Block:
        """Values per position, broadcastable to the traces, which are moved in their place."""
        site, fixed = self.plan.facts.sites[self.plan.relations[k].site], window.fixed
        spread = [
            [None if p is None else site_math.spread(site, fixed[self.plan.relations[k].site], p) for p in line]
            for line in self._at_op(k, whole, 0)
        ]
        zero = window.zero_after_credit
        return [[None if p is None else p + jnp.asarray(zero, p.dtype) for p in line] for line in spread]

    def _at_op(self, k: int, block: Block, lead: int) -> Block:
        """Values per position, at the elements of y; axes before them are left alone."""
        layout, gather = self.plan.layout(k), self.plan.gathers[k]
        if gather.is_identity and layout.shape == gather.shape:
            return block
        along = products(self.known.at_ops[k], len(gather.shape))

        def read(q: Array | None, even: Even | None) -> Array | None:
            if q is None or even is None:
                return None
            full = jnp.broadcast_to(q, (*q.shape[:lead], *layout.shape))
            return narrowed(jax.vmap(gather)(full) if lead else gather(full), (*(False,) * lead, *even.along))

        pairs = zip(block, along, strict=True)
        return [[read(q, even) for q, even in zip(line, evens, strict=True)] for line, evens in pairs]


def find_narrow(
    facts: Facts, probes: Probes, trace_dtype: DTypeLike | None
) -> tuple[NarrowTraces | None, list[Relation]]:
    """The relations of a plan whose traces are narrow, and the others."""
    relations, layouts = probes.relations, probes.layouts
    # What is known of many states is too much to ask; copies are as narrow as they get.
    few = [r for r in relations if can_be_narrow(facts, r) and not layouts[r.group].stacked]
    plan = plan_of(facts, probes.of(few), trace_dtype)
    real = [k for k, dtype in enumerate(plan.dtypes) if not np.issubdtype(dtype, np.complexfloating)]
    known = structure_of(plan).with_gains(real) if few else None
    narrow = [k for k in range(len(few)) if known is not None and is_narrow(plan, known, k)]
    if known is None or not narrow:
        return None, list(relations)
    some = [few[k] for k in narrow]
    own = plan_of(facts, probes.of(some), trace_dtype)
    return NarrowTraces(own, known.of(narrow)), [r for r in relations if r not in some]


def narrow_transport(traces: NarrowTraces) -> Transport[list[tuple[Array, ...]]]:
    """The transport of relations that are all narrow."""
    bare = traces.plan.probes.without_derived
    return Transport(
        traces.init,
        lambda trace, g, window: traces.credit(trace, bare(g, window.entry_states), window),
        traces.move,
        EachStep(traces.record),
        elsewhere=CreditElsewhere(
            lambda trace, g, window: traces.in_product(trace, bare(g, window.entry_states), window)
        ),
        parts=lambda trace: by_site([r.site for r in traces.plan.relations], trace),
    )
