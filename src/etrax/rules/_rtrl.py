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

import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from ..compiler.analysis import Facts, Relation, find_samples, is_steep
from ..compiler.ir import mapped
from ..compiler.opened import fixed_examples
from ..compiler.ops import sum_unrolled
from ..runtime import (
    Layout,
    Transport,
    WindowData,
    add_to,
    by_site,
    cleared_influence,
    finite_unless,
    gather_of,
    layout_of,
    site_math,
    times,
    trace_dtype_of,
)
from ._rule import Rule
from ._verdicts import whole_influence_verdict


class DenseTrace(NamedTuple):
    """Per relation, (S, …trace shape), S the number of state scalars of a sample."""

    influence: list[Array]


def dense_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
) -> Transport[DenseTrace]:
    """RTRL. Where each state scalar lies is found on use only: the size of the trace is asked for large models, too."""
    samples = find_samples(facts)
    relations = [r for r in samples.relations if sites is None or r.site in sites]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in relations]

    @cache
    def layout(group: int) -> Layout:
        return layout_of(facts, samples.groups[group])

    @cache
    def axis(k: int) -> int | np.ndarray | None:
        r = relations[k]
        return sample_axis(facts, r, fixed_examples(facts.step, facts.sites)[r.site])

    def init() -> DenseTrace:
        widths = [layout(r.group).size for r in relations]
        shapes = [site_math.trace_shape(facts.sites[r.site]) for r in relations]
        return DenseTrace([jnp.zeros((n, *s), d) for n, s, d in zip(widths, shapes, dtypes, strict=True)])

    def credit(trace: DenseTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        for k, (r, influence) in enumerate(zip(relations, trace.influence, strict=True)):
            group, site, fixed = samples.groups[r.group], facts.sites[r.site], window.fixed[r.site]
            if window.resets is not None:
                influence = cleared_influence(facts, group, r, window, window.resets[0], influence)
            gather = gather_of(r.places, group.varshape, group.num_positions)
            signal = jnp.stack(layout(r.group).read({i: g[i] for i in group.leaves}))
            signal = jax.vmap(gather)(signal).astype(influence.dtype)
            if is_steep(facts):
                signal = jax.vmap(partial(site_math.met, site, fixed))(influence, signal)
            elif axis(k) is None:
                # All of y acts on one sample, whose cotangents meet the matrix as one product with a vector.
                bars = jnp.stack(layout(r.group).read({i: g[i] for i in group.leaves})).reshape(-1)
                total = jnp.tensordot(bars.astype(influence.dtype), influence, 1)
                add_to(out, r.site, site_math.apply(site, fixed, total, jnp.ones_like(signal[0])))
                continue
            each = jax.vmap(partial(site_math.apply, site, fixed))(influence, signal)
            add_to(out, r.site, sum_unrolled(each))
        return out

    def move(trace: DenseTrace, window: WindowData) -> DenseTrace:
        moved = list(trace.influence)
        if window.resets is not None:
            flags, groups = window.resets.any(0), samples.groups
            pairs = zip(relations, moved, strict=True)
            moved = [cleared_influence(facts, groups[r.group], r, window, flags, a) for r, a in pairs]
        for g in sorted({r.group for r in relations}):
            across, fresh = pull_all(layout(g), window)
            for k, r in enumerate(relations):
                if r.group != g:
                    continue
                outer = partial(site_math.outer, facts.sites[r.site], window.fixed[r.site], window.data(r.site))
                new = jax.vmap(outer)(fresh[r.site])
                moved[k] = (carry_over(across, moved[k], axis(k), is_steep(facts)) + new).astype(dtypes[k])
        return DenseTrace(moved)

    return Transport(init, credit, move, parts=lambda trace: by_site([r.site for r in relations], trace.influence))


def pull_all(layout: Layout, window: WindowData) -> tuple[Array, dict[int, Array]]:
    """A as (S, S, positions), and per site the cotangents of its output for each state scalar at the exit."""
    return pull_probes(layout, [layout.probe(s) for s in range(layout.size)], window)


def pull_probes(
    layout: Layout, probes: Sequence[Mapping[int, np.ndarray]], window: WindowData
) -> tuple[Array, dict[int, Array]]:
    """Cotangents at the exit, pulled back: real values (probes, S, positions) at the entry, and those of sites."""
    stacked = {i: jnp.stack([jnp.asarray(p[i], layout.avals[i].dtype) for p in probes]) for i in layout.group.leaves}
    return pull_stacked(layout, stacked, window)


def pull_stacked(layout: Layout, stacked: Mapping[int, Array], window: WindowData) -> tuple[Array, dict[int, Array]]:
    """`pull_probes` of cotangents that are stacked by leaf."""
    pull = window.pull_states()

    def one(cotangents: Mapping[int, Array]) -> tuple[Array, dict[int, Array]]:
        entry, deltas = pull(cotangents)
        return jnp.stack([v.reshape(-1) for v in layout.read(entry)]), deltas

    return mapped(one, stacked)


def carry_over(across: Array, influence: Array, axis: int | np.ndarray | None, steep: bool) -> Array:
    """Σ_t A[s, t, p] J[t, … at p …]; in a steep step without what is not finite for states that owe nothing."""
    if axis is None:  # one sample
        # One sample: every column of J meets the same block.
        gains = across[:, :, 0]
        if steep:
            gains = finite_unless(gains, (influence != 0).reshape(influence.shape[0], -1).any(1))
        return jnp.einsum("st,t...->s...", gains, influence)
    if isinstance(axis, np.ndarray):

        def term(total: Array, xs: tuple[Array, Array]) -> tuple[Array, None]:
            gain, old = xs
            return total + times(gain[:, axis].astype(total.dtype), old[None], steep), None

        # A sum over the old states in a loop: all terms at once would be S times the influence matrix.
        start = jnp.zeros((across.shape[0], *influence.shape[1:]), influence.dtype)
        return lax.scan(term, start, (jnp.moveaxis(across, 1, 0), influence))[0]
    moved = jnp.moveaxis(influence, axis + 1, 1)
    apart = moved.reshape(moved.shape[0], across.shape[2], -1, *moved.shape[2:])
    if steep:
        across = finite_unless(across, (apart != 0).reshape(*apart.shape[:2], -1).any(2))
    # Rows of a sample stay whole on their way to its product and back. An einsum would multiply from the other side,
    # for which XLA transposes the matrix element by element.
    rows = jnp.moveaxis(apart, 1, 0)
    products = jnp.moveaxis(across, 2, 0) @ rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:]))
    out = jnp.moveaxis(products.reshape(*products.shape[:2], *rows.shape[2:]), 0, 1)
    return jnp.moveaxis(out.reshape(-1, *moved.shape[1:]), 1, axis + 1)


