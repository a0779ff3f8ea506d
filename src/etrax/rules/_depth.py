"""Exact influence on the layers above: RTRL on the state scalars that a weight op ever reaches, and on no others.

    E₂[p₂, θ₁] ← D₂[p₂] E₂[p₂, θ₁] + Σ_{p₁} V[p₂, p₁] ε₁[p₁, θ₁]

What a lower layer does to a diagonal layer above it takes n₂·|θ₁| numbers, where RTRL has H·|θ|, and is moved without a
product of H × H: A = ∂h_K/∂h_0 has zeros wherever no state leads to another, and an element of y reaches its own
position alone in its own layer. Everything is moved once per window; A and C come from pulls of the window, one for
each wide row and one for many narrow ones (`_reached_rows.py`). Wide rows are pulled and moved some at a time. Under a
layer with recurrent weights the product is that of RTRL, for the rows that there are (docs/mathematics.md, 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from .._arguments import format_bytes
from .._machine import machine
from ..compiler.analysis import Facts, find_samples, is_steep, memoised
from ..compiler.ir import Role, format_path
from ..compiler.opened import fixed_examples
from ..runtime import (
    Layout,
    Transport,
    WindowData,
    add_to,
    by_site,
    cleared_influence,
    layout_of,
    site_math,
    times,
    trace_dtype_of,
)
from ._partition import linked_params
from ._reached_rows import Rows, colours_of, find_rows, scalar_links
from ._rtrl import carry_over, pull_probes, pull_stacked, sample_axis
from ._verdicts import Kind, Verdict, trivial_verdict, whole_influence_verdict

# Factors (rows, *y) → (rows, …), broadcastable to rows of the trace.
Spread: TypeAlias = Callable[[Array], Array]


class ReachedTrace(NamedTuple):
    """Per relation the narrow rows (m, …trace shape) and the wide ones (w, …trace shape)."""

    narrow: list[Array]
    wide: list[Array]


class _Segment(NamedTuple):
    """Wide rows that the same relations have: by number of each, whether many of its rows act on them."""

    scalars: np.ndarray
    members: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, eq=False)
class _Influence:
    """The influence of one relation: its rows, and how they are moved over a window."""

    facts: Facts
    rows: Rows
    layout: Layout
    links: np.ndarray
    dtype: np.dtype

    @cached_property
    def sources(self) -> np.ndarray:
        """(w, w): whether the wide row of the column acts on that of the row."""
        return self.links[np.ix_(self.rows.wide, self.rows.wide)].T

    @cached_property
    def many(self) -> np.ndarray:
        """(w,): whether a wide row is moved by a product of matrices."""
        return self.sources.sum(1) > machine().few_sources

    @property
    def site(self) -> int:
        return self.rows.relation.site

    @cached_property
    def axis(self) -> int | np.ndarray | None:
        return sample_axis(self.facts, self.rows.relation, fixed_examples(self.facts.step, self.facts.sites)[self.site])

    @property
    def shape(self) -> tuple[int, ...]:
        return site_math.trace_shape(self.facts.sites[self.site])

    @property
    def nbytes(self) -> int:
        return self.rows.count * math.prod(self.shape) * self.dtype.itemsize

    def zeros(self) -> tuple[Array, Array]:
        counts = self.rows.narrow.shape[0], self.rows.wide.size
        return jnp.zeros((counts[0], *self.shape), self.dtype), jnp.zeros((counts[1], *self.shape), self.dtype)

    def spread(self, window: WindowData) -> Spread:
        return jax.vmap(partial(site_math.spread, self.facts.sites[self.site], window.fixed[self.site]))

    def credit(self, narrow: Array, wide: Array, g: Mapping[int, Array], window: WindowData) -> Array:
        """(∂L/∂h_0) · J, of the weight's shape."""
        site, fixed, place = self.facts.sites[self.site], window.fixed[self.site], self.rows.relation.places
        read = jnp.stack([v.reshape(-1) for v in self.layout.read({i: g[i] for i in self.layout.group.leaves})])
        own = jnp.where(self.rows.narrow >= 0, read[np.maximum(self.rows.narrow, 0), place], 0)
        total = jnp.zeros((), self.dtype)
        for influence, signal in ((narrow, own), (wide, read[self.rows.wide][:, place])):
            if not influence.shape[0]:
                continue
            signal = signal.astype(influence.dtype)
            if is_steep(self.facts):
                signal = jax.vmap(partial(site_math.met, site, fixed))(influence, signal)
            total = total + jax.vmap(partial(site_math.apply, site, fixed))(influence, signal).sum(0)
        return total

    def moved_narrow(self, narrow: Array, pulls: _Pulls, window: WindowData) -> Array:
        """Narrow rows at the exit, which only narrow rows act on."""
        site, new, place = self.facts.sites[self.site], self.rows.narrow, self.rows.relation.places
        if not narrow.shape[0]:
            return narrow
        colour, total = pulls.colour[np.maximum(new, 0)], jnp.zeros_like(narrow)
        for old, influence in zip(new, narrow, strict=True):
            linked = (new >= 0) & (old >= 0) & self.links[old, new]
            gains = jnp.where(linked, pulls.across[colour, np.maximum(old, 0), place], 0)
            gains = self.spread(window)(gains.astype(jnp.real(narrow).dtype))
            total = total + times(gains, influence[None], is_steep(self.facts))
        beside = (new.shape[0], 1, *site.beside_loops(new.shape[1:]))  # rows, steps, elements
        fresh = jnp.take_along_axis(pulls.fresh[self.site], jnp.asarray(colour.reshape(beside)), 0)
        fresh = jnp.where((new >= 0).reshape(beside), fresh, 0)
        return (total + self._outer(fresh, window)).astype(self.dtype)

    def moved_wide(
        self, rows: Array, by_product: bool, narrow: Array, wide: Array, pulls: _Pulls, window: WindowData
    ) -> Array:
        """Some wide rows at the exit, by their numbers; each has a pull of its own."""
        place, steep, spread = self.rows.relation.places, is_steep(self.facts), self.spread(window)
        gains = pulls.across.astype(jnp.real(wide).dtype)
        total = self._outer(pulls.fresh[self.site], window).astype(self.dtype)
        for old, influence in zip(self.rows.narrow, narrow, strict=True):
            of_element = jnp.where(old >= 0, gains[:, np.maximum(old, 0), place], 0)
            total = total + times(spread(of_element), influence[None], steep)
        if by_product:
            columns = np.flatnonzero(self.sources[self.many].any(0))
            old = wide if columns.size == wide.shape[0] else wide[columns]
            return (total + carry_over(gains[:, self.rows.wide[columns]], old, self.axis, steep)).astype(self.dtype)
        for source in self._listed_sources[:, rows]:
            scalar = jnp.asarray(self.rows.wide)[source]
            of_row = jnp.take_along_axis(gains, jnp.maximum(scalar, 0)[:, None, None], 1)[:, 0]
            of_row = jnp.where((source >= 0)[:, None], of_row, 0)[:, place]
            total = total + times(spread(of_row), wide[jnp.maximum(source, 0)], steep)
        return total.astype(self.dtype)

    @cached_property
    def _sources_by_row(self) -> np.ndarray:
        """(n, w): the n-th wide row that acts on each, by its number; −1 where there are fewer, or many."""
        flags = [np.flatnonzero(f) if not many else f[:0] for f, many in zip(self.sources, self.many, strict=True)]
        most = max((f.size for f in flags), default=0)
        return np.stack([np.pad(f, (0, most - f.size), constant_values=-1) for f in flags], 1)

    @property
    def _listed_sources(self) -> Array:
        return jnp.asarray(self._sources_by_row)

    def _outer(self, cotangents: Array, window: WindowData) -> Array:
        """What the op did inside the window, by rows of cotangents (rows, steps, …y)."""
        site = self.facts.sites[self.site]
        return jax.vmap(partial(site_math.outer, site, window.fixed[self.site], window.data(self.site)))(cotangents)


