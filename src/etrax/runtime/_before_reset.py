"""What came before a reset is left out by choice, not multiplied by zero: 0 · NaN is NaN, and no stream would recover.

D = 0 at a reset makes the past of a trace zero only while all numbers are finite. `without_past_trace` puts zeros in
the place of a trace that starts again, `cleared_trace` in some of its lanes, and `without_past_steps` shows a rule the
window without the steps before a reset: their data, and what a pull gives for them, are zero. Data that several lanes
share stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..compiler.analysis import Facts, Group, Relation, find_samples, lane_of_elements, lane_of_positions, memoised
from ..compiler.opened import WeightSite, fixed_operands
from . import _site_math as site_math
from ._resets import at_lanes, parts_of_data, remaining
from ._transport import PullBack, Transport, WindowData

T = TypeVar("T")


def without_past_trace(transport: Transport[T], trace: T, flag: Array) -> T:
    """A trace with zero in all of its parts if all lanes start again; what a rule learns for good stays."""
    leaves, tree = jax.tree.flatten(trace)
    numbers = transport.parts(jax.tree.unflatten(tree, list(range(len(leaves)))))
    for n in (int(n) for some in numbers.values() for n in some):  # a number in the place of each array
        leaves[n] = zero_where(flag, None, leaves[n])
    return jax.tree.unflatten(tree, leaves)


def without_past_steps(facts: Facts, window: WindowData) -> WindowData:
    """A window without what happened in it before the last reset of each lane."""
    if window.resets is None:
        return window
    stays = remaining(window.resets)
    begun, past = ~stays[0], ~stays[1:]
    by_lane = begun.ndim > 0

    def data(j: int) -> tuple[Array, ...]:
        lanes = _lanes_of_data(facts, j) if by_lane else None
        return tuple(zero_where(past, lanes, u, lead=1) for u in window.data(j))

    def cut(pull: PullBack) -> PullBack:
        def pulled(cotangents: Mapping[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
            entry, ops = pull(cotangents)
            entry = {i: zero_where(begun, lane_of_elements(a.shape) if by_lane else None, a) for i, a in entry.items()}
            lanes = {j: _lanes_at_op(facts, j) if by_lane else None for j in ops}
            return entry, {j: zero_where(past, lanes[j], a, lead=1) for j, a in ops.items()}

        return pulled

    return window._replace(data=data, pull=cut(window.pull), pull_states=lambda: cut(window.pull_states()))


def zero_where(flags: Array, lanes: np.ndarray | None, a: Array, lead: int = 0) -> Array:
    """Zero where a flag is set, behind `lead` leading axes that both have.

    `lanes` are those of the elements along the last axes of the array, which may be one where all along it is equal.
    Where flags are by lane and these are not known, the array stays as it is.
    """
    if not jnp.issubdtype(a.dtype, jnp.inexact) or (flags.ndim > lead and lanes is None):
        return a
    if lanes is None or flags.ndim == lead:
        at = flags.reshape(*flags.shape, *[1] * (a.ndim - lead))
    else:
        lanes = lanes[tuple(slice(0, n) for n in a.shape[a.ndim - lanes.ndim :])]
        at = at_lanes(flags, lanes, lanes.ndim, lead)
        at = at.reshape(*at.shape[:lead], *[1] * (a.ndim - at.ndim), *at.shape[lead:])
    return jnp.where(at, jnp.zeros((), a.dtype), a)


def cleared_trace(
    site: WeightSite, fixed: Sequence[Any], lanes: np.ndarray | None, flags: Array, entry: Array
) -> Array:
    """An array of a trace of a site, with zero in the lanes that start again, given the lanes of its outputs."""
    if flags.ndim == 0 or lanes is None:
        return entry  # all lanes: the whole trace is set to zero at the beginning of a window
    begun = jnp.broadcast_to(at_lanes(flags, lanes, lanes.ndim), lanes.shape)
    at = jnp.broadcast_to(site_math.spread(site, fixed, begun.astype(jnp.float32)), site_math.trace_shape(site))
    at = at[tuple(slice(0, n) for n in entry.shape[entry.ndim - at.ndim :])]  # an axis of one is equal all along it
    return jnp.where(at != 0, jnp.zeros((), entry.dtype), entry)


def cleared_influence(
    facts: Facts, group: Group, relation: Relation, window: WindowData, flags: Array, influence: Array
) -> Array:
    """The influence of a relation on states of its samples, with zero where these start again."""
    if flags.ndim == 0:
        return zero_where(flags, None, influence)
    lanes = lanes_of_samples(facts, group, relation.places)
    return cleared_trace(facts.sites[relation.site], window.fixed[relation.site], lanes, flags, influence)


def lanes_of_samples(facts: Facts, group: Group, places: np.ndarray) -> np.ndarray | None:
    """The lane of each output of an op, of which each reaches one sample; None if there are none, or not known."""
    of_position = None if facts.lanes is None else lane_of_positions(facts, group)
    return None if of_position is None else of_position[np.maximum(places, 0)]


@memoised
def _lanes_of_output(facts: Facts, j: int) -> np.ndarray | None:
    """The lane of each output of site j's op, −1 for one that reaches no state; None if that is not known."""
    samples, lanes = find_samples(facts), None
    for r in (r for r in samples.relations if r.site == j):
        here = lanes_of_samples(facts, samples.groups[r.group], r.places)
        if here is None:
            return None
        here = np.where(r.places < 0, -1, here)
        lanes = here if lanes is None else np.maximum(lanes, here)
    return lanes


def _lanes_at_op(facts: Facts, j: int) -> np.ndarray | None:
    lanes, site = _lanes_of_output(facts, j), facts.sites[j]
    return None if lanes is None else np.broadcast_to(lanes.reshape(site.beside_loops(lanes.shape)), site.y_shape)


@memoised
def _lanes_of_data(facts: Facts, j: int) -> np.ndarray | None:
    """The lane of each number of site j's data, if its op has one operand of data and what is remembered is that."""
    lanes, site = _lanes_of_output(facts, j), facts.sites[j]
    varying = site.rule.varying(site.call)
    if lanes is None or site.loops or len(varying) != 1 or site.rule.own_feature_grad is not None:
        return None
    parts = parts_of_data(site, fixed_operands(facts.step, facts.sites)[j], lanes)
    return parts if parts is not None and parts.shape == site.call.operands[varying[0]].shape else None
