"""SnAp: the sparse n-step approximation of RTRL.

    J_t = M_n ∘ (A_t J_{t-1} + C_t),   A = ∂h'/∂h,   C = ∂h'/∂θ   of the step as it is, with nothing cut

M_n is 1 where a weight reaches a position in n steps, and 0 elsewhere. With n = 1 that is its own position, as
in `ostl`; with n large enough to reach everything it is RTRL. Larger n than 1 move the trace step by step. Of all
states of a sample each element of y has those it may reach: `index[a, e]` is the a-th state scalar of element e
(docs/mathematics.md, 6).

Menick, Elsen, Evci, Osindero, Simonyan and Graves, "Practical real time recurrent learning with a sparse
approximation", ICLR, 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from .._arguments import short
from .._errors import ArgumentError
from ..compiler.analysis import (
    Elements,
    Facts,
    OpNode,
    Relation,
    find_nodes,
    find_samples,
    is_steep,
    lane_of_elements,
    nearby_elements,
    reach_of,
    steps_to_fill,
)
from ..compiler.ir import mapped
from ..compiler.opened import OpenStep
from ..runtime import (
    EachStep,
    LaneMap,
    Layout,
    Transport,
    WindowData,
    add_to,
    by_site,
    cleared,
    cleared_influence,
    differentiable,
    layout_of,
    site_math,
    times,
    trace_dtype_of,
)
from ..runtime.traces import PositionTrace, by_position_transport
from ._ostl import own_elements, own_position, own_share, whole_plan, whole_transport
from ._rtrl import DenseTrace, dense_transport
from ._rule import Rule
from ._series import in_series
from ._state_credit import check_credit, state_credit, state_credit_of_all, state_rule
from ._verdicts import Kind, Verdict, trivial_verdict, with_least_window
from ._words import words_of


class SparseTrace(NamedTuple):
    """Per relation, (m, …trace shape): m is the most state scalars that an element of y reaches."""

    influence: list[Array]


@dataclass(frozen=True, eq=False)
class Reached:
    """A relation with the state scalars that each element of y reaches, (m, *y); -1 where there are fewer."""

    relation: Relation
    index: np.ndarray
    dtype: np.dtype

    def take(self, a: Array, b: Array | None = None) -> Array:
        """a[index, sample], or a[index, b, sample], per element of y; zero where nothing is reached."""
        at, place = np.maximum(self.index, 0), self.relation.places
        if b is None:
            return jnp.where(self.index >= 0, a[at, place], 0)
        return jnp.where((self.index >= 0) & (b >= 0), a[at, jnp.maximum(b, 0), place], 0)


def reaching_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, n: int
) -> Transport[SparseTrace] | Transport[DenseTrace]:
    """SnAp-n: RTRL where n steps reach everything."""
    samples = find_samples(facts)
    layouts = [layout_of(facts, g) for g in samples.groups]
    relations = [r for r in samples.relations if sites is None or r.site in sites]
    patterns = [
        Reached(r, _index(facts, layouts[r.group], r, n), trace_dtype_of(facts, r, trace_dtype)) for r in relations
    ]
    if patterns and all(k.index.shape[0] == layouts[k.relation.group].size and (k.index >= 0).all() for k in patterns):
        return dense_transport(facts, sites, trace_dtype)
    return _sparse_transport(facts, layouts, [k for k in patterns if k.index.shape[0]])


def _sparse_transport(facts: Facts, layouts: Sequence[Layout], reached: Sequence[Reached]) -> Transport[SparseTrace]:
    """Of all states of a sample, those that an element of y reaches."""
    used = sorted({k.relation.group for k in reached})
    lanes = {g: lanes_of_slots(facts, layouts[g]) for g in used}

    def init() -> SparseTrace:
        shapes = [site_math.trace_shape(facts.sites[k.relation.site]) for k in reached]
        return SparseTrace([jnp.zeros((k.index.shape[0], *s), k.dtype) for k, s in zip(reached, shapes, strict=True)])

    def record(
        leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> list[tuple[Array, dict[int, Array]]]:
        sites_of_group = [{k.relation.site for k in reached if k.relation.group == g} for g in used]
        return [
            _jacobians(facts, layouts[g], sorted(ops), leaves, weights)
            for g, ops in zip(used, sites_of_group, strict=True)
        ]

    def credit(trace: SparseTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        for k, influence in zip(reached, trace.influence, strict=True):
            j, layout = k.relation.site, layouts[k.relation.group]
            if window.resets is not None:
                influence = cleared_influence(facts, layout.group, k.relation, window, window.resets[0], influence)
            read = jnp.stack([v.reshape(-1) for v in layout.read({i: g[i] for i in layout.group.leaves})])
            signal = k.take(read).astype(influence.dtype)
            if is_steep(facts):
                signal = jax.vmap(partial(site_math.met, facts.sites[j], window.fixed[j]))(influence, signal)
            each = jax.vmap(partial(site_math.apply, facts.sites[j], window.fixed[j]))(influence, signal)
            add_to(out, j, each.sum(0))
        return out

    def move(trace: SparseTrace, window: WindowData) -> SparseTrace:
        data = {k.relation.site: window.data(k.relation.site) for k in reached}

        def step(
            trace: SparseTrace, xs: tuple[list, dict[int, tuple[Array, ...]], Array | None]
        ) -> tuple[SparseTrace, None]:
            jacobians, now, reset = xs
            if reset is not None:
                influences = [
                    cleared_influence(facts, layouts[k.relation.group].group, k.relation, window, reset, a)
                    for k, a in zip(reached, trace.influence, strict=True)
                ]
                trace = SparseTrace(influences)
                jacobians = [
                    (cleared(reset, lanes[g], a, 2), fresh) for g, (a, fresh) in zip(used, jacobians, strict=True)
                ]
            moved = []
            for k, influence in zip(reached, trace.influence, strict=True):
                j, (across, fresh) = k.relation.site, jacobians[used.index(k.relation.group)]
                moved.append(_advance(facts, k, influence, across, fresh[j], now[j], window.fixed[j]))
            return SparseTrace(moved), None

        return lax.scan(step, trace, (window.records, data, window.resets))[0] if reached else trace

    return Transport(
        init,
        credit,
        move,
        EachStep(record) if reached else EachStep(),
        parts=lambda trace: by_site([k.relation.site for k in reached], trace.influence),
    )


def lanes_of_slots(facts: Facts, layout: Layout) -> LaneMap:
    """(S, positions): the lane of every state scalar of a group, whose positions may hold several lanes."""
    if facts.lanes is None:
        return None
    slots = []
    for slot in layout.slots:
        lanes = lane_of_elements(facts.states[slot.leaf].aval.shape).reshape(-1)
        slots.append(lanes if slot.index is None else lanes[slot.index])
    return np.stack(slots)


def _index(facts: Facts, layout: Layout, relation: Relation, n: int) -> np.ndarray:
    return listed_scalars(reached_scalars(facts, layout, relation, n))


def listed_scalars(reached: np.ndarray) -> np.ndarray:
    """(S, *y) flags → (m, *y): the numbers of the scalars that each element has, −1 where there are fewer."""
    flat = reached.reshape(reached.shape[0], -1)
    order = np.argsort(~flat, axis=0, kind="stable")[: int(flat.sum(0).max(initial=0))]
    index = np.where(np.take_along_axis(flat, order, 0), order, -1)
    return index.reshape(-1, *reached.shape[1:])


def reached_scalars(facts: Facts, layout: Layout, relation: Relation, n: int) -> np.ndarray:
    """(S, *y): which state scalars of its sample each element of y reaches in n steps."""
    site, place = facts.sites[relation.site], relation.places
    reach = reach_of(facts, relation.site, n)
    nodes, flat = find_nodes(facts), place.reshape(-1)
    shared = tuple(axis for axis, sliced in enumerate(site.sliced) if not sliced)
    allowed = np.zeros((layout.size, flat.size), bool)
    for s, slot in enumerate(layout.slots):
        element = np.arange(layout.group.num_positions) if slot.index is None else slot.index
        node = nodes.of[slot.leaf][element[flat]]
        rows = np.arange(reach.shape[0])
        each = np.broadcast_to(node.reshape(site.beside_loops(place.shape)), site.y_shape).reshape(-1)
        hit = np.asarray(reach[rows, each]).reshape(site.y_shape)
        allowed[s] = hit.any(shared).reshape(-1)
    return allowed.reshape(-1, *place.shape)


def _jacobians(
    facts: Facts, layout: Layout, sites: Sequence[int], leaves: Sequence[Array], weights: Sequence[Array]
) -> tuple[Array, dict[int, Array]]:
    """A as (S, S, samples), and per site (S, …y): one pull of the whole step for each state scalar of a sample."""
    opened, states = OpenStep(facts.step, facts.sites, frozenset()), facts.step.states_of(leaves)
    group_leaves = [i for i in differentiable(facts) if i in layout.group.leaves]

    def run(h: dict[int, Array], deltas: dict[int, Array]) -> dict[int, Array]:
        outs, _ = opened(leaves, deltas, weights, states=h)
        return {i: outs[i] for i in group_leaves}

    _, pull = jax.vjp(run, {i: states[i] for i in group_leaves}, opened.no_deltas(sites))
    probes = [layout.probe(s) for s in range(layout.size)]
    stacked = {i: jnp.stack([jnp.asarray(p[i], layout.avals[i].dtype) for p in probes]) for i in group_leaves}

    def one(cotangents: dict[int, Array]) -> tuple[Array, dict[int, Array]]:
        h_bar, d_bar = pull(cotangents)
        return jnp.stack([v.reshape(-1) for v in layout.read(h_bar)]), d_bar

    return mapped(one, stacked)


def _advance(
    facts: Facts, k: Reached, influence: Array, across: Array, fresh: Array, data: Sequence[Array],
    fixed: tuple[Array, ...],
) -> Array:  # fmt: skip
    """One step of one relation: Σ_b A[index_a, index_b] J_b + u ⊗ F, for every a."""
    site = facts.sites[k.relation.site]
    real, steep = jnp.real(influence).dtype, is_steep(facts)

    def term(total: Array, xs: tuple[Array, Array]) -> tuple[Array, None]:
        b, old = xs
        gain = k.take(across, b).astype(real)
        return total + times(jax.vmap(lambda g: site_math.spread(site, fixed, g))(gain), old[None], steep), None

    moved, _ = lax.scan(term, jnp.zeros_like(influence), (jnp.asarray(k.index), influence))
    at = np.maximum(k.index, 0).reshape(k.index.shape[0], *site.beside_loops(k.index.shape[1:]))
    chosen = jnp.take_along_axis(fresh, jnp.asarray(at), 0)
    chosen = jnp.where((k.index >= 0).reshape(at.shape), chosen, 0).astype(influence.dtype)
    new = jax.vmap(lambda c: site_math.outer(site, fixed, [u[None] for u in data], c[None]))(chosen)
    return moved + new.astype(influence.dtype)


def snap(n: int, *, credit: str = "step") -> Rule:
    """SnAp-n: the influence on whatever a weight reaches within n steps; exact where that is everything.

    - `n`: the number of steps.
    - `credit`: "state" is the published definition for an update at every step; see `d_rtrl`.

    >>> print(snap(2))
    snap(n=2)
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ArgumentError(
            f"`snap` takes a whole number of steps, at least 1, got {short(n)}. SnAp-0 is `tbptt` with windows of "
            "one step."
        )
    n, on_state = int(n), check_credit("snap", credit)
    if n == 1:
        if on_state:
            return state_rule("snap", {"n": 1}, _own_position_on_state, own_share, own_elements, facts_for=in_series)
        return Rule("snap", whole_transport, own_position, {"n": 1}, facts_for=in_series)
    transport = partial(reaching_transport, n=n)
    if on_state:

        def near(facts: Facts, param: int) -> Elements:
            return nearby_elements(facts, facts.live_sites_of(param), n)

        on_all = partial(_on_all_states, transport)
        return state_rule("snap", {"n": n}, on_all, partial(_carried_within, n=n), near)
    return Rule("snap", transport, partial(_within, n=n), {"n": n})


