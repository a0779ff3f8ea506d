"""Jacobian pieces of one cut step: ∂h/∂h blocks per group and ∂h/∂y per weight op, by reverse mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ..analysis import Facts, OpenStep, WeightSite
from ..engine import Probes, plan_probes, site_math, weights
from ..ir import Path, Role
from ._columns import Columns
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

    x: jax.Array | None
    df: jax.Array
    data: tuple[jax.Array, ...] = field(repr=False)
    fixed: tuple[jax.Array, ...] = field(repr=False)
    site: WeightSite = field(repr=False, metadata={"static": True})

    def dense(self) -> jax.Array:
        """∂h'/∂w as the op family lays out its traces: (*trace shape, S), an entry per (element of y, element of w)."""
        window = [u[None] for u in self.data]
        columns = [site_math.outer(self.site, self.fixed, window, c[None]) for c in jnp.moveaxis(self.df, -1, 0)]
        return jnp.stack(columns, axis=-1)


class Jacobians(NamedTuple):
    """New leaves of the step (hidden, other, output), ∂h/∂w pieces by key, and one array of blocks per group."""

    outs: list[jax.Array]
    h2w: dict[Key, HiddenToWeight]
    h2h: list[jax.Array]


def plan_jacobians(facts: Facts, groups: Sequence[HiddenGroup]) -> Probes:
    """How to read the blocks of all groups, with states in the order of the groups, and of all that can be traced."""
    relations = [r for r in facts.relations if r.representable]
    return plan_probes(facts, relations, groups=[g.columns.layout.group for g in groups])


def jacobians(probes: Probes, leaves: Sequence[jax.Array]) -> Jacobians:
    """All pieces at one step, for its input leaves in order: one pull-back per state scalar and colour."""
    facts = probes.facts
    step, sites, params = facts.step, facts.sites, facts.step.select(Role.PARAM)
    found = weights(step, sites, leaves[: len(params)])
    outs, seen = OpenStep(step, sites, facts.cut)(leaves, {}, found.weight)
    blocks, rows = probes(leaves, found.weight, {j: op.y for j, op in seen.items()})
    columns = [Columns(layout) for layout in probes.layouts]
    h2w: dict[Key, HiddenToWeight] = {}
    for r, row in zip(probes.relations, rows, strict=True):
        data, df = seen[r.site].data, columns[r.group].rows(list(row))
        piece = HiddenToWeight(data[0] if data else None, df, data, found.fixed[r.site], sites[r.site])
        h2w |= {(params[p].path, r.site, r.group): piece for p in sorted(sites[r.site].params)}
    return Jacobians(outs, h2w, [c.blocks(block) for c, block in zip(columns, blocks, strict=True)])
