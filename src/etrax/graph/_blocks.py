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

from ..ir import mapped
from ._layout import Layout


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

        found = mapped(row, probes * mask)
        if _mixed(outs):  # Re(ct·J) is what a real state sees of a complex one: the imaginary part needs a second probe
            found = _add_imaginary(found, mapped(row, probes * mask * -1j), layout, outs)
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
