"""State scalars that act alike, as one entry with an axis of them: fewer and longer operations for each step.

The N states of a channel of a selective layer act on themselves alone, and all of them are acted on by the states of
the same short convolution. In the order (h_1 … h_N, c_1 c_2 c_3) a block is an arrow of 4 N + 5 entries; with one entry
for all h_n it has 4 + 5, of which those of h have a leading axis of N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._unrolled import Entries, Entry, Unrolled, Vector


@dataclass(frozen=True, eq=False)
class Alike(Unrolled):
    """The algebra of blocks in which the slots of a class are one: entries have a leading axis, of one or its slots.

    `classes` are slots by class. A class of several slots acts on no other class.
    """

    classes: tuple[tuple[int, ...], ...] = ()

    def map(self, f: Callable[[Array, int, int], Entry], a: Entries) -> list[list[Entry]]:
        """f of each slot's share of an entry, for every entry that is not always zero."""
        return [
            [None if p is None else jax.vmap(lambda q, s=s, t=t: f(q, s, t))(p) for t, p in enumerate(line)]
            for s, line in enumerate(a)
        ]

    def joined(self, d: Entries, axis: int) -> list[list[Entry]]:
        """A matrix by class, of one by slot; classes have their axis at `axis`."""
        return [[self._of_pair(d, to, of, axis) for of in self.classes] for to in self.classes]

    def _of_pair(self, d: Entries, to: Sequence[int], of: Sequence[int], axis: int) -> Entry:
        return _stacked([d[s][of[min(n, len(of) - 1)]] for n, s in enumerate(to)], axis)

    def joined_vector(self, v: Vector, axis: int) -> list[Entry]:
        """A vector by class, of one by slot."""
        return [_stacked([v[s] for s in slots], axis) for slots in self.classes]

    def by_slot(self, a: Entries) -> list[list[Entry]]:
        """A matrix by slot, of one by class, each class along its first axis."""
        size = sum(map(len, self.classes))
        out: list[list[Entry]] = [[None] * size for _ in range(size)]
        for line, to in zip(a, self.classes, strict=True):
            for p, of in zip(line, self.classes, strict=True):
                for n, s in enumerate(to):
                    out[s][of[min(n, len(of) - 1)]] = None if p is None else p[n]
        return out

    def vector_by_slot(self, v: Vector, axis: int) -> list[Entry]:
        """A vector by slot, of one by class; classes have their axis at `axis`."""
        out: list[Entry] = [None] * sum(map(len, self.classes))
        for a, slots in zip(v, self.classes, strict=True):
            for n, s in enumerate(slots):
                out[s] = None if a is None else jax.lax.index_in_dim(a, n, axis, keepdims=False)
        return out


def _stacked(parts: Sequence[Entry], axis: int) -> Entry:
    """Entries along a new axis; None if all are always zero."""
    some = next((a for a in parts if a is not None), None)
    return None if some is None else jnp.stack([jnp.zeros_like(some) if a is None else a for a in parts], axis)


def alike(links: np.ndarray, shape: tuple[int, ...], steep: bool) -> Alike | None:
    """The algebra by class of blocks with these entries, at positions of a shape; None if it is not half as large."""
    classes = _classes(links)
    if 2 * len(classes) > len(links):
        return None
    reach = links | np.eye(len(links), dtype=bool)
    for _ in range(len(links).bit_length()):
        reach = (reach.astype(np.int64) @ reach) > 0

    def entry(to: Sequence[int], of: Sequence[int]) -> tuple[int, ...] | None:
        return (len(to), *shape) if reach[to[0], of[0]] else None

    return Alike([[entry(to, of) for of in classes] for to in classes], steep, classes)


def _classes(links: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Slots by class: those on which the same others act, and that act on none but themselves, are one class."""
    alone = links & ~np.eye(len(links), dtype=bool)
    classes: dict[object, list[int]] = {}
    for s, line in enumerate(alone):
        key = s if alone[:, s].any() else (links[s, s], line.tobytes())
        classes.setdefault(key, []).append(s)
    return tuple(map(tuple, classes.values()))
