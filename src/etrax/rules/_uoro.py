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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_key
from .._compat import common_dtype
from ..compiler.analysis import Facts, Group, Relation, find_samples, is_steep, lane_of_elements
from ..compiler.ir import linear_transpose
from ..compiler.opened import fixed_examples
from ..compiler.ops import ALIGNED
from ..runtime import (
    Persistent,
    PullBack,
    Transport,
    WindowData,
    add_to,
    by_site,
    lanes_of_samples,
    site_math,
    times,
    trace_dtype_of,
    with_masked_products,
    zero_where,
)
from ._rule import Rule
from ._verdicts import Kind, Verdict, trivial_verdict
from ._words import words_of

A = TypeVar("A", Array, np.ndarray)


class RankOne(NamedTuple):
    """h̃ by hidden leaf, θ̃ by site, and the data of the key for the next signs.

    θ̃ has samples first; that of an elementwise weight has the shape of its op, each element of which is of one sample.
    """

    back: dict[int, Array]
    theta: dict[int, Array]
    key: Array


@dataclass(frozen=True, eq=False)
class _Estimate:
    """UORO, sample by sample: for each site its relation to a group of samples, and how its θ̃ lies over samples.

    The elements of θ̃ of an elementwise weight belong to the samples in `aligned`; that of another has samples first.
    """

    facts: Facts
    key: Array
    relations: Mapping[int, Relation]
    groups: Sequence[Group]
    dtypes: Mapping[int, np.dtype]
    shapes: Mapping[int, tuple[int, ...]]
    aligned: Mapping[int, np.ndarray]

    def init(self) -> RankOne:
        states = {i: self.facts.states[i].aval for g in self.groups for i in g.leaves}
        back = {i: jnp.zeros(a.shape, common_dtype(a.dtype, jnp.float32)) for i, a in states.items()}
        theta = {j: jnp.zeros(shape, self.dtypes[j]) for j, shape in self.shapes.items()}
        return RankOne(back, theta, numbers_of(self.key))

    def credit(self, trace: RankOne, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        if window.resets is not None:
            trace = self._cleared(trace, window.resets[0])
        for group in self.groups:
            steep = is_steep(self.facts)
            along = _by_sample(group, {i: jnp.real(times(g[i], trace.back[i], steep)) for i in group.leaves})
            for j in self._sites(group):
                scaled = self._beside(j, along).astype(jnp.real(trace.theta[j]).dtype) * trace.theta[j]
                add_to(out, j, scaled if j in self.aligned else scaled.sum(0))
        return out

    def move(self, trace: RankOne, window: WindowData) -> RankOne:
        if not self.groups:
            return trace
        if window.resets is not None:
            trace = self._cleared(trace, window.resets.any(0))
        now, later = next_keys(self.key, trace.key)
        dtypes = {i: self.facts.states[i].aval.dtype for i in trace.back}
        pull, pushed = self._push(window.pull, {i: t.astype(dtypes[i]) for i, t in trace.back.items()})
        signs = _signs(now, trace.back)
        if is_steep(self.facts):
            signs = self._where_reached(pull, signs, window)
        # A cotangent of a complex state is conjugate in JAX.
        _, deltas = pull({i: jnp.conj(s).astype(dtypes[i]) for i, s in signs.items()})
        fresh = {j: self._per_sample(r, deltas[j], window) for j, r in self.relations.items()}
        back, theta = dict(trace.back), dict(trace.theta)
        for g in self.groups:
            sites = self._sites(g)
            # ρ makes both factors of a product equally long, which makes its variance smallest.
            keep = balance(_norm(g, pushed), self._norm(theta, sites, g.num_positions))
            new = balance(_norm(g, signs), self._norm(fresh, sites, g.num_positions))
            for i in g.leaves:
                place = g.place_of(i)
                back[i] = (keep[0][place] * pushed[i] + new[0][place] * signs[i]).astype(back[i].dtype)
            for j in sites:
                moved = self._beside(j, keep[1]) * theta[j] + self._beside(j, new[1]) * fresh[j]
                theta[j] = moved.astype(theta[j].dtype)
        return RankOne(back, theta, numbers_of(later))

    def _cleared(self, trace: RankOne, flags: Array) -> RankOne:
        """s̃ and θ̃ with zero where something starts again."""
        by_lane, theta = flags.ndim > 0, dict(trace.theta)
        back = {i: zero_where(flags, lane_of_elements(a.shape) if by_lane else None, a) for i, a in trace.back.items()}
        for group in self.groups if by_lane else ():
            of_sample = lanes_of_samples(self.facts, group, np.arange(group.num_positions))
            if of_sample is not None:
                theta |= {j: zero_where(flags, self._beside(j, of_sample), theta[j]) for j in self._sites(group)}
        return trace._replace(back=back, theta=theta)

    def _push(self, pull: PullBack, tangents: dict[int, Array]) -> tuple[PullBack, dict[int, Array]]:
        """A linear pull-back, and A · tangents by its transpose."""
        linear = _at_zero(self.facts, pull) if self.facts.nonlinear else pull
        try:
            if is_steep(self.facts):
                return linear, with_masked_products(partial(_transposed, linear), tangents)
            return linear, _transposed(linear, tangents)
        except (ValueError, NotImplementedError):  # a callback in a derivative rule: it can be run, and no more
            return pull, _by_rows(pull, tangents)

    def _where_reached(self, pull: PullBack, signs: dict[int, Array], window: WindowData) -> dict[int, Array]:
        """Signs of the states that an op of the window reaches, and zero for others, whose share of C is zero.

        Their slopes may be infinite later: a state that was set to zero must not have an estimate of chance. Ops are
        pushed forward by random numbers, which do not cancel.
        """
        tangents = {}
        for j in self.relations:
            site = self.facts.sites[j]
            some = jax.random.uniform(jax.random.key(j), (window.steps, *site.y_shape), minval=1.0, maxval=2.0)
            tangents[j] = some.astype(site.call.out.dtype)
        try:
            like = {i: s.astype(self.facts.states[i].aval.dtype) for i, s in signs.items()}
            reached = with_masked_products(partial(_pushed_from_ops, pull, like), tangents)
        except (ValueError, NotImplementedError):  # as in `_push`
            return signs
        return {i: jnp.where(reached[i] != 0, s, 0) for i, s in signs.items()}

    def _sites(self, group: Group) -> list[int]:
        return [j for j, r in self.relations.items() if r.group == group.index]

    def _beside(self, j: int, a: A) -> A:
        """Numbers per sample, beside θ̃ of site j."""
        return a[self.aligned[j]] if j in self.aligned else a.reshape(-1, *[1] * (len(self.shapes[j]) - 1))

    def _norm(self, theta: Mapping[int, Array], sites: Sequence[int], n: int) -> Array:
        """|θ̃| of each sample."""
        total = jnp.zeros(n)
        for j in sites:
            squares = square(theta[j]).astype(total.dtype)
            here = j in self.aligned
            total = total.at[self.aligned[j]].add(squares) if here else total + squares.reshape(n, -1).sum(1)
        return root(total)

    def _per_sample(self, relation: Relation, delta: Array, window: WindowData) -> Array:
        """The weight's gradient of each sample apart, (samples, …); of an elementwise weight as it is."""
        j = relation.site
        site, fixed, data = self.facts.sites[j], window.fixed[j], window.data(j)
        if j in self.aligned:
            return site_math.grad(site, fixed, data, delta).astype(self.dtypes[j])
        count = self.shapes[j][0]
        if count == 1:
            return site_math.grad(site, fixed, data, delta)[None].astype(self.dtypes[j])
        outer = site_math.outer(site, fixed, data, delta)
        # For each sample, ones at its elements of y: applied to the summed outer product, they pick the sample's share.
        by_sample = jnp.asarray(
            relation.places == np.arange(count).reshape(-1, *[1] * relation.places.ndim), jnp.real(outer).dtype
        )

        def of_sample(flags: Array) -> Array:
            # Chosen, not multiplied: a NaN of one sample is not that of others.
            alone = jnp.where(site_math.spread(site, fixed, flags) != 0, outer, 0)
            return site_math.apply(site, fixed, alone, flags.astype(outer.dtype))

        each = jax.vmap(of_sample)(by_sample)
        return each.astype(self.dtypes[j])


def rank_one_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, key: Array
) -> Transport[RankOne]:
    samples = find_samples(facts)
    relations = {r.site: r for r in samples.relations if sites is None or r.site in sites}
    groups = [g for g in samples.groups if any(r.group == g.index for r in relations.values())]
    aligned = {j: r.places for j, r in relations.items() if facts.sites[j].rule is ALIGNED}
    shapes = {j: _weight_shape(facts, j) for j in relations}
    shapes |= {j: (samples.groups[relations[j].group].num_positions, *s) for j, s in shapes.items() if j not in aligned}
    dtypes = {j: trace_dtype_of(facts, r, trace_dtype) for j, r in relations.items()}
    uoro = _Estimate(facts, key, relations, groups, dtypes, shapes, aligned)
    return Transport(
        uoro.init,
        uoro.credit,
        uoro.move,
        persistent=Persistent(lambda trace: trace.key, lambda fresh, key: fresh._replace(key=key)),
        parts=lambda trace: by_site(trace.theta, trace.theta.values()),
        moves_in_pieces=False,
    )


