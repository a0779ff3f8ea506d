"""A step with more states than the one that runs, and a transport over it: filtered data, copies of coarse states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax import Array

from ...compiler.analysis import Facts
from ...compiler.ir import Role
from .._transport import EachStep, FusedCredit, Transport, WindowData


class WiderStep:
    """A step with more states than the one that runs, of which only derivatives count, and inputs for what moves them.

    `rates` are these inputs at a step; `signals` the cotangents of its states, given those of the step that runs.
    """

    facts: Facts

    @cached_property
    def wider(self) -> Facts:
        raise NotImplementedError

    def rates(self, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]) -> list[Array]:
        raise NotImplementedError

    def rates_before(self, params: Sequence[Array], weights: Sequence[Array]) -> list[Array]:
        """Read the rates that are made of parameters only, once, before a window runs."""
        raise NotImplementedError

    def signals(self, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        raise NotImplementedError

    def with_data(self, states: Sequence[Any]) -> list[Any]:
        """States in the order of the wider step; those that were added are zero."""
        first, last = (len(step.select(Role.HIDDEN)) for step in (self.facts.step, self.wider.step))
        more = [leaf.aval for leaf in self.wider.states[first:last]]
        return [*states[:first], *(jnp.zeros(a.shape, a.dtype) for a in more), *states[first:]]

    def leaves(self, leaves: Sequence[Array], rates: Sequence[Array]) -> list[Array]:
        step = self.facts.step
        first, count = step.first_state, len(step.states)
        return [*leaves[:first], *self.with_data(leaves[first : first + count]), *leaves[first + count :], *rates]


def wider_transport(hopped: WiderStep, inner: Transport[Any]) -> Transport[Any]:
    """A transport over a wider step, for windows of the step that runs."""
    each = inner.each_step

    def view(window: WindowData) -> WindowData:
        steady = hopped.rates_before(window.params, window.weights)
        return window._replace(entry_states=hopped.with_data(window.entry_states), steady=steady)

    def record(leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Any:
        return each.record(hopped.leaves(leaves, hopped.rates(leaves, weights, ys)), weights, ys)

    def advance(carry: Any, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> Any:
        return each.advance(carry, hopped.leaves(leaves, hopped.rates(leaves, weights, ys)), weights, ys)

    return Transport(
        inner.init,
        lambda trace, g, window: inner.credit(trace, hopped.signals(g, window), view(window)),
        lambda trace, window: inner.move(trace, view(window)),
        EachStep(record, each.begin, advance, each.restart),
        fused=FusedCredit(
            lambda trace, g, window: inner.fused.in_product(trace, hopped.signals(g, window), view(window))
        ),
        parts=inner.parts,
    )
