"""SnAp: the sparse n-step approximation of RTRL.

    J_t = M_n ∘ (A_t J_{t-1} + C_t),   A = ∂h'/∂h,   C = ∂h'/∂θ   of the step as it is, with nothing cut

M_n keeps the influence of a weight on the positions that it reaches in n steps. With n = 1 that is its own position, as
in `ostl`; with n large enough to reach everything it is RTRL. Larger n than 1 move the trace step by step. Of all
states of a sample each element of y keeps those it may reach: `index[a, e]` is the a-th state scalar kept for element e
(docs/mathematics.md, 6).

Menick, Elsen, Evci, Osindero, Simonyan and Graves, "Practical real time recurrent learning with a sparse
approximation", ICLR, 2021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._arguments import short
from .._errors import ArgumentError
from ..analysis import Facts, OpenStep, OpNode, Relation, find_nodes, reach_of, steps_to_fill
from ..engine import (
    Layout,
    Transport,
    WindowData,
    add_to,
    by_site,
    bytes_of,
    differentiable,
    find_samples,
    layout_of,
    site_math,
    trace_dtype_of,
)
from ..ir import Role, mapped
from ._ostl import _own_position, whole_transport
from ._rtrl import dense_transport
from ._rule import Rule
from ._verdicts import Kind, Verdict, unless_trivial


@dataclass(frozen=True, eq=False)
class Kept:
    """A relation with the state scalars that each element of y keeps, (m, *y); -1 where there are fewer."""

    relation: Relation
    index: np.ndarray
    dtype: Any

    def take(self, a: Any, b: np.ndarray | None = None) -> Any:
        """a[index, sample], or a[index, b, sample], per element of y; zero where nothing is kept."""
        at, place = np.maximum(self.index, 0), self.relation.places
        if b is None:
            return jnp.where(self.index >= 0, a[at, place], 0)
        return jnp.where((self.index >= 0) & (b >= 0), a[at, jnp.maximum(b, 0), place], 0)


def reaching_transport(facts: Facts, n: int, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
    """SnAp-n: the trace of a relation is (m, …trace shape), m the most state scalars that an element of y reaches."""
    samples = find_samples(facts)
    layouts = [layout_of(facts, g) for g in samples.groups]
    relations = [r for r in samples.relations if sites is None or r.site in sites]
    kept = [Kept(r, _index(facts, layouts[r.group], r, n), trace_dtype_of(facts, r, trace_dtype)) for r in relations]
    if kept and all(k.index.shape[0] == layouts[k.relation.group].size and (k.index >= 0).all() for k in kept):
        return dense_transport(facts, sites, trace_dtype)
    kept = [k for k in kept if k.index.shape[0]]
    used = sorted({k.relation.group for k in kept})

    def init() -> list[Any]:
        return [
            jnp.zeros((k.index.shape[0], *site_math.trace_shape(facts.sites[k.relation.site])), k.dtype) for k in kept
        ]

    def record(leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> list[Any]:
        own = [{k.relation.site for k in kept if k.relation.group == g} for g in used]
        return [_jacobians(facts, layouts[g], sorted(ops), leaves, weights) for g, ops in zip(used, own, strict=True)]

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for k, influence in zip(kept, trace, strict=True):
            j, layout = k.relation.site, layouts[k.relation.group]
            read = jnp.stack([v.reshape(-1) for v in layout.read({i: g[i] for i in layout.group.leaves})])
            signal = k.take(read).astype(influence.dtype)
            each = jax.vmap(lambda e, s, j=j: site_math.apply(facts.sites[j], window.fixed[j], e, s))(influence, signal)
            add_to(out, j, each.sum(0))
        return out

    def move(trace: Any, window: WindowData) -> Any:
        data = {k.relation.site: window.data(k.relation.site) for k in kept}

        def step(trace: list[Any], xs: Any) -> tuple[list[Any], None]:
            found, now = xs
            moved = []
            for k, influence in zip(kept, trace, strict=True):
                j, (across, fresh) = k.relation.site, found[used.index(k.relation.group)]
                moved.append(_advance(facts, k, influence, across, fresh[j], now[j], window.fixed[j]))
            return moved, None

        return lax.scan(step, trace, (window.records, data))[0] if kept else trace

    return Transport(
        init,
        record if kept else None,
        credit,
        move,
        bytes_of(init),
        parts=lambda trace: by_site([k.relation.site for k in kept], trace),
    )


def _index(facts: Facts, layout: Layout, relation: Relation, n: int) -> np.ndarray:
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
    order = np.argsort(~allowed, axis=0, kind="stable")[: int(allowed.sum(0).max(initial=0))]
    index = np.where(np.take_along_axis(allowed, order, 0), order, -1)
    return index.reshape(-1, *place.shape)


def _jacobians(
    facts: Facts, layout: Layout, sites: Sequence[int], leaves: Sequence[Any], weights: Sequence[Any]
) -> tuple[Any, dict[int, Any]]:
    """A as (S, S, samples), and per site (S, …y): one pull of the whole step for each state scalar of a sample."""
    leaves, weights = lax.stop_gradient((list(leaves), list(weights)))
    opened, first = OpenStep(facts.step, facts.sites, frozenset()), len(facts.step.select(Role.PARAM))
    own = [i for i in differentiable(facts) if i in layout.group.leaves]
    deltas = {j: jnp.zeros(facts.sites[j].y_shape, facts.sites[j].call.out.dtype) for j in sites}

    def run(h: dict[int, Any], deltas: dict[int, Any]) -> dict[int, Any]:
        values = list(leaves)
        for i, value in h.items():
            values[first + i] = value
        outs, _ = opened(values, [deltas.get(j) for j in range(len(facts.sites))], weights)
        return {i: outs[i] for i in own}

    _, pull = jax.vjp(run, {i: leaves[first + i] for i in own}, deltas)
    probes = [layout.probe(s) for s in range(layout.size)]
    stacked = {i: jnp.stack([jnp.asarray(p[i], layout.avals[i].dtype) for p in probes]) for i in own}

    def one(cotangents: dict[int, Any]) -> tuple[Any, dict[int, Any]]:
        h_bar, d_bar = pull(cotangents)
        return jnp.stack([v.reshape(-1) for v in layout.read(h_bar)]), d_bar

    return mapped(one, stacked)


def _advance(facts: Facts, k: Kept, influence: Any, across: Any, fresh: Any, data: Any, fixed: Any) -> Any:
    """One step of one relation: Σ_b A[index_a, index_b] J_b + u ⊗ F, for every a."""
    site = facts.sites[k.relation.site]
    real = jnp.real(influence).dtype

    def term(total: Any, xs: Any) -> tuple[Any, None]:
        b, old = xs
        gain = k.take(across, b).astype(real)
        return total + jax.vmap(lambda g: site_math.spread(site, fixed, g))(gain) * old[None], None

    kept, _ = lax.scan(term, jnp.zeros_like(influence), (jnp.asarray(k.index), influence))
    at = np.maximum(k.index, 0).reshape(k.index.shape[0], *site.beside_loops(k.index.shape[1:]))
    chosen = jnp.take_along_axis(fresh, jnp.asarray(at), 0)
    chosen = jnp.where((k.index >= 0).reshape(at.shape), chosen, 0).astype(influence.dtype)
    new = jax.vmap(lambda c: site_math.outer(site, fixed, [u[None] for u in data], c[None]))(chosen)
    return kept + new.astype(influence.dtype)


def snap(n: int) -> Rule:
    """SnAp-n: influence on what a weight reaches in n steps; exact where that is everything.

    >>> print(snap(2))
    snap(n=2)
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ArgumentError(
            f"`snap` takes a whole number of steps, at least 1, got {short(n)}. SnAp-0 is `tbptt` with windows of "
            "one step."
        )
    n = int(n)
    if n == 1:
        return Rule("snap", whole_transport, _own_position, options={"n": 1})

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return reaching_transport(facts, n, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return _within(facts, param, n)

    return Rule("snap", transport, verdict, options={"n": n})


def _within(facts: Facts, param: int, n: int) -> Verdict:
    trivial = unless_trivial(facts, param)
    if trivial is not None:
        return trivial
    sites = [j for j in facts.sites_of(param) if OpNode(j) in facts.live and facts.remembers(OpNode(j))]
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
        return Verdict(Kind.APPROXIMATE, f"all that it reaches is carried; {facts.nonlinear[0].text}")
    return Verdict(
        Kind.EXACT, f"all that it ever reaches, it reaches in {needed} step{'s' * (needed > 1)}, and {n} are carried"
    )
