"""D-RTRL: real-time recurrent learning with the per-position blocks of the cut step.

    ε_t[i, o, :] = D_t[pos(o)] ε_{t-1}[i, o, :] + u_t[i] F_t[o, :]

D = ∂h'[p]/∂h[p] with the weight ops that mix positions cut, F = ∂h'/∂y. Exact where the cut recurrence is the whole
recurrence: diagonal state-space models, LIF and ALIF layers without recurrent weights, leaky readouts.

Over a window of K steps nothing is moved step by step. With P the product of all blocks and c_k the suffix products,

    P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k        ε_K = P ε_0 + Σ_k u_k ⊗ c_k

the trace is read and written once, and the sum is one product per weight op (docs/mathematics.md, 3).

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from ..analysis import Facts
from ..engine import (
    Block,
    EachStep,
    Plan,
    Probes,
    Transport,
    WindowData,
    add_to,
    block_product,
    block_times,
    by_site,
    carried_relations,
    plan_of,
    plan_probes,
    site_math,
    wide_dtype,
    widened,
)
from ._rule import Rule
from ._verdicts import by_position_verdict


class DiagonalTrace(NamedTuple):
    """Per relation, one array of its op family's trace shape for each of the S state scalars of a position."""

    entries: list[tuple[Array, ...]]


def diagonal_transport(
    facts: Facts,
    sites: frozenset[int] | None = None,
    trace_dtype: DTypeLike | None = None,
    probes: Probes | None = None,
) -> Transport[DiagonalTrace]:
    """D-RTRL. `probes` may read other blocks.

    By default S leaves out states that follow from others; `probes` decide for themselves.
    """
    if probes is None:
        probes = plan_probes(facts, carried_relations(facts, sites), reduced=True)
    plan = plan_of(facts, probes, trace_dtype)
    relations = plan.relations

    def init() -> DiagonalTrace:
        return DiagonalTrace([tuple(plan.zeros(k) for _ in plan.layout(k).slots) for k in range(len(relations))])

    def credit(trace: DiagonalTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        g = probes.without_derived(g, window.entry_states)
        for k, (r, entries) in enumerate(zip(relations, trace.entries, strict=True)):
            signal = plan.layout(k).read({i: g[i] for i in facts.groups[r.group].leaves})
            for entry, s in zip(entries, signal, strict=True):
                s = plan.gathers[k](s).astype(wide_dtype(entry.dtype))
                add_to(out, r.site, plan.apply(k, entry, s, window.fixed))
        return out

    def move(trace: DiagonalTrace, window: WindowData) -> DiagonalTrace:
        if not relations:
            return trace
        whole, suffixes = suffix_products(plan, window)
        return DiagonalTrace(
            [
                _moved(plan, k, entries, whole[r.group], suffixes[k], window)
                for k, (r, entries) in enumerate(zip(relations, trace.entries, strict=True))
            ]
        )

    return Transport(
        init,
        credit,
        move,
        EachStep(probes) if relations else EachStep(),
        parts=lambda trace: by_site([r.site for r in relations], trace.entries),
    )


def _moved(
    plan: Plan, k: int, entries: tuple[Array, ...], whole: Block, suffixes: Sequence[Array], window: WindowData
) -> tuple[Array, ...]:
    """P ε_0 + Σ_k u_k ⊗ c_k for one relation."""
    r, gather = plan.relations[k], plan.gathers[k]
    site, fixed, data = plan.facts.sites[r.site], window.fixed[r.site], window.data(r.site)
    if site.rule.moved is not None and not site.loops:
        at = [[None if p is None else gather(p) for p in row] for row in whole]
        return site.rule.moved(site.call, fixed, at, entries, data, suffixes)
    at = [[None if p is None else plan.at_trace(k, p, window.fixed) for p in row] for row in whole]
    new = []
    for old, entry, c in zip(block_times(at, entries), entries, suffixes, strict=True):
        fresh = site_math.outer(site, fixed, [widened(u, c.dtype) for u in data], c)
        new.append((fresh if old is None else old + fresh).astype(entry.dtype))
    return tuple(new)


def suffix_products(plan: Plan, window: WindowData) -> tuple[list[Block], list[list[Array]]]:
    """P per group, and c_k per relation and state scalar, stacked over k. A narrow trace is moved by wide products."""
    layouts = plan.probes.layouts
    dtypes = [wide_dtype(d) for d in plan.dtypes]
    closed = [_closure(layout.links) for layout in layouts]

    def eye(g: int) -> Block:
        layout = layouts[g]
        kind = np.result_type(*(_real(layout.avals[i].dtype) for i in layout.group.leaves))
        one = jnp.ones(layout.shape, kind) + jnp.asarray(window.zero_after_credit, kind)
        none, n = jnp.zeros(layout.shape, kind), layout.size
        return [[(one if s == t else none) if closed[g][s, t] else None for t in range(n)] for s in range(n)]

    def body(suffix: list[Block], step: tuple[list[Block], list[list[Array]]]) -> tuple[list[Block], list[list[Array]]]:
        d, f = step
        out = []
        for k, (r, row) in enumerate(zip(plan.relations, f, strict=True)):
            site = plan.facts.sites[r.site]
            at = [
                [None if q is None else site_math.beside_loops(site, plan.gathers[k](q)) for q in line]
                for line in suffix[r.group]
            ]
            found = block_times(at, row)
            out.append([jnp.zeros_like(row[0], dtypes[k]) if c is None else c.astype(dtypes[k]) for c in found])
        new = [_fitted(block_product(q, d[g]), q) for g, q in enumerate(suffix)]
        return new, out

    return lax.scan(body, [eye(g) for g in range(len(layouts))], window.records, reverse=True)


def _fitted(product: Block, like: Block) -> Block:
    """A product in the shape and types of another block, so that a loop can carry it."""
    return [
        [
            None if b is None else jnp.zeros_like(b) if a is None else a.astype(b.dtype)
            for a, b in zip(p, q, strict=True)
        ]
        for p, q in zip(product, like, strict=True)
    ]


def _real(dtype: np.dtype) -> np.dtype:
    """The real type of the coordinates of a state, at least float32."""
    return np.dtype(np.float64 if dtype.name in ("float64", "complex128") else np.float32)


def _closure(links: np.ndarray) -> np.ndarray:
    """Reflexive transitive closure."""
    n = links.shape[0]
    closed = links | np.eye(n, dtype=bool)
    for _ in range(max(n.bit_length(), 1)):
        closed = (closed.astype(np.int64) @ closed.astype(np.int64)) > 0
    return closed


def d_rtrl() -> Rule:
    """Diagonal RTRL: traces of size B·|θ|·S, exact where no weight op feeds a state back across positions.

    >>> print(d_rtrl())
    d_rtrl()
    """
    return Rule("d_rtrl", diagonal_transport, by_position_verdict)
