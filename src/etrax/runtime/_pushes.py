"""F of an op whose outputs reach several positions, by pushing them forward: J·v is the transpose of the pull-back.

A push moves many elements of y at once, of which no two reach one position. What arrives at a position is then the
derivative by the one element that reaches it, for all state scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..compiler.analysis import Copies, Facts, Relation, is_steep
from ..compiler.ir import linear_transpose
from . import _site_math as site_math
from ._layout import Gather, Layout, gather_of
from ._transport import PullBack
from ._zeros import with_masked_products
from .blocks import total


@dataclass(frozen=True, eq=False)
class Pushes:
    """How F is read at the copies of a relation's y, which act on the slots that `drives` tells."""

    facts: Facts
    relation: Relation
    layout: Layout
    drives: np.ndarray

    @property
    def copies(self) -> Copies:
        assert self.relation.copies is not None
        return self.relation.copies

    def __call__(self, pull: PullBack) -> list[Array] | Array:
        """F per state scalar, of the shape of copies of y, given the pull-back of new states to outputs of ops.

        Of a group that is stacked, an array over the slots that the op drives.
        """
        y = self.facts.sites[self.relation.site].y_struct
        pushed = [self._read(pull, jnp.asarray(self.copies.colour == c, y.dtype)) for c in range(self.copies.pushes)]
        if self.layout.stacked:
            some = [a if self.drives.all() else a[self.drives] for a in pushed]
            return jax.vmap(lambda *a: self._at_copies(list(a)))(*some)
        return [self._at_copies([values[s] for values in pushed]) for s in range(self.layout.size)]

    def _read(self, pull: PullBack, tangent: Array) -> list[Array] | Array:
        """Per state scalar, what a tangent of y moves; a cotangent of y where y is complex."""
        push = _transposed(pull, self.relation.site, self.layout)
        if is_steep(self.facts):  # a pull stops at a choice that was not taken; a push goes on beyond it, with zero
            push = partial(with_masked_products, push)
        real = self.layout.coordinates(push(tangent))
        if not jnp.iscomplexobj(tangent):
            return real
        # Two real pushes, along 1 and along i, give the cotangent of a complex y in JAX's convention.
        return jax.tree.map(lambda a, b: lax.complex(a, -b), real, self.layout.coordinates(push(1j * tangent)))

    def _at_copies(self, pushed: list[Array]) -> Array:
        """Choose, for each copy, the value of the push that reads it."""
        if self._runs is not None:
            axis, gathers = self._runs
            return jnp.concatenate([gather(a) for gather, a in zip(gathers, pushed, strict=True)], axis)
        site, gather = self.copies.site, self._gather(self.relation.places)
        beside = [site_math.beside_loops(site, gather(a)) for a in pushed]
        # Every push is read at all copies, and each copy keeps the one that is its own.
        return total(jnp.where(self.copies.push == c, a, 0) for c, a in enumerate(beside))

    @cached_property
    def _runs(self) -> tuple[int, list[Gather]] | None:
        """An axis along which the copies of each push stand together, and how each push is read at its run of them."""
        push, places = self.copies.push, self.relation.places
        assert push is not None
        if push.shape != places.shape:
            return None  # iterations of an inner loop
        columns = push.ndim + self.copies.columns.out
        for axis in (columns, *(i for i in range(push.ndim) if i != columns)):
            # If all lines along the axis read the pushes in one ascending order, each push is one slice of copies.
            lines = np.moveaxis(push, axis, -1).reshape(-1, push.shape[axis])
            push_of = lines.max(0, initial=-1)
            if ((lines < 0) | (lines == push_of)).all() and (np.diff(push_of) >= 0).all():
                ends = np.searchsorted(push_of, np.arange(1, self.copies.pushes))
                return axis, [self._gather(part) for part in np.split(places, ends, axis)]
        return None

    def _gather(self, place: np.ndarray) -> Gather:
        group = self.facts.group(self.relation.group)
        return gather_of(place, group.varshape, group.num_positions)


def _transposed(pull: PullBack, site: int, layout: Layout) -> Callable[[Array], Mapping[int, Array]]:
    """Tangents of a site's y → tangents of the states of a layout."""
    leaves = sorted({slot.leaf for slot in layout.slots})
    zeros = {i: jnp.zeros(layout.avals[i].shape, layout.avals[i].dtype) for i in leaves}

    def back(cotangents: dict[int, Array]) -> Array:
        return pull(cotangents)[1][site]

    # The pull-back is linear, so its transpose is the push. A step with `custom_vjp` has no JVP of its own.
    push = linear_transpose(back, zeros)
    return lambda tangent: push(tangent)[0]
