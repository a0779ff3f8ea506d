"""Lanes that start again before a step, and what they clear of a trace.

    h ← where(reset, h_0, h)  before the step        D = 0 there

The window's own derivative stops at a reset, and so does the reverse recursion over blocks: P and all suffix products
through it are zero. What D does not move (data, filters, counts of steps) is cleared by `remaining`, lane by lane.
Flags are () or (B,) at one step, (K,) or (K, B) over a window; without an axis of lanes they are those of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._errors import NotSupportedError
from ..compiler.analysis import Facts, Group, lane_of_positions
from ..compiler.opened import WeightSite
from . import _site_math as site_math
from .blocks import narrowed

# The lane of each element of an array; None where a flag is that of all lanes.
LaneMap = np.ndarray | None


def at_lanes(flags: Array, lanes: LaneMap, rank: int, lead: int = 0) -> Array:
    """Flags at the elements of an array of so many axes, broadcastable to it, behind `lead` leading axes of the flags.

    Where lanes lie along one axis this is a reshape: JAX's partitioner gathers the whole of an array that is indexed.
    """
    if flags.ndim == lead:
        return flags.reshape(*flags.shape, *[1] * rank)
    assert lanes is not None, "flags by lane need facts with lanes"
    short = narrowed(lanes, equal_along(lanes))  # pyright: ignore[reportArgumentType]  (numpy is sliced alike)
    if np.array_equal(short.reshape(-1), np.arange(flags.shape[-1])):
        return flags.reshape(*flags.shape[:lead], *short.shape)
    return flags[..., short]


def equal_along(lanes: np.ndarray) -> tuple[bool, ...]:
    """Per axis, whether all along it is of one lane."""
    return tuple(bool((lanes == lanes.take([0], axis)).all()) for axis in range(lanes.ndim))


def restarted(flags: Array, initial: Sequence[Array | None], states: Sequence[Array]) -> list[Array]:
    """States before a step, with the initial ones where something starts again; those without one go on."""
    return [
        h if h0 is None else jax.lax.select(jnp.broadcast_to(_beside(flags, h), h.shape), h0, h)
        for h0, h in zip(initial, states, strict=True)
    ]


def without_past(flags: Array, bars: Mapping[int, Array]) -> dict[int, Array]:
    """Cotangents of states before a step, zero where they start again."""
    return {i: jnp.where(_beside(flags, bar), jnp.zeros((), bar.dtype), bar) for i, bar in bars.items()}


def _beside(flags: Array, state: Array) -> Array:
    return flags.reshape(*flags.shape, *[1] * (state.ndim - flags.ndim))


def cleared(flags: Array, lanes: LaneMap, a: Array, rank: int) -> Array:
    """An array whose last axes, `rank` of them, are elements of lanes, with zero where something starts again."""
    return jnp.where(at_lanes(flags, lanes, rank), jnp.zeros((), a.dtype), a)


def remaining(flags: Array) -> Array:
    """(K + 1, …): whether nothing starts again after step k, k = 0, …, K; what was before the window is k = 0."""
    later = jnp.flip(jnp.cumsum(jnp.flip(flags, 0), 0, dtype=jnp.int32), 0)
    return jnp.concatenate([later, jnp.zeros_like(later[:1])]) == 0


def lanes_of_group(facts: Facts, group: Group, shape: tuple[int, ...]) -> LaneMap:
    """The lane of every position of a group, in an array of positions of this shape."""
    if facts.lanes is None:
        return None
    lanes = lane_of_positions(facts, group)
    if lanes is None:
        names = ", ".join(facts.state_name(i) for i in group.leaves)
        raise NotSupportedError(
            f"`reset` has a flag for each lane, but the lanes of {names} are driven together, by ops that have no axis "
            "of lanes: give their data one, or reset all lanes at once, with a `reset` of shape (T,)."
        )
    return lanes.reshape(shape)


def lanes_of_data(site: WeightSite, fixed: Sequence[Array | None], outputs: np.ndarray) -> np.ndarray:
    """The lane of each number that is remembered of an op's data, given the lanes of its outputs.

    Data that several lanes share cannot be forgotten by one of them.
    """
    lanes = parts_of_data(site, fixed, outputs)
    if lanes is None:
        raise NotSupportedError(
            f"`reset` has a flag for each lane, but the data of {site.label} are shared by several, and this rule "
            "remembers data: give them an axis of lanes, reset all lanes at once, with a `reset` of shape (T,), or use "
            "a rule like `d_rtrl`."
        )
    return lanes


def parts_of_data(site: WeightSite, fixed: Sequence[Array | None], parts: np.ndarray) -> np.ndarray | None:
    """Which of disjoint parts of the outputs each element of the data acts on; None if that is not one, or not known.

    Outputs of part -1 do not count.
    """
    constants = [a for a in fixed if a is not None]
    if len(constants) < len(fixed):
        return None
    with jax.ensure_compile_time_eval():
        zero = site_math.feature_zeros(site, site.call.out.dtype)

        def reached(outputs: np.ndarray) -> np.ndarray:
            """How many of these outputs each element of the data acts on."""

            def total(x: Array) -> Array:
                return jnp.real(site_math.feature_grad(site, constants, x, jnp.asarray(outputs, zero.dtype)).sum())

            return np.real(np.asarray(jax.grad(total)(zero)))

        counts = parts >= 0
        every, out = reached(counts), np.zeros(zero.shape, np.int64)
        for bit in range(int(parts.max(initial=0)).bit_length()):
            some = reached(counts * ((parts >> bit) & 1))
            if not ((some == 0) | (some == every)).all():
                return None
            out += (some > 0).astype(np.int64) << bit
    return out
