"""Which states a weight op has reached, for traces of a steep step that D does not move.

    a ← (D ≠ 0) a  or  (F ≠ 0)

A rule that puts a leak in the place of D keeps a trace of a state that the step has set to zero. A slope of later steps
may be infinite there, and means nothing: no op reaches such a state (`_zeros.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from . import _site_math as site_math
from ._blocks import block_times
from ._plan import Plan
from ._pulls import AnyBlock, Rows
from ._stacked import Sparse, stacked_times
from ._zeros import finite_unless

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
        blocks, rows = self.plan.probes(leaves, weights, ys)
        relations = self.plan.relations
        return tuple(self._moved(k, flags[k], blocks[r.group], rows[k]) for k, r in enumerate(relations))

    def _moved(self, k: int, flags: Array, block: AnyBlock, rows: Rows) -> Array:
        site, gather = self.plan.site(k), self.plan.gathers[k]

        def acts(a: Array) -> Array:
            return (a != 0).astype(jnp.float32)

        old = acts(flags)
        if isinstance(block, Sparse):
            found = stacked_times(Sparse(jax.vmap(gather)(acts(block.values)), block.pattern), old)
        else:
            at = [[None if d is None else gather(acts(d)) for d in line] for line in block]
            found = jnp.stack([jnp.zeros_like(old[0]) if a is None else a for a in block_times(at, list(old))])
        for s, f in self.plan.probes.by_slot(k, rows):
            found = found.at[s].add(site_math.sum_loops(site, acts(f)[None])[0])
        return found != 0

    def met(self, k: int, flags: Flags, signals: Sequence[Array]) -> list[Array]:
        """Signals per state scalar at the elements of relation k's y, with 0 for infinity where it reached nothing."""
        return [finite_unless(s, a) for s, a in zip(signals, flags[k], strict=True)] if flags else list(signals)
