"""Per-position Jacobian blocks D[p] = ∂h'[p, :]/∂h[p, :], by reverse mode only.

Reverse mode with a cotangent at several positions at once gives the sum of their rows. That sum is a block only where
no other of these positions is reached, so positions that act on each other are probed one after another: they get
different colours, and one pull-back per colour and state scalar is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._facts import Facts, Tag
from .._positions import Group
from ..pattern import components
from ._layout import Layout


def colours(facts: Facts, group: Group) -> np.ndarray | None:
    """A colour per position such that positions of one colour do not act on each other; None if one is enough.

    A diagonal or block group needs one; a ring three; a mean field as many as it has positions (per sample: samples
    never act on each other). The cost of the blocks is that number of pull-backs per state scalar.
    """
    if facts.tags[group.index] in (Tag.DIAGONAL, Tag.BLOCK):
        return None
    left, right, nodes, whole = [], [], group.num_positions, False
    for a in group.leaves:
        for b in group.leaves:
            dep = facts.edges.dep.get((("h", a), ("h", b)))
            if dep is None or facts.carries(a, b):
                continue
            source, target = group.place_of(a).reshape(-1), group.place_of(b).reshape(-1)
            base = 0
            if dep.part.labels is not None:
                whole, base = True, nodes  # one node per block, joined with the positions in it
                nodes += int(dep.part.labels.max()) + 1
                left.append(target)
                right.append(base + dep.part.labels)
            for m in dep.maps:
                flat = m.reshape(-1)
                at = np.flatnonzero(flat >= 0)
                left.append(source[at])
                right.append(base + flat[at] if base else target[flat[at]])
    ends = np.concatenate(left).astype(np.int64), np.concatenate(right).astype(np.int64)
    found = _rank_in_component(nodes, group.num_positions, *ends) if whole else _greedy(group.num_positions, *ends)
    return found.reshape(group.varshape)


def _rank_in_component(nodes: int, positions: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    labels = components(nodes, left, right)[:positions]
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    rank = np.empty(positions, np.int32)
    rank[order] = np.arange(positions) - np.repeat(starts, np.diff(starts, append=positions))
    return rank


def _greedy(positions: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The smallest colour that no neighbour has, position by position."""
    near: list[set[int]] = [set() for _ in range(positions)]
    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        if a != b:
            near[a].add(b)
            near[b].add(a)
    found = np.full(positions, -1, np.int32)
    for p in range(positions):
        taken = {int(found[q]) for q in near[p]}
        found[p] = next(c for c in range(len(taken) + 1) if c not in taken)
    return found


def state_blocks(
    run: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any], layout: Layout, colour: np.ndarray | None
) -> jax.Array:
    """Blocks (*varshape, S, S) of `run`, from hidden values to new ones, both in the order of the layout."""
    outs, pull = jax.vjp(lambda v: list(run(v)), list(values))
    return blocks_from(lambda cotangents: pull(cotangents)[0], outs, layout, colour)


def blocks_from(
    pull: Callable[[list[Any]], Sequence[Any]], outs: Sequence[Any], layout: Layout, colour: np.ndarray | None
) -> jax.Array:
    """Blocks from a pull-back of new hidden values to old ones."""
    probes = unit_cotangents(layout, outs)

    def rows(mask: Any) -> jax.Array:
        def row(cotangent: jax.Array) -> jax.Array:
            return layout.concat(pull(layout.split(cotangent)))

        found = jax.vmap(row)(probes * mask)
        if _mixed(outs):  # Re(ct·J) is what a real state sees of a complex one: the imaginary part needs a second probe
            found = _add_imaginary(found, jax.vmap(row)(probes * mask * -1j), layout, outs)
        return jnp.moveaxis(found, 0, -2) * mask[..., None]

    if colour is None:
        return rows(jnp.ones((*layout.varshape, 1), probes.real.dtype))
    start = jnp.zeros((*layout.varshape, layout.num_state, layout.num_state), probes.dtype)
    masks = lambda c: (jnp.asarray(colour) == c)[..., None].astype(probes.real.dtype)  # noqa: E731
    return lax.fori_loop(0, int(colour.max()) + 1, lambda c, sum_: sum_ + rows(masks(c)), start)


def unit_cotangents(layout: Layout, outs: Sequence[Any]) -> jax.Array:
    """(S, *varshape, S): the s-th is one at state scalar s of every position."""
    dtype = layout.concat(outs).dtype
    eye = jnp.eye(layout.num_state, dtype=dtype)
    return jnp.broadcast_to(
        jnp.expand_dims(eye, range(1, len(layout.varshape) + 1)), (eye.shape[0], *layout.varshape, eye.shape[0])
    )


def _complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _mixed(outs: Sequence[Any]) -> bool:
    return len({_complex(x) for x in outs}) > 1


def _add_imaginary(found: jax.Array, second: jax.Array, layout: Layout, outs: Sequence[Any]) -> jax.Array:
    """Where a complex state depends on a real one: J = Re(1·J) + i Re(-i·J)."""
    is_complex = np.repeat([_complex(x) for x in outs], layout.counts)
    axes = (found.shape[0], *(1 for _ in layout.varshape), found.shape[-1])
    where = np.logical_and.outer(is_complex, ~is_complex).reshape(axes)
    return jnp.where(where, found + 1j * second, found)
