"""The transport of traces by position, whatever their kinds: what a plan says is what is carried.

    ε_K = P ε_0 + Σ_k u_k ⊗ c_k        P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k

No trace is touched step by step: P and c_k are as large as states and outputs of ops (docs/mathematics.md, 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import is_concrete, materialised
from ..._machine import machine
from .. import _site_math as site_math
from .._before_reset import cleared_trace
from .._plan import Plan
from .._recorder import FixedParts
from .._site_math import wide_dtype
from .._transport import EachStep, FusedCredit, SeenThrough, Transport, WindowData, add_to, by_site
from .._view import in_view
from ..blocks import Algebra, Alike, Matrix, Step, Unrolled, Vector, power, reverse
from . import _by_leak, _by_slot, _stack

# The kinds of trace. The first one that fits a relation serves it: a new kind is a file like these, and its name here.
KINDS: tuple[ModuleType, ...] = (_by_leak, _stack, _by_slot)

# The arrays of one relation's trace, as its kind holds them.
Entries: TypeAlias = tuple[Array, ...] | Array
# (number of a relation, signal at the elements of its y) -> the signal that its trace meets
Meets: TypeAlias = Callable[[int, Vector], Vector]


class PositionTrace(NamedTuple):
    """Per relation, the arrays of its trace; none for one whose trace is another's."""

    entries: list[Entries]


