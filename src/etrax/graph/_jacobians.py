"""Jacobian pieces of one cut step: ∂h/∂h blocks per group and ∂h/∂y per weight op, by reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ..analysis._cut import OpenStep
from ..analysis._facts import Facts
from ..analysis._sites import WeightSite
from ..engine import _site_math as site_math
from ..engine._weights import weights
from ..ir import Path, Role, mapped
from ._blocks import blocks_from, unit_cotangents
from ._group import HiddenGroup

# A weight leaf's path, the number of its op in the step, and the number of a hidden group.
Key: TypeAlias = tuple[Path, int, int]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HiddenToWeight:
    """What ∂h'/∂w is made of for one weight op y = op(x, w) and one hidden group.

    `x` is the value of the op's data operand, None if it has none. `df[o, s]` is ∂h'[pos(o), s]/∂y[o], of shape
    (*y.shape, S): each element o of y reaches one position pos(o) of the group. For an elementwise weight (a bias, a
    gain) y is the weight itself, broadcast to the op's shape. An op in an inner loop has the loop's axis first in both.
    """

    x: Any
    df: jax.Array
    data: tuple[Any, ...] = field(repr=False)
    fixed: tuple[Any, ...] = field(repr=False)
    site: WeightSite = field(repr=False, metadata={"static": True})

    def dense(self) -> jax.Array:
        """∂h'/∂w as the op family lays out its traces: (*trace shape, S), an entry per (element of y, element of w)."""
        window = [u[None] for u in self.data]
        columns = [site_math.outer(self.site, self.fixed, window, c[None]) for c in jnp.moveaxis(self.df, -1, 0)]
        return jnp.stack(columns, axis=-1)


class Jacobians(NamedTuple):
    """New leaves of the step (hidden, other, output), ∂h/∂w pieces by key, and one array of blocks per group."""

    outs: list[Any]
    h2w: dict[Key, HiddenToWeight]
    h2h: list[jax.Array]


def jacobians(facts: Facts, groups: Sequence[HiddenGroup], leaves: Sequence[Any]) -> Jacobians:
    """All pieces at one step, for its input leaves in order: one pull-back per state scalar and colour."""
    step, first = facts.step, len(facts.step.select(Role.PARAM))
    opened = OpenStep(step, facts.sites, facts.cut)
    moving = [i for g in facts.groups for i in g.leaves]
    relations = [r for r in facts.relations if r.representable]
    deltas = {
        j: jnp.zeros(facts.sites[j].y_shape, facts.sites[j].call.out.dtype) for j in sorted({r.site for r in relations})
    }

    def run(hidden: Mapping[int, Any], deltas: Mapping[int, Any]) -> tuple[dict[int, Any], Any]:
        values = list(leaves)
        for i, value in hidden.items():
            values[first + i] = value
        outs, seen = opened(values, [deltas.get(j) for j in range(len(facts.sites))])
        return {i: outs[i] for i in moving}, (outs, {j: seen[j][1] for j in deltas})

    new, pull, (outs, data) = jax.vjp(run, {i: leaves[first + i] for i in moving}, deltas, has_aux=True)
    zeros = {i: jnp.zeros_like(v) for i, v in new.items()}
    fixed = weights(step, facts.sites, leaves[:first]).fixed
    params = step.select(Role.PARAM)
    h2w: dict[Key, HiddenToWeight] = {}
    h2h = []
    number = {leaf.path: i for i, leaf in enumerate(facts.states) if i in facts.group_of_leaf}
    for group in groups:
        layout, own_leaves = group._layout, [number[path] for path in group.hidden_paths]

        def back(cotangents: Sequence[Any], at: list[int] = own_leaves) -> tuple[list[Any], dict[int, Any]]:
            h, d = pull(zeros | dict(zip(at, cotangents, strict=True)))
            return [h[i] for i in at], d

        own = [new[i] for i in own_leaves]
        h2h.append(blocks_from(lambda c, back=back: back(c)[0], own, layout, group.colour))
        rows = _weight_rows(lambda c, back=back: back(c)[1], own, layout, deltas)
        for r in relations:
            if r.group != group.index:
                continue
            site = facts.sites[r.site]
            u = data[r.site]
            for p in sorted(site.params):
                key = (params[p].path, r.site, r.group)
                h2w[key] = HiddenToWeight(u[0] if u else None, rows[r.site], tuple(u), fixed[r.site], site)
    return Jacobians(outs, h2w, h2h)


def _weight_rows(
    pull: Callable[[list[Any]], dict[int, Any]], outs: Sequence[Any], layout: Any, deltas: Mapping[int, Any]
) -> dict[int, jax.Array]:
    """∂h'[pos(o), s]/∂y[o] per op, (*y.shape, S): no sum, as an element of y reaches one position only."""
    probes = unit_cotangents(layout, outs)
    found = mapped(lambda c: pull(layout.split(c)), probes)
    if jnp.issubdtype(probes.dtype, jnp.complexfloating):  # what a real y sees of a complex state is Re(ct·J)
        second = mapped(lambda c: pull(layout.split(-1j * c)), probes)
        found = {j: v if jnp.iscomplexobj(deltas[j]) else v + 1j * second[j] for j, v in found.items()}
    return {j: jnp.moveaxis(v, 0, -1) for j, v in found.items()}
