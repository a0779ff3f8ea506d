"""A window's products of blocks, and the one move of a trace that they make.

    P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k        ε_K = P ε_0 + Σ_k u_k ⊗ c_k

No trace is touched step by step: P and c_k are as large as states and outputs of ops (docs/mathematics.md, 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import _site_math as site_math
from ._blocks import Block, block_product, block_times
from ._plan import Plan, wide_dtype, widened
from ._transport import WindowData


def suffix_products(plan: Plan, window: WindowData) -> tuple[list[Block], list[list[Array]]]:
    """P per group, and c_k per relation and state scalar, stacked over k. A narrow trace is moved by wide products."""
    layouts = plan.probes.layouts
    dtypes = [wide_dtype(d) for d in plan.dtypes]
    closed = [_closure(layout.links) for layout in layouts]

    def eye(g: int) -> Block:
        layout = layouts[g]
        kind = np.result_type(*(real_dtype(layout.avals[i].dtype) for i in layout.group.leaves))
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


def real_dtype(dtype: np.dtype) -> np.dtype:
    """The real type of the coordinates of a state, at least float32."""
    return np.dtype(np.float64 if dtype.name in ("float64", "complex128") else np.float32)


def _closure(links: np.ndarray) -> np.ndarray:
    """Reflexive transitive _closure."""
    n = links.shape[0]
    closed = links | np.eye(n, dtype=bool)
    for _ in range(max(n.bit_length(), 1)):
        closed = (closed.astype(np.int64) @ closed.astype(np.int64)) > 0
    return closed


def moved_trace(
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