def _is_typed(key: Array) -> bool:
    return bool(jnp.issubdtype(key.dtype, jax.dtypes.prng_key))


def numbers_of(key: Array) -> Array:
    """A random key as numbers, which a trace can hold."""
    return jnp.asarray(jax.random.key_data(key) if _is_typed(key) else key)


def next_keys(like: Array, numbers: Array) -> Array:
    """Two keys of the kind of another one: for now, and for later."""
    kind = jax.random.key_impl(like) if _is_typed(like) else None
    return jax.random.split(jax.random.wrap_key_data(numbers, impl=kind))


def _weight_shape(facts: Facts, j: int) -> tuple[int, ...]:
    site, fixed = facts.sites[j], fixed_examples(facts.step, facts.sites)[j]
    trace = jax.ShapeDtypeStruct(site_math.trace_shape(site), site.call.out.dtype)
    signal = jax.ShapeDtypeStruct(site_math.output_shape(site), site.call.out.dtype)
    return jax.eval_shape(lambda t, g: site_math.apply(site, fixed, t, g), trace, signal).shape


def _at_zero(facts: Facts, pull: PullBack) -> PullBack:
    """The derivative of a pull-back at cotangents of zero, a linear map."""

    def linear(cotangents: Mapping[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
        # A derivative rule of the user's may make the pull-back non-linear; its tangent at zero is linear, and can be
        # transposed.
        zero = {i: jnp.zeros(facts.states[i].aval.shape, facts.states[i].aval.dtype) for i in cotangents}
        return jax.jvp(pull, (zero,), (dict(cotangents),))[1]

    return linear


def _by_rows(pull: PullBack, tangents: dict[int, Array]) -> dict[int, Array]:
    """A · tangents from a row of A for every state scalar, each by running the pull-back.

    JAX pairs complex numbers by Re(a · b): the row of an imaginary part is that of i, and counts as its negative.
    """

    def product(i: int, one: Array) -> Array:
        cotangents = {k: jnp.zeros_like(t) for k, t in tangents.items()} | {i: one.reshape(tangents[i].shape)}
        entry, _ = pull(cotangents)
        return sum((jnp.real(times(entry[k], t, steep=True)).sum() for k, t in tangents.items()), jnp.zeros(()))

    out = {}
    for i, t in tangents.items():
        rows = partial(jax.lax.map, partial(product, i))
        units = jnp.eye(t.size, dtype=t.dtype)
        products = jax.lax.complex(rows(units), -rows(1j * units)) if jnp.iscomplexobj(t) else rows(units)
        out[i] = products.reshape(t.shape).astype(t.dtype)
    return out


def _transposed(pull: PullBack, tangents: dict[int, Array]) -> dict[int, Array]:
    """A · tangents: the transpose of the pull-back from exit to entry."""

    def back(cotangents: dict[int, Array]) -> dict[int, Array]:
        entry, _ = pull(cotangents)
        return {i: entry[i] for i in tangents}

    return linear_transpose(back, tangents)(tangents)[0]


def _pushed_from_ops(pull: PullBack, like: Mapping[int, Array], tangents: dict[int, Array]) -> dict[int, Array]:
    """C · tangents, of the types of states: the transpose of the pull-back from exit to ops."""

    def back(cotangents: dict[int, Array]) -> dict[int, Array]:
        _, deltas = pull(cotangents)
        return {j: deltas[j] for j in tangents}

    return linear_transpose(back, dict(like))(tangents)[0]


def _signs(key: Array, like: Mapping[int, Array]) -> dict[int, Array]:
    """Independent signs; a complex state has one for each of its parts."""
    signs = {}
    for n, (i, a) in enumerate(sorted(like.items())):
        real, imaginary = random_signs(jax.random.fold_in(key, n), (2, *a.shape), jnp.real(a).dtype)
        signs[i] = jax.lax.complex(real, imaginary) if jnp.iscomplexobj(a) else real
    return signs


def random_signs(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Independent signs, from bits: those of `jax.random.rademacher` differ with and without float64."""
    return jnp.where(jax.random.bits(key, shape, jnp.uint8) < 128, -1, 1).astype(dtype)


def _by_sample(group: Group, values: Mapping[int, Array]) -> Array:
    """Σ over the states of each sample."""
    total = jnp.zeros(group.num_positions)
    for i in group.leaves:
        total = total.at[group.place_of(i)].add(values[i].astype(total.dtype))
    return total


def _norm(group: Group, values: Mapping[int, Array]) -> Array:
    return root(_by_sample(group, {i: square(values[i]) for i in group.leaves}))


def square(a: Array) -> Array:
    """|a|², with a derivative at zero too."""
    return jnp.real(a) ** 2 + jnp.imag(a) ** 2 if jnp.iscomplexobj(a) else a**2


def root(squares: Array) -> Array:
    """A square root whose derivative at zero, where a trace begins, counts as zero."""
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def balance(state: Array, theta: Array) -> tuple[Array, Array]:
    """(ρ, 1/ρ) per sample; both zero where the product is."""
    some = (state > 0) & (theta > 0)
    rho = jnp.sqrt(jnp.where(some, theta, 1) / jnp.where(some, state, 1))
    return jnp.where(some, rho, 0), jnp.where(some, 1 / rho, 0)


def uoro(key: int | Array) -> Rule:
    """Unbiased online recurrent optimisation: a random rank-one estimate of all influence.

    - `key`: a number or a `jax.random` key, from which random signs are drawn; each learner state continues from its
      own.

    >>> print(uoro(0))
    uoro()
    """
    key = check_key("`uoro`", key)
    return Rule("uoro", partial(rank_one_transport, key=key), _on_average, {"key": key})


def _on_average(facts: Facts, param: int) -> Verdict:
    trivial = trivial_verdict(facts, param)
    if trivial is not None:
        return trivial
    if facts.nonlinear:
        why = words_of(facts, facts.nonlinear[0])
        return Verdict(Kind.APPROXIMATE, f"a random estimate of rank one is carried; {why}")
    return Verdict(
        Kind.APPROXIMATE, "a random estimate of rank one is carried: it equals BPTT on average, not each time"
    )
