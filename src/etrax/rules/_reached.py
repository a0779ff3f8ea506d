"""Which states a weight op has reached, for traces of a steep step that D does not move.

    a ← (D ≠ 0) a  or  (F ≠ 0)

A rule that puts a leak in place of D keeps a trace of a state that the step has set to zero. A slope of later steps
may be infinite there, and means nothing: no op reaches such a state (`_zeros.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from ..runtime import Plan, cleared, finite_unless, plain_algebra, site_math
from ..runtime.blocks import Block, Vector

# Per relation (S, …y): whether an element of y has reached a state scalar at its position. Empty unless the step is
# steep.
Flags: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class Reached:
    """Flags for the relations of a plan; nothing for a step that is not steep."""

    plan: Plan

    def init(self) -> Flags:
        plan = self.plan
        sizes = [(plan.layout(k).size, *site_math.output_shape(plan.site(k))) for k in range(len(plan.relations))]
        return tuple(jnp.zeros(shape, bool) for shape in sizes) if plan.steep else ()

    def advance(
        self, flags: Flags, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> Flags:
        """After one more step."""
        if not flags:
            return flags
        blocks, rows = self.plan.reader(leaves, weights, ys)
        relations = self.plan.relations
        return tuple(self._moved(k, flags[k], blocks[r.group], rows[k]) for k, r in enumerate(relations))

    def restart(self, flags: Flags, resets: Array) -> Flags:
        """Before a step, with nothing reached where something starts again."""
        return tuple(cleared(resets, self.plan.lanes_at(k), a, a.ndim - 1) for k, a in enumerate(flags))

    def _moved(self, k: int, flags: Array, block: Block, rows: Vector) -> Array:
        site = self.plan.site(k)

        def acts(a: Array) -> Array:
            return (a != 0).astype(jnp.float32)

        old, algebra = acts(flags), plain_algebra(self.plan.layout(k), False)
        moved = algebra.times(algebra.map(lambda d, s, t: self.plan.gathers[k](acts(d)), block), old)
        out = jnp.stack([jnp.zeros_like(old[0]) if a is None else a for a in moved])
        for s, f in algebra.driven(rows, self.plan.drives[k]):
            out = out.at[s].add(site_math.sum_loops(site, acts(f)[None])[0])
        return out != 0

    def met(self, k: int, flags: Flags, signals: Sequence[Array], slots: Sequence[int]) -> list[Array]:
        """Signals at the elements of relation k's y, of some slots, with 0 for infinity where it reached nothing."""
        return [finite_unless(x, flags[k][s]) for s, x in zip(slots, signals, strict=True)] if flags else list(signals)