def sample_axis(facts: Facts, relation: Relation, fixed: Sequence[Array | np.ndarray]) -> int | np.ndarray | None:
    """The axis of the trace that runs over samples; None if there is one sample only.

    Where samples do not lie along one axis (rows of a table that the samples share by columns): the sample of each
    element of the trace.
    """
    positions = int(relation.places.max()) + 1
    site = facts.sites[relation.site]
    if positions <= 1:
        return None
    with jax.ensure_compile_time_eval():
        # The sample of each element of y is spread over the trace by the op itself, on numbers in place of values.
        spread = np.asarray(site_math.spread(site, fixed, jnp.asarray(relation.places)))
    return axis_of(np.broadcast_to(spread, site_math.trace_shape(site)), positions)


def axis_of(samples: np.ndarray, count: int) -> int | np.ndarray:
    """The axis along which an array's elements are of one sample after the other; else the samples as they are."""
    for axis, n in enumerate(samples.shape):
        shape = [1] * samples.ndim
        shape[axis] = n
        if n % count:
            continue
        index = np.arange(n) // (n // count)  # a sample may stand at several places in a row
        if np.array_equal(samples, np.broadcast_to(index.reshape(shape), samples.shape)):
            return axis
    return samples


def rtrl() -> Rule:
    """Real-time recurrent learning: every path is carried, whatever the model. Takes B·H·|θ| numbers.

    >>> print(rtrl())
    rtrl()
    """
    return Rule("rtrl", dense_transport, whole_influence_verdict)