def _own_position_on_state(
    facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None
) -> Transport[PositionTrace]:
    plan = whole_plan(facts, sites, trace_dtype)
    return state_credit(plan, by_position_transport(plan), facts)


def _on_all_states(
    transport: Callable[..., Transport[Any]], facts: Facts, sites: frozenset[int] | None,
    trace_dtype: DTypeLike | None,
) -> Transport[Any]:  # fmt: skip
    """An influence on states of all positions of a sample: the loss is taken in all new states at once."""
    traced = sorted({r.site for r in find_samples(facts).relations if sites is None or r.site in sites})
    if not traced:
        return transport(facts, sites, trace_dtype)
    return state_credit_of_all(facts, traced, transport(facts, sites, trace_dtype))


def _within(facts: Facts, param: int, n: int) -> Verdict:
    plain = _carried_within(facts, param, n)
    if plain.kind in (Kind.EXACT, Kind.UNUSED):
        return plain
    sites = facts.live_sites_of(param)
    return with_least_window(facts, param, plain, nearby_elements(facts, sites, n))


def _carried_within(facts: Facts, param: int, n: int) -> Verdict:
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    sites = [j for j in facts.live_sites_of(param) if facts.remembers(OpNode(j))]
    needed = max(steps_to_fill(facts, j) for j in sites)
    if needed > n:
        names = ", ".join(dict.fromkeys(facts.sites[j].label for j in sites if steps_to_fill(facts, j) > n))
        if not any(reach_of(facts, j, n).nnz for j in sites):
            return Verdict(
                Kind.TRUNCATED, f"{names} reaches no position in {n} steps; `snap({needed})` would carry all of it"
            )
        more = f"{names} reaches more than that, all of it in {needed}: `snap({needed})` would be exact"
        return Verdict(Kind.APPROXIMATE, f"the influence on positions reached in {n} steps is carried; {more}")
    if facts.nonlinear:
        return Verdict(Kind.APPROXIMATE, f"all that it reaches is carried; {words_of(facts, facts.nonlinear[0])}")
    return Verdict(
        Kind.EXACT, f"all that it ever reaches, it reaches in {needed} step{'s' * (needed > 1)}, and {n} are carried"
    )