class _Pulls(NamedTuple):
    """Rows of A (pulls, S, samples) and cotangents of ops (pulls, steps, …y); `colour` is the pull of each scalar."""

    across: Array
    fresh: dict[int, Array]
    colour: np.ndarray


@memoised
def _influences(facts: Facts, trace_dtype: DTypeLike | None) -> dict[int, _Influence]:
    """By site, for every op that reaches a state."""
    samples, influences = find_samples(facts), {}
    for group in samples.groups:
        layout = layout_of(facts, group)
        links = scalar_links(facts, layout)
        for r in (r for r in samples.relations if r.group == group.index):
            rows, dtype = find_rows(facts, layout, r, links), trace_dtype_of(facts, r, trace_dtype)
            influences[r.site] = _Influence(facts, rows, layout, links, dtype)
    return influences


@dataclass(frozen=True, eq=False)
class _Sample:
    """The influences on one group of samples, and the pulls that move them."""

    members: Sequence[_Influence]

    @property
    def layout(self) -> Layout:
        return self.members[0].layout

    @cached_property
    def colour(self) -> np.ndarray:
        return colours_of([k.rows for k in self.members], self.members[0].links)

    @cached_property
    def narrow_probes(self) -> list[dict[int, np.ndarray]]:
        """The cotangents of one pull for each colour of narrow scalars."""
        return [
            {i: np.sum([p[i] for p in some], 0) for i in self.layout.group.leaves}
            for c in range(int(self.colour.max(initial=-1)) + 1)
            for some in [[self.layout.probe(int(s)) for s in np.flatnonzero(self.colour == c)]]
        ]

    @cached_property
    def segments(self) -> list[_Segment]:
        """All wide rows, in order; those of a relation stand in the order of its trace."""
        kinds: dict[tuple[tuple[int, bool], ...], list[int]] = {}
        for s in range(self.layout.size):
            many = {n: k.many[k.rows.wide == s] for n, k in enumerate(self.members)}
            having = tuple((n, bool(flag[0])) for n, flag in many.items() if flag.size)
            if having:
                kinds.setdefault(having, []).append(s)
        return [_Segment(np.array(scalars), kind) for kind, scalars in kinds.items()]

    def move(self, narrow: Sequence[Array], wide: Sequence[Array], window: WindowData) -> list[tuple[Array, Array]]:
        moved = list(narrow)
        if self.narrow_probes:
            pulls = _Pulls(*pull_probes(self.layout, self.narrow_probes, window), self.colour)
            moved = [k.moved_narrow(a, pulls, window) for k, a in zip(self.members, narrow, strict=True)]
        pieces: list[list[tuple[np.ndarray, Array]]] = [[] for _ in self.members]
        for segment in self.segments:
            for (n, _), rows in zip(segment.members, self._moved(segment, narrow, wide, window), strict=True):
                pieces[n].append((np.searchsorted(self.members[n].rows.wide, segment.scalars), rows))
        return [(a, _in_order(parts, old)) for a, old, parts in zip(moved, wide, pieces, strict=True)]

    def _moved(
        self, segment: _Segment, narrow: Sequence[Array], wide: Sequence[Array], window: WindowData
    ) -> list[Array]:
        """The rows of a segment for each of its relations, some of them at a time."""
        count, size = segment.scalars.size, min(machine().rows_at_once, segment.scalars.size)
        blocks = np.resize(np.arange(count), (-(-count // size), size))  # the last one may begin again at the first row
        probes = [self.layout.probe(int(s)) for s in segment.scalars]
        stacked = {i: np.stack([p[i] for p in probes]) for i in self.layout.group.leaves}
        numbers = [np.searchsorted(self.members[n].rows.wide, segment.scalars) for n, _ in segment.members]

        def block(rows: Array) -> list[Array]:
            cotangents = {i: jnp.asarray(a, self.layout.avals[i].dtype)[rows] for i, a in stacked.items()}
            pulls = _Pulls(*pull_stacked(self.layout, cotangents, window), self.colour)
            return [
                self.members[n].moved_wide(jnp.asarray(at)[rows], many, narrow[n], wide[n], pulls, window)
                for (n, many), at in zip(segment.members, numbers, strict=True)
            ]

        if len(blocks) == 1:
            return block(jnp.asarray(blocks[0]))
        every = lax.map(block, jnp.asarray(blocks))
        return [a.reshape(-1, *a.shape[2:])[:count] for a in every]


def _in_order(parts: Sequence[tuple[np.ndarray, Array]], old: Array) -> Array:
    """Rows with their numbers, put together in the order of these."""
    if not parts:
        return old
    order = np.argsort(np.concatenate([numbers for numbers, _ in parts]))
    rows = jnp.concatenate([a for _, a in parts]) if len(parts) > 1 else parts[0][1]
    return rows if np.array_equal(order, np.arange(order.size)) else rows[order]


def reached_transport(
    facts: Facts, sites: frozenset[int], trace_dtype: DTypeLike | None = None
) -> Transport[ReachedTrace]:
    """RTRL for some sites, on the state scalars that they reach."""
    of_site = _influences(facts, trace_dtype)
    carried = [of_site[j] for j in sorted(sites) if j in of_site]
    groups = dict.fromkeys(k.rows.relation.group for k in carried)
    numbers = [[n for n, k in enumerate(carried) if k.rows.relation.group == g] for g in groups]
    samples = [_Sample([carried[n] for n in some]) for some in numbers]

    def init() -> ReachedTrace:
        pairs = [k.zeros() for k in carried]
        return ReachedTrace([a for a, _ in pairs], [b for _, b in pairs])

    def credit(trace: ReachedTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        if window.resets is not None:
            trace = cleared(trace, window, window.resets[0])
        for k, narrow, wide in zip(carried, *trace, strict=True):
            add_to(out, k.site, k.credit(narrow, wide, g, window))
        return out

    def cleared(trace: ReachedTrace, window: WindowData, flags: Array) -> ReachedTrace:
        """The trace with zero in the lanes that start again."""

        def one(k: _Influence, rows: Array) -> Array:
            return cleared_influence(facts, k.layout.group, k.rows.relation, window, flags, rows)

        return ReachedTrace(*([one(k, a) for k, a in zip(carried, rows, strict=True)] for rows in trace))

    def move(trace: ReachedTrace, window: WindowData) -> ReachedTrace:
        if window.resets is not None:
            trace = cleared(trace, window, window.resets.any(0))
        narrow, wide = list(trace.narrow), list(trace.wide)
        for some, sample in zip(numbers, samples, strict=True):
            moved = sample.move([trace.narrow[n] for n in some], [trace.wide[n] for n in some], window)
            for n, (a, b) in zip(some, moved, strict=True):
                narrow[n], wide[n] = a, b
        return ReachedTrace(narrow, wide)

    def parts(trace: ReachedTrace) -> dict[int, list[Array]]:
        return by_site([k.site for k in carried], zip(*trace, strict=True))

    return Transport(init, credit, move, parts=parts)


@dataclass(frozen=True, eq=False)
class Depth:
    """What a budget makes exact: `sites` whose whole influence is carried, and for what parameters.

    `taken` and `left` list clusters of parameters with the bytes that each takes, those of `left` beyond the budget.
    """

    sites: frozenset[int]
    taken: tuple[tuple[frozenset[int], int], ...]
    left: tuple[tuple[frozenset[int], int], ...]

    def carries(self, param: int) -> bool:
        return any(param in cluster for cluster, _ in self.taken)


def chosen_depth(facts: Facts, budget: float, trace_dtype: DTypeLike | None, is_exact: Callable[[int], bool]) -> Depth:
    """The parameters that become exact within a budget in bytes, the cheapest first; `is_exact` without it."""
    offers, of_site = [], None
    for cluster in linked_params(facts):
        if all(map(is_exact, cluster)) or not all(_can_be_exact(facts, i) for i in cluster):
            continue
        of_site = _influences(facts, trace_dtype) if of_site is None else of_site
        sites = {j for i in cluster for j in facts.live_sites_of(i)} & of_site.keys()
        offers.append((sum(of_site[j].nbytes for j in sites), cluster, sites))
    offers.sort(key=lambda offer: (offer[0], min(offer[1])))
    taken, left, used = [], [], 0
    for nbytes, cluster, sites in offers:
        if used + nbytes <= budget:
            used += nbytes
            taken.append((cluster, nbytes, sites))
        else:
            left.append((cluster, nbytes))
    sites = frozenset().union(*(sites for *_, sites in taken))
    return Depth(sites, tuple((cluster, nbytes) for cluster, nbytes, _ in taken), tuple(left))


def _can_be_exact(facts: Facts, param: int) -> bool:
    return whole_influence_verdict(facts, param).kind in (Kind.EXACT, Kind.UNUSED)


def depth_verdict(facts: Facts, param: int, depth: Depth) -> Verdict:
    """The verdict of a parameter whose whole influence is carried."""
    whole = whole_influence_verdict(facts, param)
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    nbytes = next(n for cluster, n in depth.taken if param in cluster)
    return whole._replace(
        reason="its influence is carried to every state that it ever reaches, through all that lies in between "
        f"(`depth`, {format_bytes(nbytes)})"
    )


def depth_notes(facts: Facts, depth: Depth, budget: float) -> list[str]:
    """What became exact by a budget, and what the rest would take."""
    leaves = facts.step.select(Role.PARAM)

    def named(clusters: Sequence[tuple[frozenset[int], int]]) -> str:
        return ", ".join(format_path(leaves[i].path, "params") for cluster, _ in clusters for i in sorted(cluster))

    out, total = [], sum(n for _, n in depth.taken)
    if depth.taken:
        out.append(
            f"{named(depth.taken)} became exact by `depth`, for {format_bytes(total)} within {format_bytes(budget)}"
        )
    if depth.left:
        needed = format_bytes(total + sum(n for _, n in depth.left))
        out.append(f"{named(depth.left)} would become exact too with `depth` of {needed} in all")
    if not depth.taken and not depth.left:
        out.append("`depth` carries nothing: no parameter would become exact by it")
    return out
