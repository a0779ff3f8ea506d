"""What transports by position share: relations, pulls that read D and F, the way from positions to elements of y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._compat import common_dtype
from ..analysis import Facts, Relation, traced_relations
from . import _site_math as site_math
from ._layout import Gather, Layout, gather_of
from ._probes import Probes, plan_probes
from ._transport import WindowData


@dataclass(frozen=True, eq=False)
class Plan:
    """Per relation: how positions are read at the elements of y, and the type of its trace."""

    facts: Facts
    relations: tuple[Relation, ...]
    probes: Probes
    gathers: tuple[Gather, ...]
    dtypes: tuple[Any, ...]

    def layout(self, k: int) -> Layout:
        return self.probes.layouts[self.relations[k].group]

    def zeros(self, k: int) -> Any:
        """One state scalar's share of the trace of relation k."""
        return jnp.zeros(site_math.trace_shape(self.facts.sites[self.relations[k].site]), self.dtypes[k])

    def signals(self, k: int, g: Mapping[int, Any]) -> list[Any]:
        """Cotangents of hidden leaves, per state scalar, at the elements of relation k's y."""
        layout = self.layout(k)
        found = layout.read({i: g[i] for i in layout.group.leaves})
        return [self.gathers[k](s).astype(self.dtypes[k]) for s in found]

    def at_trace(self, k: int, p: Any, fixed: Sequence[Any]) -> Any:
        """Values per position, broadcastable to the trace of relation k."""
        r = self.relations[k]
        return site_math.spread(self.facts.sites[r.site], fixed[r.site], self.gathers[k](p))

    def apply(self, k: int, entry: Any, signal: Any, fixed: Sequence[Any]) -> Any:
        """A trace against a signal at the elements of y, of the weight's shape."""
        r = self.relations[k]
        return site_math.apply(self.facts.sites[r.site], fixed[r.site], entry, signal)

    def outer(self, k: int, c: Any, window: WindowData) -> Any:
        """Σ_t u_t ⊗ c_t, in the trace's type."""
        r = self.relations[k]
        data = [widened(u, c.dtype) for u in window.data(r.site)]
        return site_math.outer(self.facts.sites[r.site], window.fixed[r.site], data, c).astype(self.dtypes[k])

    def grad(self, k: int, c: Any, window: WindowData) -> Any:
        """Σ_t (∂y_t/∂w)ᵀ c_t, of the weight's shape."""
        r = self.relations[k]
        c = c.astype(common_dtype(c.dtype, self.dtypes[k]))
        data = [widened(u, c.dtype) for u in window.data(r.site)]
        return site_math.grad(self.facts.sites[r.site], window.fixed[r.site], data, c)


def plan_blocks(facts: Facts, sites: frozenset[int] | None, trace_dtype: Any) -> Plan:
    """The plan for the relations that per-position blocks of the cut step carry."""
    relations = carried_relations(facts, sites)
    return plan_of(facts, plan_probes(facts, relations), trace_dtype)


def plan_of(facts: Facts, probes: Probes, trace_dtype: Any) -> Plan:
    groups = facts.groups
    gathers = [gather_of(r.places, groups[r.group].varshape, groups[r.group].num_positions) for r in probes.relations]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in probes.relations]
    return Plan(facts, tuple(probes.relations), probes, tuple(gathers), tuple(dtypes))


def widened(u: Any, dtype: Any) -> Any:
    """Data in at least the trace's precision; indices as they are."""
    return u.astype(common_dtype(u.dtype, dtype)) if jnp.issubdtype(u.dtype, jnp.inexact) else u


def carried_relations(facts: Facts, sites: frozenset[int] | None = None) -> list[Relation]:
    """Relations of the given sites (None: all) that per-position blocks carry."""
    return [r for r in traced_relations(facts) if sites is None or r.site in sites]


def trace_dtype_of(facts: Facts, relation: Relation, asked: Any) -> Any:
    """The type of a relation's trace."""
    return wide_dtype(facts.sites[relation.site].call.out.dtype, asked)


def wide_dtype(dtype: Any, asked: Any = None) -> Any:
    """Traces accumulate in at least float32 unless asked otherwise; complex where the op is complex."""
    if asked is not None:
        complex_op = np.issubdtype(dtype, np.complexfloating)
        return common_dtype(asked, jnp.complex64) if complex_op else jnp.dtype(asked)
    return common_dtype(dtype, jnp.float32)
