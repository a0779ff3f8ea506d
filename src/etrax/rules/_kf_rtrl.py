"""Kronecker-factored RTRL: a random estimate of the influence matrix, as a product of data and state influence.

    dh/dW ≈ û ⊗ A        û ← c_0 ρ_0 û + c_1 ρ_1 u        A ← (c_0 / ρ_0) D A + (c_1 / ρ_1) F

for a weight op y = W u, with D = ∂h'/∂h, F = ∂h'/∂y of the step as it is, and random signs c. What the estimate was,
and what a step adds to it, are such products. Their sum is none, but E[c_0 c_1] = 0: the mean of the product of sums is
the sum of the products, and the estimate equals RTRL's matrix on average. It takes B·(I + H·O) numbers in place of
B·H·I·O; A has rank H where UORO's estimate has rank one, so there is less noise, and more work.

Once per window of K steps and sample by sample, there is one sign for what was, and one for each step,

    û_K = c_0 ρ_0 û_0 + Σ_k c_k ρ_k u_k        A_K = (c_0 / ρ_0) (∂h_K/∂h_0) A_0 + Σ_k (c_k / ρ_k) ∂h_K/∂y_k

with ρ² = |second factor| / |first factor| of each product, which makes the variance smallest. Elementwise weights and
ops in inner loops are not such products: theirs is the whole matrix, as in `rtrl`, which for an elementwise weight is
no larger than A (docs/mathematics.md, 6).

Mujika, Meier and Steger, "Approximating real-time recurrent learning with random Kronecker factors", NeurIPS, 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_key
from ..compiler.analysis import Facts, OpNode, Relation, find_samples, is_steep
from ..compiler.opened import WeightSite, fixed_operands
from ..compiler.ops import ALIGNED
from ..runtime import (
    Gather,
    Layout,
    Persistent,
    Transport,
    WindowData,
    by_site,
    gather_of,
    lanes_of_samples,
    layout_of,
    parts_of_data,
    site_math,
    times,
    trace_dtype_of,
    zero_where,
)
from ._partition import combined_transport
from ._rtrl import axis_of, carry_over, dense_transport, pull_all
from ._rule import Rule
from ._uoro import balance, next_keys, numbers_of, random_signs, root, square
from ._verdicts import Kind, Verdict, trivial_verdict, whole_influence_verdict
from ._words import words_of


class KroneckerTrace(NamedTuple):
    """û by site, of the form of its data; A by site, (S, …y), S state scalars of a sample; numbers of the next key."""

    data: dict[int, Array]
    back: dict[int, Array]
    key: Array


class SampleOf(NamedTuple):
    """The sample of each element of the data, and of y; the number of samples."""

    of_data: np.ndarray
    of_outputs: np.ndarray
    num_samples: int


@dataclass(frozen=True, eq=False)
class _Product:
    """One weight op, and the states that it reaches."""

    site: WeightSite
    relation: Relation
    layout: Layout
    dtype: np.dtype
    fixed: Sequence[Array | None]
    steep: bool

    @cached_property
    def gather(self) -> Gather:
        return gather_of(self.relation.places, self.layout.group.varshape, self.layout.group.num_positions)

    @cached_property
    def samples(self) -> SampleOf:
        """All is one sample where data are shared by several, or where the op has indices among its weights."""
        places, count = self.relation.places, self.layout.group.num_positions
        of_data = parts_of_data(self.site, self.fixed, places)
        if of_data is None:
            shape = jax.eval_shape(partial(site_math.feature_zeros, self.site, self.dtype)).shape
            return SampleOf(np.zeros(shape, np.int64), np.zeros_like(places), 1)
        return SampleOf(of_data, places, count)

    def cleared(self, facts: Facts, data: Array, back: Array, flags: Array) -> tuple[Array, Array]:
        """û and A with zero in the lanes that start again, if their samples have factors of their own."""
        of_data, of_outputs, n = self.samples
        of_sample = lanes_of_samples(facts, self.layout.group, np.arange(n))
        if flags.ndim == 0 or of_sample is None or n < self.layout.group.num_positions:
            return data, back
        return zero_where(flags, of_sample[of_data], data), zero_where(flags, of_sample[of_outputs], back)

    def credit(self, data: Array, back: Array, g: Mapping[int, Array], fixed: Sequence[Array]) -> Array:
        """Σ_s g_s A_s at y, and its product with û."""
        signal = jnp.stack(self.layout.read({i: g[i] for i in self.layout.group.leaves}))
        at = jax.vmap(self.gather)(signal).astype(back.dtype)
        return site_math.feature_grad(self.site, fixed, data, times(at, back, self.steep).sum(0))

    def move(self, data: Array, back: Array, across: Array, fresh: Array, u: Array, key: Array) -> tuple[Array, Array]:
        """û and A at the exit, given ∂h_K/∂h_0, ∂h_K/∂y_k as (S, K, …y), and the data u_k of all steps."""
        count = self.layout.group.num_positions
        axis = None if count == 1 else axis_of(self.relation.places, count)
        first = jnp.concatenate([data[None], u.astype(self.dtype)])
        second = jnp.moveaxis(fresh.astype(self.dtype), 1, 0)
        second = jnp.concatenate([carry_over(across, back, axis, self.steep).astype(self.dtype)[None], second])
        of_data, of_outputs, n = self.samples
        norms = _norms(first, of_data, n), _norms(second.swapaxes(0, 1), of_outputs, n)
        signs = random_signs(key, (first.shape[0], n), norms[0].dtype)
        one, two = (signs * rho for rho in balance(*norms))
        moved = (first * one[:, of_data].astype(first.dtype)).sum(0)
        return moved, (second * two[:, of_outputs][:, None].astype(second.dtype)).sum(0)


def _norms(a: Array, samples: np.ndarray, count: int) -> Array:
    """|a| by term and sample, (terms, samples), of an array (…, terms, …elements)."""
    lead = a.ndim - samples.ndim
    squares = square(a).sum(tuple(range(lead - 1)))
    flat = squares.reshape(squares.shape[0], -1)
    return root(jnp.zeros((flat.shape[0], count), flat.dtype).at[:, samples.reshape(-1)].add(flat))


@dataclass(frozen=True, eq=False)
class _Estimate:
    """The sites whose influence is estimated, each a product of its own."""

    facts: Facts
    products: Mapping[int, _Product]
    key: Array

    def init(self) -> KroneckerTrace:
        data = {j: site_math.feature_zeros(p.site, p.dtype) for j, p in self.products.items()}
        back = {
            j: jnp.zeros((p.layout.size, *site_math.output_shape(p.site)), p.dtype) for j, p in self.products.items()
        }
        return KroneckerTrace(data, back, numbers_of(self.key))

    def credit(self, trace: KroneckerTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        factors = {j: self._factors(j, trace, window, first=True) for j in self.products}
        return {j: p.credit(*factors[j], g, window.fixed[j]) for j, p in self.products.items()}

    def _factors(self, j: int, trace: KroneckerTrace, window: WindowData, first: bool) -> tuple[Array, Array]:
        """û and A of a site, without lanes that start again before the first step, or before any."""
        both = trace.data[j], trace.back[j]
        if window.resets is None:
            return both
        return self.products[j].cleared(self.facts, *both, window.resets[0] if first else window.resets.any(0))

    def move(self, trace: KroneckerTrace, window: WindowData) -> KroneckerTrace:
        now, later = next_keys(self.key, trace.key)
        pulled: dict[int, tuple[Array, dict[int, Array]]] = {}
        data, back = {}, {}
        for j, p in self.products.items():
            g = p.relation.group
            across, fresh = pulled[g] if g in pulled else pulled.setdefault(g, pull_all(p.layout, window))
            u = site_math.features(p.site, window.fixed[j], window.data(j))
            key = jax.random.fold_in(now, j)
            data[j], back[j] = p.move(*self._factors(j, trace, window, first=False), across, fresh[j], u, key)
        return KroneckerTrace(data, back, numbers_of(later))


def kronecker_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, key: Array
) -> Transport[list[Any]]:
    """KF-RTRL where a weight meets data in a product, RTRL elsewhere."""
    samples, constants = find_samples(facts), fixed_operands(facts.step, facts.sites)
    layouts = [layout_of(facts, g) for g in samples.groups]
    traced_sites = frozenset(range(len(facts.sites)) if sites is None else sites)
    products = {
        r.site: _Product(
            facts.sites[r.site],
            r,
            layouts[r.group],
            trace_dtype_of(facts, r, trace_dtype),
            constants[r.site],
            is_steep(facts),
        )
        for r in samples.relations
        if r.site in traced_sites and _is_product(facts.sites[r.site])
    }
    kronecker = _Estimate(facts, products, key)
    estimate = Transport(
        kronecker.init,
        kronecker.credit,
        kronecker.move,
        persistent=Persistent(lambda trace: trace.key, lambda fresh, key: fresh._replace(key=key)),
        parts=lambda trace: by_site([*trace.data, *trace.back], [*trace.data.values(), *trace.back.values()]),
        moves_in_pieces=False,
    )
    return combined_transport([estimate, dense_transport(facts, traced_sites - products.keys(), trace_dtype)])


def _is_product(site: WeightSite) -> bool:
    """Whether the op is linear in one data operand, in each of its runs: then ∂y/∂w · c is data ⊗ c."""
    return site.rule is not ALIGNED and not site.loops and len(site.rule.varying(site.call)) == 1


def kf_rtrl(key: int | Array) -> Rule:
    """Kronecker-factored RTRL: a random product of data and state influence. Unbiased, and less noisy than `uoro`.

    - `key`: a number or a `jax.random` key, from which random signs are drawn; each learner state continues from its
      own.

    >>> print(kf_rtrl(0))
    kf_rtrl()
    """
    key = check_key("`kf_rtrl`", key)
    return Rule("kf_rtrl", partial(kronecker_transport, key=key), _on_average, {"key": key})


def _on_average(facts: Facts, param: int) -> Verdict:
    trivial = trivial_verdict(facts, param)
    sites = [j for j in facts.live_sites_of(param) if facts.remembers(OpNode(j))]
    if trivial is not None or not any(_is_product(facts.sites[j]) for j in sites):
        return whole_influence_verdict(facts, param)
    what = "a random product of data and state influence is carried"
    if facts.nonlinear:
        return Verdict(Kind.APPROXIMATE, f"{what}; {words_of(facts, facts.nonlinear[0])}")
    return Verdict(Kind.APPROXIMATE, f"{what}: it equals BPTT on average, not each time")
