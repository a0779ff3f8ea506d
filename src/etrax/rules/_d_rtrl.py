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
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..analysis import Facts
from ..engine import (
    Block,
    Gather,
    Probes,
    Transport,
    WindowData,
    act,
    by_site,
    carried_relations,
    gather_of,
    multiply,
    plan_probes,
    site_math,
    slot_count,
    trace_dtype_of,
    untraced_leaves,
    wide_dtype,
    widened,
)
from ._rule import Rule
from ._verdicts import diagonal


def diagonal_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None, probes: Probes | None = None
) -> Transport:
    """D-RTRL: the trace of a relation is S arrays of its op family's trace shape. `probes` may read other blocks.

    By default S leaves out states that follow from others; `probes` decide for themselves.
    """
    relations = carried_relations(facts, sites) if probes is None else probes.relations
    probes = plan_probes(facts, relations, reduced=True) if probes is None else probes
    gathers = [
        gather_of(r.places, facts.groups[r.group].varshape, facts.groups[r.group].num_positions) for r in relations
    ]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in relations]
    shapes = [site_math.trace_shape(facts.sites[r.site]) for r in relations]
    widths = [probes.layouts[r.group].size for r in relations]

    def init() -> list[tuple[Any, ...]]:
        return [tuple(jnp.zeros(s, d) for _ in range(n)) for s, d, n in zip(shapes, dtypes, widths, strict=True)]

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        g = probes.fold(g, window.ends[0])
        for r, gather, entries in zip(relations, gathers, trace, strict=True):
            site = facts.sites[r.site]
            signal = probes.layouts[r.group].read({i: g[i] for i in facts.groups[r.group].leaves})
            for entry, s in zip(entries, signal, strict=True):
                term = site_math.apply(site, window.fixed[r.site], entry, gather(s).astype(wide_dtype(entry.dtype)))
                out[r.site] = out[r.site] + term if r.site in out else term
        return out

    def move(trace: Any, window: WindowData) -> Any:
        if not relations:
            return trace
        kinds = [wide_dtype(d) for d in dtypes]  # narrow traces are stored so, and computed with as others
        whole, suffixes = suffix_products(probes, gathers, kinds, window.records, window.after)
        moved = []
        for k, (r, gather, entries) in enumerate(zip(relations, gathers, trace, strict=True)):
            site, fixed = facts.sites[r.site], window.fixed[r.site]
            if site.rule.moved is not None and not site.loops:
                at = [[None if p is None else gather(p) for p in row] for row in whole[r.group]]
                moved.append(site.rule.moved(site.call, fixed, at, entries, window.data(r.site), suffixes[k]))
                continue
            carried = [
                [None if p is None else site_math.spread(site, fixed, gather(p)) for p in row] for row in whole[r.group]
            ]
            kept = act(carried, entries)
            data = window.data(r.site)
            new = []
            for old, entry, c in zip(kept, entries, suffixes[k], strict=True):
                fresh = site_math.outer(site, fixed, [widened(u, c.dtype) for u in data], c)
                new.append((fresh if old is None else old + fresh).astype(entry.dtype))
            moved.append(tuple(new))
        return moved

    nbytes = sum(
        int(np.prod(s, dtype=np.int64)) * d.itemsize * n for s, d, n in zip(shapes, dtypes, widths, strict=True)
    )
    return Transport(
        init,
        probes if relations else None,
        credit,
        move,
        nbytes,
        parts=lambda trace: by_site([r.site for r in relations], trace),
    )


def diagonal_bytes(facts: Facts, trace_dtype: Any = None) -> int:
    """Size of the traces that D-RTRL would keep."""
    total = 0
    for r in carried_relations(facts):
        shape = site_math.trace_shape(facts.sites[r.site])
        total += (
            int(np.prod(shape, dtype=np.int64))
            * trace_dtype_of(facts, r, trace_dtype).itemsize
            * slot_count(facts, facts.groups[r.group], untraced_leaves(facts, r.group))
        )
    return total


def suffix_products(
    probes: Probes, gathers: Sequence[Gather], dtypes: Sequence[Any], records: Any, zero: Any = 0.0
) -> tuple[list[Block], list[list[Any]]]:
    """P per group, and c_k per relation and slot, stacked over k; made of `zero`, so not before it is known."""
    blocks, rows = records
    closed = [_closure(layout.links) for layout in probes.layouts]

    def eye(g: int) -> Block:
        layout = probes.layouts[g]
        kind = np.result_type(*(_real(layout.avals[i].dtype) for i in layout.group.leaves))
        one, none = jnp.ones(layout.shape, kind) + jnp.asarray(zero, kind), jnp.zeros(layout.shape, kind)
        n = layout.size
        return [[(one if s == t else none) if closed[g][s, t] else None for t in range(n)] for s in range(n)]

    def body(suffix: list[Block], step: Any) -> tuple[list[Block], list[list[Any]]]:
        d, f = step
        out = []
        for r, gather, dtype, row in zip(probes.relations, gathers, dtypes, f, strict=True):
            site = probes.facts.sites[r.site]
            at = [
                [None if q is None else site_math.beside_loops(site, gather(q)) for q in line]
                for line in suffix[r.group]
            ]
            found = act(at, row)
            out.append([jnp.zeros_like(row[0], dtype) if c is None else c.astype(dtype) for c in found])
        new = [_fitted(multiply(q, d[g]), q) for g, q in enumerate(suffix)]
        return new, out

    return lax.scan(body, [eye(g) for g in range(len(probes.layouts))], (blocks, rows), reverse=True)


def _fitted(product: Block, like: Block) -> Block:
    """A product in the shape and types of another block, so that a loop can carry it."""
    return [
        [
            None if b is None else jnp.zeros_like(b) if a is None else a.astype(b.dtype)
            for a, b in zip(p, q, strict=True)
        ]
        for p, q in zip(product, like, strict=True)
    ]


def _real(dtype: Any) -> Any:
    """The real type of the coordinates of a state, at least float32."""
    return (
        np.dtype(np.float64)
        if np.dtype(dtype) in (np.dtype(np.complex128), np.dtype(np.float64))
        else np.dtype(np.float32)
    )


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
    return Rule("d_rtrl", diagonal_transport, diagonal, diagonal_bytes)