@dataclass(frozen=True, eq=False)
class Traces:
    """The traces of a plan. With `by_sample`, those of several states may be held as one array, if that is faster."""

    plan: Plan
    by_sample: bool = True

    @cached_property
    def kinds(self) -> list[ModuleType]:
        count = range(len(self.plan.relations))
        return [next(kind for kind in KINDS if kind.fits(self.plan, k, self.by_sample)) for k in count]

    def init(self) -> PositionTrace:
        plan = self.plan
        zeros = [kind.zeros(plan, k) if plan.source(k) == k else () for k, kind in enumerate(self.kinds)]
        return PositionTrace(zeros)

    def nbytes(self, k: int) -> int:
        """Bytes of the trace of relation k."""
        if self.plan.source(k) != k:
            return 0
        arrays = jax.tree.leaves(jax.eval_shape(lambda: self.kinds[k].zeros(self.plan, k)))
        return sum(int(np.prod(a.shape, dtype=np.int64)) * a.dtype.itemsize for a in arrays)

    def credit(
        self, trace: PositionTrace, g: Mapping[int, Vector], window: WindowData, fused: bool = False,
        meets: Meets = lambda k, signal: signal,
    ) -> dict[int, Array]:  # fmt: skip
        """g · ε by site, for rows g per group; without what `fused_rows` give, if credit is `fused`.

        `meets(k, signal)` may change the signal that the trace of relation k meets.
        """
        out: dict[int, Array] = {}
        for k, (r, entries, signal) in self._signals(trace, g, window).items():
            if r.site in window.sites_at_exit:
                continue
            term = self.kinds[k].credit(self.plan, k, entries, meets(k, signal), window, fused)
            if term is not None:
                add_to(out, r.site, term)
        return out

    def fused_rows(
        self, trace: PositionTrace, g: Mapping[int, Vector], window: WindowData,
        meets: Meets = lambda k, signal: signal,
    ) -> dict[int, tuple[Array, Array]]:  # fmt: skip
        """Credit of factored traces, as rows of the window's products."""
        rows: dict[int, list[tuple[Array, Array]]] = {}
        for k, (r, entries, signal) in self._signals(trace, g, window).items():
            if r.site in window.sites_at_exit:
                continue
            row_pairs = self.kinds[k].fused_rows(self.plan, k, entries, meets(k, signal), window)
            rows.setdefault(r.site, []).extend(row_pairs)
        return {
            j: (jnp.stack([u for u, _ in row_pairs]), jnp.stack([c for _, c in row_pairs]))
            for j, row_pairs in rows.items()
            if row_pairs
        }

    def at_exit(self, trace: PositionTrace, window: WindowData) -> dict[int, Array]:
        """∂ℓ/∂h_1 · ε_1 of the sites whose gradient is that, for the moved trace of a window of one step."""
        plan, sites = self.plan, window.sites_at_exit
        groups = {r.group for r in plan.relations if r.site in sites}
        if not groups:
            return {}
        bars = {g: plan.reader.layouts[g].vector(window.exit_bar) for g in groups}
        terms = self.credit(trace, bars, window._replace(sites_at_exit=frozenset()))
        return {j: term for j, term in terms.items() if j in sites}

    def _signals(self, trace: PositionTrace, g: Mapping[int, Vector], window: WindowData) -> dict:
        """Per relation, its trace and g at the elements of y as that trace meets it."""
        plan, gains = self.plan, self.plan.recorder.fixed(window).gains if self.plan.structure.gains else {}
        relations = {k: r for k, r in enumerate(plan.relations) if r.group in g}
        if window.resets is not None:
            trace = self.without_past(trace, window, window.resets[0])
        return {k: (r, trace.entries[plan.source(k)], plan.signal(k, g[r.group], gains)) for k, r in relations.items()}

    def without_past(self, trace: PositionTrace, window: WindowData, flags: Array) -> PositionTrace:
        """The trace with zero in the lanes that start again."""

        def one(k: int, entries: Entries) -> Entries:
            site, fixed, lanes = self.plan.site(k), window.fixed[self.plan.relations[k].site], self.plan.lanes_at(k)
            return jax.tree.map(lambda e: cleared_trace(site, fixed, lanes, flags, e), entries)

        return PositionTrace([one(k, entries) for k, entries in enumerate(trace.entries)])

    def summed(self, k: int, trace: PositionTrace, g: Vector, window: WindowData) -> Array:
        """g · ε of relation k at the exit, entry by entry of one slot's trace, for g taken back through the window."""
        gains = self.plan.recorder.fixed(window).gains if self.plan.structure.gains else {}
        m = self.plan.source(k)
        if window.resets is not None:
            trace = self.without_past(trace, window, window.resets.any(0))
        return self.kinds[m].summed(self.plan, m, trace.entries[m], self.plan.signal(k, g, gains), window)

    def move(self, trace: PositionTrace, window: WindowData, records: Step) -> PositionTrace:
        """P ε_0 + Σ_k u_k ⊗ c_k of every relation."""
        plan = self.plan
        if not plan.relations:
            return trace
        if window.resets is not None:
            trace = self.without_past(trace, window, window.resets.any(0))
        window_products, suffix_rows = self.suffix_products(window, records)
        return PositionTrace(
            [
                self.kinds[k].moved(plan, k, entries, window_products[r.group], suffix_rows[k], window)
                if plan.source(k) == k
                else entries
                for k, (r, entries) in enumerate(zip(plan.relations, trace.entries, strict=True))
            ]
        )

    def suffix_products(self, window: WindowData, records: Step) -> tuple[dict[int, Matrix], dict[int, Vector]]:
        """P per group, and c_k per relation and slot, stacked over k. A narrow trace is moved by wide products."""
        plan, steps = self.plan, window.steps
        fixed, dtypes = plan.recorder.fixed(window), {g: _real_dtype(plan, g) for g in plan.groups}
        if steps == 1 and machine().writes_blocks:
            fixed = _written_down(fixed)
        unshared = [k for k in range(len(plan.relations)) if plan.source(k) == k]
        # Powers of a block are those of every window, unless something starts again in one.
        still = [g for g in plan.groups if window.resets is None and plan.structure.is_fixed(g)]
        # Where D changes: one loop backwards, for all groups together.
        # Over several steps, slots that act alike are one entry: the loop has fewer operations for it.
        joined = plan.alike if steps > 1 else {}
        algebras = {g: joined.get(g, plan.algebras[g]) for g in plan.groups}
        moving = {g: algebras[g].identity(dtypes[g], window.zero_after_credit) for g in plan.groups if g not in still}

        # Of one slot at a position, the products are smaller than what they make of F: that is made of all at once.
        alone = [g for g in moving if steps > 1 and plan.reader.layouts[g].size == 1]

        def emit(a: Mapping[int, Matrix], step: Step) -> tuple[dict[int, Vector], dict[int, Matrix]]:
            met = [k for k in unshared if (g := plan.relations[k].group) in a and g not in alone]
            late = {k: self._late(k, a[g], step.rows[k], algebras[g]) for k in met for g in [plan.relations[k].group]}
            return late, {g: a[g] for g in alone}

        products, rows = {}, {}
        if moving:
            changing = Step({g: d for g, d in records.blocks.items() if g in moving},
                            {k: f for k, f in records.rows.items() if plan.relations[k].group in moving})  # fmt: skip
            products, (rows, suffixes_of) = reverse(
                algebras, moving, steps, lambda record: plan.recorder.read(fixed, record),
                _joined(plan, joined, changing), emit, resets=plan.resets(window, until_exit=True),
            )  # fmt: skip
            products = {g: joined[g].by_slot(p) if g in joined else p for g, p in products.items()}
            classes = {k: joined.get(plan.relations[k].group) for k in rows}
            rows = {k: c if a is None else a.vector_by_slot(rows[k], 1) for k, a in classes.items() for c in [rows[k]]}
            for k in (k for k in unshared if plan.relations[k].group in alone):
                rows[k] = self._late_of_all(k, suffixes_of[plan.relations[k].group], fixed, records)
            rows = {k: plan.since_reset(k, c, window) for k, c in rows.items()}
        # Where it does not: its powers, which are those of every window.
        for g in still:
            algebra = plan.algebras[g]
            assert isinstance(algebra, Unrolled)  # of many states nothing is known to be fixed
            window_product, suffixes = algebra.powers(fixed.blocks[g], steps, dtypes[g])
            # Added here, and not to the powers, which must not depend on the window.
            products[g] = jax.tree.map(lambda p: p + jnp.asarray(window.zero_after_credit, p.dtype), window_product)
            for k in (k for k in unshared if plan.relations[k].group == g):
                rows[k] = self._late_of_all(k, suffixes, fixed, records)
        layouts = plan.reader.layouts
        masked = {g: plan.algebras[g].without(p, power(layouts[g].links, steps)) for g, p in products.items()}
        return masked, rows

    def _late(self, k: int, a: Matrix, row: Vector, algebra: Algebra) -> Vector:
        """a · F at the elements of relation k's y: c_k, if a is the product of later blocks."""
        plan, dtype = self.plan, wide_dtype(self.plan.dtypes[k])
        at, site = plan.at_op(k, a, algebra), plan.site(k)
        if site.loops:
            lead = plan.layout(k).lead
            at = algebra.map(lambda p, s, t: site_math.beside_loops(site, p, lead), at)
        c = algebra.times(at, row, plan.drives[k])
        return jax.tree.map(lambda x: x.astype(dtype), c)

    def _late_of_all(self, k: int, suffixes: Matrix, fixed: FixedParts, records: Step) -> Vector:
        """c_k for all steps at once, given their suffix products; F may be that of every step."""
        row = records.rows.get(k)
        if row is None:
            return jax.vmap(lambda a: self._late(k, a, fixed.rows[k], self.plan.algebra(k)))(suffixes)

        def one(a: Matrix, changing: Vector) -> Vector:
            row = self.plan.recorder.read(fixed, Step({}, {k: changing})).rows[k]
            return self._late(k, a, row, self.plan.algebra(k))

        return jax.vmap(one)(suffixes, row)


