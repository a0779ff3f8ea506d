"""Real-time recurrent learning: the whole influence matrix.

    J_t = (∂h_t/∂h_{t-1}) J_{t-1} + ∂h_t/∂θ

Exact for any model of any depth, at B·H·|θ| numbers. The matrix is moved once per window, sample by sample.

A and C come from reverse mode over the window, one pull per state scalar of a sample, all samples at once. Samples are
the connected components of everything the step does, so no Jacobian across samples is ever built
(docs/mathematics.md, 6).

Williams and Zipser, "A learning algorithm for continually running fully recurrent neural networks", Neural
Computation 1, 1989.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..analysis import Facts, OpNode, Relation, StateNode
from ..engine import (
    Layout,
    Transport,
    WindowData,
    by_site,
    find_samples,
    fixed_examples,
    gather_of,
    layout_of,
    site_math,
    slot_count,
    trace_dtype_of,
    wide_dtype,
)
from ..ir import mapped
from ._rule import Rule
from ._verdicts import complete


def dense_transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
    """RTRL: the trace of a relation is (S, …trace shape), S the number of state scalars of a sample."""
    samples = find_samples(facts)
    relations = [r for r in samples.relations if sites is None or r.site in sites]
    layouts = [layout_of(facts, g) for g in samples.groups]
    fixed_now = fixed_examples(facts.step, facts.sites)
    rows = [_sample_axis(facts, r, fixed_now[r.site]) for r in relations]
    gathers = [
        gather_of(r.places, samples.groups[r.group].varshape, samples.groups[r.group].num_positions) for r in relations
    ]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in relations]
    shapes = [(layouts[r.group].size, *site_math.trace_shape(facts.sites[r.site])) for r in relations]

    def init() -> list[Any]:
        return [jnp.zeros(s, d) for s, d in zip(shapes, dtypes, strict=True)]

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for r, gather, influence in zip(relations, gathers, trace, strict=True):
            signal = jnp.stack(layouts[r.group].read({i: g[i] for i in layouts[r.group].group.leaves}))

            def one(j: Any, s: Any, r: Relation = r, gather: Any = gather) -> Any:
                return site_math.apply(facts.sites[r.site], window.fixed[r.site], j, gather(s).astype(j.dtype))

            term = jax.vmap(one)(influence, signal).sum(0)
            out[r.site] = out[r.site] + term if r.site in out else term
        return out

    def move(trace: Any, window: WindowData) -> Any:
        moved: list[Any] = list(trace)
        for g in sorted({r.group for r in relations}):
            across, fresh = _pull_all(layouts[g], window)
            for k, r in enumerate(relations):
                if r.group != g:
                    continue
                site, data = facts.sites[r.site], window.data(r.site)
                new = jax.vmap(lambda c, s=site, d=data, j=r.site: site_math.outer(s, window.fixed[j], d, c))(
                    fresh[r.site]
                )
                moved[k] = (_carry(across, trace[k], rows[k]) + new).astype(dtypes[k])
        return moved

    nbytes = sum(int(np.prod(s, dtype=np.int64)) * d.itemsize for s, d in zip(shapes, dtypes, strict=True))
    return Transport(init, None, credit, move, nbytes, parts=lambda trace: by_site([r.site for r in relations], trace))


# Above so many elements the samples are not looked for: the first axis of the states is taken for the batch.
MANY = 1 << 18


def dense_bytes(facts: Facts, trace_dtype: Any = None) -> int:
    """Size of the influence matrices that RTRL would keep; an estimate where it is out of the question."""
    sites = [j for j in range(len(facts.sites)) if OpNode(j) in facts.live and facts.remembers(OpNode(j))]
    leaves = {n.index for edge in facts.edges.dep for n in edge if isinstance(n, StateNode)}
    states = sum(facts.states[i].aval.size for i in leaves)
    if states + sum(int(np.prod(facts.sites[j].y_shape, dtype=np.int64)) for j in sites) > MANY:
        shapes = [facts.states[i].aval.shape for i in leaves]
        batch = shapes[0][0] if all(len(s) > 1 and s[0] == shapes[0][0] for s in shapes) else 1
        widths = dict.fromkeys(sites, states // batch)
    else:
        samples = find_samples(facts)
        widths = {r.site: slot_count(facts, samples.groups[r.group]) for r in samples.relations}
    total = 0
    for j, width in widths.items():
        itemsize = np.dtype(wide_dtype(facts.sites[j].call.out.dtype, trace_dtype)).itemsize
        total += int(np.prod(site_math.trace_shape(facts.sites[j]), dtype=np.int64)) * itemsize * width
    return total


def _pull_all(layout: Layout, window: WindowData) -> tuple[Any, dict[int, Any]]:
    """A as (S, S, positions), and per site the cotangents of its output for each state scalar at the exit."""
    probes = [layout.probe(s) for s in range(layout.size)]
    stacked = {i: jnp.stack([jnp.asarray(p[i], layout.avals[i].dtype) for p in probes]) for i in layout.group.leaves}

    def one(cotangents: Mapping[int, Any]) -> tuple[Any, dict[int, Any]]:
        entry, deltas = window.pull(cotangents)
        return jnp.stack([v.reshape(-1) for v in layout.read(entry)]), deltas

    return mapped(one, stacked)


def _carry(across: Any, influence: Any, axis: int | np.ndarray | None) -> Any:
    """Σ_t A[s, t, p] J[t, … at p …]."""
    if axis is None:  # one sample
        return jnp.einsum("st,t...->s...", across[:, :, 0], influence)
    if isinstance(axis, np.ndarray):

        def term(total: Any, xs: Any) -> tuple[Any, None]:
            gain, old = xs
            return total + gain[:, axis].astype(total.dtype) * old, None

        return lax.scan(term, jnp.zeros_like(influence), (jnp.moveaxis(across, 1, 0), influence))[0]
    moved = jnp.moveaxis(influence, axis + 1, 1)
    apart = moved.reshape(moved.shape[0], across.shape[2], -1, *moved.shape[2:])
    out = jnp.einsum("stp,tp...->sp...", across, apart)
    return jnp.moveaxis(out.reshape(moved.shape), 1, axis + 1)


def _sample_axis(facts: Facts, relation: Relation, fixed: Any) -> int | np.ndarray | None:
    """The axis of the trace that runs over samples; None if there is one sample only.

    Where samples do not lie along one axis (rows of a table that the samples share by columns): the sample of each
    element of the trace.
    """
    positions = int(relation.places.max()) + 1
    site = facts.sites[relation.site]
    if positions <= 1:
        return None
    with jax.ensure_compile_time_eval():
        spread = np.asarray(site_math.spread(site, fixed, jnp.asarray(relation.places)))
    spread = np.broadcast_to(spread, site_math.trace_shape(site))
    for axis, n in enumerate(spread.shape):
        shape = [1] * spread.ndim
        shape[axis] = n
        if n % positions:
            continue
        index = np.arange(n) // (n // positions)  # a sample may stand at several places in a row
        if np.array_equal(spread, np.broadcast_to(index.reshape(shape), spread.shape)):
            return axis
    return spread


def rtrl() -> Rule:
    """Exact RTRL: every path is carried, whatever the model; memory B·H·|θ|.

    >>> print(rtrl())
    rtrl()
    """
    return Rule("rtrl", dense_transport, complete, dense_bytes)
