"""What transports by position share: relations, pulls that read D and F, the way from positions to elements of y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._compat import common_dtype
from ..compiler.analysis import NO_FAN_OUT, Facts, FanOut, Relation, is_steep, traced_relations
from ..compiler.opened import WeightSite
from . import _site_math as site_math
from ._layout import Gather, Layout, gather_of
from ._probes import Probes, plan_probes
from ._site_math import Operands
from ._transport import WindowData


@dataclass(frozen=True, eq=False)
class Plan:
    """Per relation: how positions are read at the elements of y, and the type of its trace."""

    facts: Facts
    relations: tuple[Relation, ...]
    probes: Probes
    gathers: tuple[Gather, ...]
    dtypes: tuple[np.dtype, ...]

    @cached_property
    def steep(self) -> bool:
        """Whether products with influences have to be masked (`_zeros.py`)."""
        return is_steep(self.facts)

    def layout(self, k: int) -> Layout:
        return self.probes.layouts[self.relations[k].group]

    def site(self, k: int) -> WeightSite:
        """The op of relation k, with its outputs repeated where they reach several positions."""
        r = self.relations[k]
        return self.facts.sites[r.site] if r.copies is None else r.copies.site

    def zeros(self, k: int) -> Array:
        """One state scalar's share of the trace of relation k."""
        return jnp.zeros(site_math.trace_shape(self.site(k)), self.dtypes[k])

    def signals(self, k: int, g: Mapping[int, Array]) -> list[Array]:
        """Cotangents of hidden leaves, per state scalar, at the elements of relation k's y."""
        layout = self.layout(k)
        found = layout.read({i: g[i] for i in layout.group.leaves})
        return [self.gathers[k](s).astype(self.dtypes[k]) for s in found]

    def at_trace(self, k: int, p: Array, entry: Array, fixed: Sequence[Operands]) -> Array:
        """Values per position that a trace of relation k meets, broadcastable to it."""
        at = self.met(k, entry, self.gathers[k](p), fixed)
        return site_math.spread(self.site(k), fixed[self.relations[k].site], at)

    def met(self, k: int, entry: Array, signal: Array, fixed: Sequence[Operands]) -> Array:
        """A signal at the elements of y, as a trace of relation k meets it: in a steep step, with 0 for 0 · ∞."""
        return site_math.met(self.site(k), fixed[self.relations[k].site], entry, signal) if self.steep else signal

    def apply(self, k: int, entry: Array, signal: Array, fixed: Sequence[Operands]) -> Array:
        """A trace against a signal at the elements of y, of the weight's shape."""
        r, signal = self.relations[k], self.met(k, entry, signal, fixed)
        return self.of_weight(k, site_math.apply(self.site(k), fixed[r.site], entry, signal))

    def of_weight(self, k: int, g: Array) -> Array:
        """A gradient of the weights of `site(k)`, as that of the op's own."""
        copies = self.relations[k].copies
        return g if copies is None else site_math.copies_added(copies, g)

    def outer(self, k: int, c: Array, window: WindowData) -> Array:
        """Σ_t u_t ⊗ c_t, in the trace's type."""
        r = self.relations[k]
        data = [widened(u, c.dtype) for u in window.data(r.site)]
        return site_math.outer(self.site(k), window.fixed[r.site], data, c).astype(self.dtypes[k])

    def grad(self, k: int, c: Array, window: WindowData) -> Array:
        """Σ_t (∂y_t/∂w)ᵀ c_t, of the weight's shape."""
        r = self.relations[k]
        c = c.astype(common_dtype(c.dtype, self.dtypes[k]))
        data = [widened(u, c.dtype) for u in window.data(r.site)]
        return site_math.grad(self.facts.sites[r.site], window.fixed[r.site], data, c)


def plan_blocks(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Plan:
    """The plan for the relations that per-position blocks of the cut step carry."""
    relations = carried_relations(facts, sites)
    return plan_of(facts, plan_probes(facts, relations), trace_dtype)


def plan_of(facts: Facts, probes: Probes, trace_dtype: DTypeLike | None) -> Plan:
    groups = facts.groups
    gathers = [gather_of(r.places, groups[r.group].varshape, groups[r.group].num_positions) for r in probes.relations]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in probes.relations]
    return Plan(facts, tuple(probes.relations), probes, tuple(gathers), tuple(dtypes))


def widened(u: Array, dtype: DTypeLike) -> Array:
    """Data in at least the trace's precision; indices as they are."""
    return u.astype(common_dtype(u.dtype, dtype)) if jnp.issubdtype(u.dtype, jnp.inexact) else u


def carried_relations(
    facts: Facts, sites: frozenset[int] | None = None, fan_out: FanOut = NO_FAN_OUT
) -> list[Relation]:
    """Relations of the given sites (None: all) that per-position blocks carry."""
    return [r for r in traced_relations(facts, fan_out) if sites is None or r.site in sites]


def trace_dtype_of(facts: Facts, relation: Relation, asked: DTypeLike | None) -> np.dtype:
    """The type of a relation's trace."""
    return wide_dtype(facts.sites[relation.site].call.out.dtype, asked)


def wide_dtype(dtype: np.dtype, asked: DTypeLike | None = None) -> np.dtype:
    """Traces accumulate in at least float32 unless asked otherwise; complex where the op is complex."""
    if asked is not None:
        complex_op = np.issubdtype(dtype, np.complexfloating)
        return common_dtype(asked, jnp.complex64) if complex_op else jnp.dtype(asked)
    return common_dtype(dtype, jnp.float32)