def _joined(plan: Plan, joined: Mapping[int, Alike], records: Step) -> Step:
    """Records over a window, of some groups by class of slots that act alike."""
    blocks = {g: joined[g].joined(d, 1) if g in joined else d for g, d in records.blocks.items()}
    of = {k: plan.relations[k].group for k in records.rows}
    rows = {k: joined[of[k]].joined_vector(f, 1) if of[k] in joined else f for k, f in records.rows.items()}
    return Step(blocks, rows)


def _written_down(fixed: FixedParts) -> FixedParts:
    """Blocks and rows that XLA computes once, not for each entry of a trace; those that are known stay as they are."""
    leaves, tree = jax.tree.flatten((fixed.blocks, fixed.rows))
    # An entry without axes, or one that is known, costs nothing to compute again.
    costly = [n for n, a in enumerate(leaves) if a.size > 1 and not is_concrete(a)]
    for n, a in zip(costly, materialised([leaves[n] for n in costly]), strict=True):
        leaves[n] = a
    blocks, rows = jax.tree.unflatten(tree, leaves)
    return fixed._replace(blocks=blocks, rows=rows)


def _real_dtype(plan: Plan, g: int) -> np.dtype:
    """The real type of a group's slots, at least float32."""
    avals = plan.reader.layouts[g].avals.values()
    wide = any(np.dtype(a.dtype).name in ("float64", "complex128") for a in avals)
    return np.dtype(np.float64 if wide else np.float32)


def by_position_transport(
    plan: Plan, through_states: Callable[[], SeenThrough] = SeenThrough
) -> Transport[PositionTrace]:
    """Traces of a plan, and the gradient of the loss through the entry state, or through the new states of a step."""
    traces = Traces(plan)
    transport = Transport(
        traces.init,
        lambda trace, g, window: traces.credit(trace, plan.vectors(g), window, fused=True),
        lambda trace, window: traces.move(trace, window, window.records),
        EachStep(plan.recorder.record) if plan.relations else EachStep(),
        fused=FusedCredit(
            lambda trace, g, window: traces.fused_rows(trace, plan.vectors(g), window), traces.at_exit, through_states
        ),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace.entries),
    )
    return in_view(plan.reader.view, transport)
