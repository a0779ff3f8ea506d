"""Coarse states at fine positions: what few positions do to many others, carried at those (`analysis/_spread.py`).

Copies m̃ of a coarse state m are slots of the fine group, whose blocks are

    D̃ = [[∂c'/∂c, ∂c'/∂m], [0, ∂m'/∂m]]

read by pushing m forward, all positions at once of which no two are seen by one fine position. Copies have no credit of
their own: what the loss owes to m is that of m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...compiler.analysis import Facts, Spread, analyse, is_steep, memoised, slot_elements, with_spreads
from ...compiler.ir import Detach, Role, detaching_vjp
from ...compiler.opened import OpenStep
from .._transport import WindowData
from .._zeros import with_masked_products
from ._wider import WiderStep


@dataclass(frozen=True, eq=False)
class SpreadOut(WiderStep):
    """A step with copies of coarse states, which `wider` are the facts of."""

    facts: Facts
    spreads: tuple[Spread, ...]

    @cached_property
    def wider(self) -> Facts:
        step, by_copies = with_spreads(self.facts, self.spreads)
        wider = replace(analyse(step, as_written=True, by_copies=by_copies), lanes=self.facts.lanes)
        assert len(wider.sites) == len(self.facts.sites)
        return wider

    def rates(self, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]) -> list[Array]:
        """The derivatives that the wider step takes."""
        facts = self.facts
        opened, old = OpenStep(facts.step, facts.sites, facts.cut), facts.step.states_of(leaves)
        moving = sorted({i for s in self.spreads for i in (*s.coarse.leaves, *s.fine.leaves)})

        def run(detach: Detach, h: dict[int, Array]) -> dict[int, Array]:
            outs, _ = opened(leaves, {}, weights, ys, states=h, detach=detach)
            return {i: outs[i] for i in moving}

        _, pull = detaching_vjp(run, {i: old[i] for i in moving})
        nothing = {i: jnp.zeros_like(old[i]) for i in moving}
        push = jax.vjp(lambda bars: pull(bars)[0], nothing)[1]
        if is_steep(facts):  # zero times an infinite slope is zero, as in `_pushes.py`
            push = partial(with_masked_products, push)
        return [_derivatives(spread, nothing, lambda tangents: push(tangents)[0]) for spread in self.spreads]

    def rates_before(self, params: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """None is known before a window runs."""
        return []

    def signals(self, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        """Cotangents of the states; none of copies."""
        hidden = range(len(self.facts.step.select(Role.HIDDEN)))
        added = range(len(hidden), len(self.wider.step.select(Role.HIDDEN)))
        avals = self.wider.states
        return {i: g[i] for i in hidden if i in g} | {
            i: jnp.zeros(avals[i].aval.shape, avals[i].aval.dtype) for i in added
        }


def _derivatives(spread: Spread, nothing: Mapping[int, Array], push: Any) -> Array:
    """(R, states acted on, coarse states, fine positions), by one push for each copy."""
    coarse, fine = slot_elements(spread.coarse), slot_elements(spread.fine)
    every = []
    for copies in spread.seen:
        moved = np.zeros(spread.coarse.num_positions, bool)
        moved[copies[copies >= 0]] = True
        columns = []
        for leaf, index in coarse:
            tangent = np.zeros(nothing[leaf].size, nothing[leaf].dtype)
            tangent[index[moved]] = 1
            new = push({**nothing, leaf: jnp.asarray(tangent).reshape(nothing[leaf].shape)})
            rows = [new[i].reshape(-1)[at] for i, at in fine]
            rows += [new[i].reshape(-1)[at[np.maximum(copies, 0)]] for i, at in coarse]
            columns.append(jnp.where(copies >= 0, jnp.stack(rows), 0))
        every.append(jnp.stack(columns, 1))
    return jnp.stack(every).reshape(len(every), *spread.acts.shape, *spread.shape)


@memoised
def spread_out(facts: Facts, spreads: tuple[Spread, ...]) -> SpreadOut:
    return SpreadOut(facts, spreads)
