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
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from ..compiler.analysis import Facts, Group, Relation, find_samples, is_steep
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

# Numbers in the trace of an op up to which it is looked up how samples lie in it.
LARGEST = 2**24


class DenseTrace(NamedTuple):
    """Per relation, (S, …trace shape), S the number of state scalars of a sample.

    Where the trace of the op has its samples first, they stand before S, so that a sample's matrix lies in one piece.
    """

    influence: list[Array]


@dataclass(frozen=True, eq=False)
class _Dense:
    """The matrix of each relation between a weight op and the states of a sample."""

    facts: Facts
    relations: Sequence[Relation]
    dtypes: Sequence[np.dtype]

    @cached_property
    def groups(self) -> Sequence[Group]:
        return find_samples(self.facts).groups

    @cached_property
    def layouts(self) -> dict[int, Layout]:
        return {g: layout_of(self.facts, self.groups[g]) for g in {r.group for r in self.relations}}

    @cached_property
    def axes(self) -> list[int | np.ndarray | None]:
        """Per relation, the axis of samples; on use only, since the size of a trace is asked for large models too."""
        fixed = fixed_examples(self.facts.step, self.facts.sites)
        return [sample_axis(self.facts, r, fixed[r.site]) for r in self.relations]

    @cached_property
    def samples_first(self) -> list[bool]:
        """Per relation, whether its matrices lie with the samples before the slots."""
        shapes = [site_math.trace_shape(self.facts.sites[r.site]) for r in self.relations]
        if sum(math.prod(shape) for shape in shapes) > LARGEST:
            return [False] * len(shapes)
        counts = [int(r.places.max()) + 1 for r in self.relations]
        return [isinstance(axis, int) and axis == 0 and shape[0] == count
                for axis, shape, count in zip(self.axes, shapes, counts, strict=True)]  # fmt: skip

    def exchanged(self, k: int, influence: Array) -> Array:
        """(S, …trace shape) as it lies in a trace, or what lies there as (S, …trace shape)."""
        return jnp.moveaxis(influence, 1, 0) if self.samples_first[k] else influence

    def init(self) -> DenseTrace:
        shapes = [
            (self.layouts[r.group].size, *site_math.trace_shape(self.facts.sites[r.site])) for r in self.relations
        ]
        lying = [(s[1], s[0], *s[2:]) if first else s for s, first in zip(shapes, self.samples_first, strict=True)]
        return DenseTrace([jnp.zeros(s, d) for s, d in zip(lying, self.dtypes, strict=True)])

    def cleared(self, k: int, influence: Array, window: WindowData, flags: Array) -> Array:
        """A matrix with zero for the samples that start again."""
        r, by_slot = self.relations[k], self.exchanged(k, influence)
        return self.exchanged(k, cleared_influence(self.facts, self.groups[r.group], r, window, flags, by_slot))

    def credit(self, trace: DenseTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        for k, (r, influence) in enumerate(zip(self.relations, trace.influence, strict=True)):
            if window.resets is not None:
                influence = self.cleared(k, influence, window, window.resets[0])
            bars = self.layouts[r.group].stack({i: g[i] for i in self.groups[r.group].leaves})
            add_to(out, r.site, self._met(k, bars.astype(influence.dtype), influence, window))
        return out

    def _met(self, k: int, bars: Array, influence: Array, window: WindowData) -> Array:
        """Σ_s bars[s] J[s], of the weight's shape."""
        r, axis = self.relations[k], self.axes[k]
        apply = partial(site_math.apply, self.facts.sites[r.site], window.fixed[r.site])
        if is_steep(self.facts) or isinstance(axis, np.ndarray):
            group, by_slot = self.groups[r.group], self.exchanged(k, influence)
            signals = jax.vmap(gather_of(r.places, group.varshape, group.num_positions))(bars)
            if is_steep(self.facts):
                masked = partial(site_math.met, self.facts.sites[r.site], window.fixed[r.site])
                signals = jax.vmap(masked)(by_slot, signals)
            return sum_unrolled(jax.vmap(apply)(by_slot, signals))
        # All that meets one cotangent is of its sample: products with vectors, and then nothing but the op's sum.
        bars = bars.reshape(bars.shape[0], -1)
        if self.samples_first[k]:
            met = jnp.einsum("sb,bs...->b...", bars, influence)
        elif axis is None:
            met = jnp.tensordot(bars[:, 0], influence, 1)
        else:
            samples = jnp.repeat(bars, influence.shape[axis + 1] // bars.shape[1], 1)
            met = jnp.einsum("sb,sb...->b...", samples, jnp.moveaxis(influence, axis + 1, 1))
            met = jnp.moveaxis(met, 0, axis)
        return apply(met, jnp.ones(r.places.shape, met.dtype))

    def move(self, trace: DenseTrace, window: WindowData) -> DenseTrace:
        moved, steep = list(trace.influence), is_steep(self.facts)
        if window.resets is not None:
            moved = [self.cleared(k, a, window, window.resets.any(0)) for k, a in enumerate(moved)]
        for g, layout in sorted(self.layouts.items()):
            across, fresh = pull_all(layout, window)
            # Moved after it was read, a matrix stays in its place.
            across = across + jnp.asarray(window.zero_after_credit, across.dtype)
            for k, r in enumerate(self.relations):
                if r.group != g:
                    continue
                outer = partial(site_math.outer, self.facts.sites[r.site], window.fixed[r.site], window.data(r.site))
                new = self.exchanged(k, jax.vmap(outer)(fresh[r.site]))
                carry = _carry_samples if self.samples_first[k] else partial(carry_over, axis=self.axes[k])
                moved[k] = (carry(across, moved[k], steep=steep) + new).astype(self.dtypes[k])
        return DenseTrace(moved)


def dense_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
) -> Transport[DenseTrace]:
    """RTRL, for the ops of some sites."""
    relations = [r for r in find_samples(facts).relations if sites is None or r.site in sites]
    dense = _Dense(facts, relations, [trace_dtype_of(facts, r, trace_dtype) for r in relations])
    numbers = [r.site for r in relations]
    return Transport(
        dense.init, dense.credit, dense.move,
        parts=lambda trace: by_site(numbers, trace.influence),
        samples_first=lambda: frozenset(j for j, first in zip(numbers, dense.samples_first, strict=True) if first),
    )  # fmt: skip


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
        return layout.stack(entry).reshape(layout.size, -1), deltas

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
    out = jnp.moveaxis(_carry_samples(across, jnp.moveaxis(apart, 1, 0), steep), 0, 1)
    return jnp.moveaxis(out.reshape(-1, *moved.shape[1:]), 1, axis + 1)


def _carry_samples(across: Array, influence: Array, steep: bool) -> Array:
    """`carry_over` for an influence (samples, S, …), each sample's rows by a product of its own."""
    rows = influence.reshape(*influence.shape[:2], math.prod(influence.shape[2:]))
    if steep:
        across = finite_unless(across, (rows != 0).any(2).T)
    # An einsum would multiply from the other side, for which XLA transposes the matrix element by element.
    products = jnp.moveaxis(across, 2, 0) @ rows
    return products.reshape(*products.shape[:2], *influence.shape[2:])


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
