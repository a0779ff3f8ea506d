"""Unbiased online recurrent optimisation: a random rank-one estimate of the influence matrix.

    dh/dθ ≈ h̃ θ̃ᵀ        h̃ ← ρ_0 A h̃ + ρ_1 ν        θ̃ ← θ̃ / ρ_0 + (νᵀ C) / ρ_1

with random signs ν. The estimate equals RTRL's matrix on average, for any model, at B·(H + |θ|) numbers; single
estimates are noisy, so it wants small learning rates. Within a window the gradient is exact: longer windows have
less noise.

Once per window and sample by sample, with A = ∂h_K/∂h_0, C = ∂h_K/∂w, one sign for every state scalar, and

    ρ_0² = |θ̃| / |A h̃|        ρ_1² = |νᵀ C| / |ν|

E[ν νᵀ] = I makes E[h̃ θ̃ᵀ] = A h̃ θ̃ᵀ + C; the ρ even out the two sizes, which keeps the variance low. νᵀ C is one
pull-back of the window; A h̃ is the transpose of that linear map at h̃, so derivative rules that allow reverse mode
only will do (docs/mathematics.md, 6).

Tallec and Ollivier, "Unbiased online recurrent optimization", arXiv:1702.05043, 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_key
from .._compat import common_dtype
from ..analysis import Facts, Group, Relation
from ..engine import (
    Transport,
    WindowData,
    add_to,
    by_site,
    bytes_of,
    find_samples,
    fixed_examples,
    site_math,
    trace_dtype_of,
)
from ..ops import ALIGNED
from ._rule import Rule
from ._verdicts import Kind, Verdict, unless_trivial


class RankOne(NamedTuple):
    """h̃ by hidden leaf, θ̃ by site, and the data of the key for the next signs.

    θ̃ has samples first; that of an elementwise weight has the shape of its op, each element of which is of one sample.
    """

    back: dict[int, Any]
    theta: dict[int, Any]
    key: Any


def rank_one_transport(
    facts: Facts, key: Any, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """UORO, sample by sample."""
    samples = find_samples(facts)
    relations = {r.site: r for r in samples.relations if sites is None or r.site in sites}
    groups = [g for g in samples.groups if any(r.group == g.index for r in relations.values())]
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    kind = jax.random.key_impl(key) if typed else None
    data = jax.random.key_data(key) if typed else key
    count = {j: samples.groups[r.group].num_positions for j, r in relations.items()}
    aligned = {j: r.places for j, r in relations.items() if facts.sites[j].rule is ALIGNED}
    shapes = {j: s if j in aligned else (count[j], *s) for j, r in relations.items() for s in [_weight_shape(facts, r)]}

    by = _BySample(aligned, shapes)

    def init() -> RankOne:
        back = {i: jnp.zeros(a.shape, common_dtype(a.dtype, jnp.float32)) for g in groups for i, a in _avals(facts, g)}
        theta = {j: jnp.zeros(shapes[j], trace_dtype_of(facts, r, trace_dtype)) for j, r in relations.items()}
        return RankOne(back, theta, jnp.asarray(data))

    def credit(trace: RankOne, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        out: dict[int, Any] = {}
        for group in groups:
            along = _by_sample(group, {i: jnp.real(g[i] * trace.back[i]) for i in group.leaves})
            for j, r in relations.items():
                if r.group == group.index:
                    scaled = by.beside(j, along).astype(jnp.real(trace.theta[j]).dtype) * trace.theta[j]
                    add_to(out, j, scaled if j in aligned else scaled.sum(0))
        return out

    def move(trace: RankOne, window: WindowData) -> RankOne:
        if not groups:
            return trace
        now, later = jax.random.split(jax.random.wrap_key_data(trace.key, impl=kind))
        window = window._replace(pull=_at_zero(facts, window.pull)) if facts.nonlinear else window
        ahead = _push(window, trace.back, {i: a.dtype for g in groups for i, a in _avals(facts, g)})
        signs = _signs(now, trace.back)
        _, deltas = window.pull({i: jnp.conj(s).astype(facts.states[i].aval.dtype) for i, s in signs.items()})
        fresh = {
            j: _per_sample(facts, r, count[j], deltas[j], window).astype(trace.theta[j].dtype)
            for j, r in relations.items()
        }
        back, theta = dict(trace.back), dict(trace.theta)
        for g in groups:
            own = [j for j, r in relations.items() if r.group == g.index]
            keep = _balance(_norm(g, ahead), by.norm(theta, own, g.num_positions))
            new = _balance(_norm(g, signs), by.norm(fresh, own, g.num_positions))
            for i in g.leaves:
                place = g.place_of(i)
                back[i] = (keep[0][place] * ahead[i] + new[0][place] * signs[i]).astype(back[i].dtype)
            for j in own:
                theta[j] = (by.beside(j, keep[1]) * theta[j] + by.beside(j, new[1]) * fresh[j]).astype(theta[j].dtype)
        return RankOne(back, theta, jax.random.key_data(later))

    return Transport(
        init,
        None,
        credit,
        move,
        bytes_of(init),
        learned=lambda trace: trace.key,
        renew=lambda fresh, key: fresh._replace(key=key),
        parts=lambda trace: by_site(trace.theta, trace.theta.values()),
    )


class _BySample(NamedTuple):
    """How θ̃ lies over samples: elementwise weights by the sample of each element, the others with samples first."""

    aligned: Mapping[int, np.ndarray]
    shapes: Mapping[int, tuple[int, ...]]

    def beside(self, j: int, a: Any) -> Any:
        """Numbers per sample, beside θ̃ of site j."""
        return a[self.aligned[j]] if j in self.aligned else a.reshape(-1, *[1] * (len(self.shapes[j]) - 1))

    def norm(self, theta: Mapping[int, Any], sites: Sequence[int], n: int) -> Any:
        """|θ̃| of each sample."""
        total = jnp.zeros(n)
        for j in sites:
            squares = (jnp.abs(theta[j]) ** 2).astype(total.dtype)
            here = j in self.aligned
            total = total.at[self.aligned[j]].add(squares) if here else total + squares.reshape(n, -1).sum(1)
        return jnp.sqrt(total)


def _avals(facts: Facts, group: Group) -> list[tuple[int, Any]]:
    return [(i, facts.states[i].aval) for i in group.leaves]


def _weight_shape(facts: Facts, relation: Relation) -> tuple[int, ...]:
    site = facts.sites[relation.site]
    fixed = fixed_examples(facts.step, facts.sites)[relation.site]
    trace = jax.ShapeDtypeStruct(site_math.trace_shape(site), site.call.out.dtype)
    signal = jax.ShapeDtypeStruct(site_math.output_shape(site), site.call.out.dtype)
    return jax.eval_shape(lambda t, g: site_math.apply(site, fixed, t, g), trace, signal).shape


def _at_zero(facts: Facts, pull: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative of a pull-back at cotangents of zero, a linear map."""

    def linear(cotangents: Mapping[int, Any]) -> Any:
        zero = {i: jnp.zeros(facts.states[i].aval.shape, facts.states[i].aval.dtype) for i in cotangents}
        return jax.jvp(pull, (zero,), (dict(cotangents),))[1]

    return linear


def _push(window: WindowData, tangents: Mapping[int, Any], dtypes: Mapping[int, Any]) -> dict[int, Any]:
    """A · tangents: the transpose of the pull-back from exit to entry."""
    moving = {i: t.astype(dtypes[i]) for i, t in tangents.items()}

    def back(cotangents: dict[int, Any]) -> dict[int, Any]:
        entry, _ = window.pull(cotangents)
        return {i: entry[i] for i in moving}

    return jax.linear_transpose(back, moving)(moving)[0]


def _signs(key: Any, like: Mapping[int, Any]) -> dict[int, Any]:
    """Independent signs; a complex state has one for each of its parts."""
    found = {}
    for n, (i, a) in enumerate(sorted(like.items())):
        real, imaginary = jax.random.rademacher(jax.random.fold_in(key, n), (2, *a.shape), jnp.real(a).dtype)
        found[i] = jax.lax.complex(real, imaginary) if jnp.iscomplexobj(a) else real
    return found


def _per_sample(facts: Facts, relation: Relation, count: int, delta: Any, window: WindowData) -> Any:
    """The weight's gradient of each sample apart, (samples, …); of an elementwise weight as it is."""
    site, j = facts.sites[relation.site], relation.site
    if site.rule is ALIGNED:
        return site_math.grad(site, window.fixed[j], window.data(j), delta)
    if count == 1:
        return site_math.grad(site, window.fixed[j], window.data(j), delta)[None]
    outer = site_math.outer(site, window.fixed[j], window.data(j), delta)
    own = jnp.asarray(
        relation.places == np.arange(count).reshape(-1, *[1] * relation.places.ndim), jnp.real(outer).dtype
    )
    return jax.vmap(lambda g: site_math.apply(site, window.fixed[j], outer, g.astype(outer.dtype)))(own)


def _by_sample(group: Group, values: Mapping[int, Any]) -> Any:
    """Σ over the states of each sample."""
    total = jnp.zeros(group.num_positions)
    for i in group.leaves:
        total = total.at[group.place_of(i)].add(values[i].astype(total.dtype))
    return total


def _norm(group: Group, values: Mapping[int, Any]) -> Any:
    return jnp.sqrt(_by_sample(group, {i: jnp.abs(values[i]) ** 2 for i in group.leaves}))


def _balance(state: Any, theta: Any) -> tuple[Any, Any]:
    """(ρ, 1/ρ) per sample; both zero where the product is."""
    some = (state > 0) & (theta > 0)
    rho = jnp.sqrt(jnp.where(some, theta, 1) / jnp.where(some, state, 1))
    return jnp.where(some, rho, 0), jnp.where(some, 1 / rho, 0)


def uoro(key: Any) -> Rule:
    """UORO. `key` (a number or a `jax.random` key) starts the signs; each learner state carries its own from there.

    >>> print(uoro(0))
    uoro()
    """
    key = check_key("`uoro`", key)

    def transport(facts: Facts, sites: frozenset[int] | None = None, trace_dtype: Any = None) -> Transport:
        return rank_one_transport(facts, key, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        trivial = unless_trivial(facts, param)
        if trivial is not None:
            return trivial
        if facts.nonlinear:
            return Verdict(Kind.APPROXIMATE, f"a random estimate of rank one is carried; {facts.nonlinear[0].text}")
        return Verdict(
            Kind.APPROXIMATE, "a random estimate of rank one is carried: it equals BPTT on average, not each time"
        )

    return Rule("uoro", transport, verdict)
