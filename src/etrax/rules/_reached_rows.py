"""Which state scalars of a sample have a row in the influence matrix of a weight op, and how few pulls read them.

The influence of an op on a sample's states, J[s, θ] = ∂h[s]/∂θ, is zero for scalars that the op never reaches. Of the
others, some are reached by nearly every element of y (the layer above) and some by few (the element's own position):

    wide      rows (w, …trace), one scalar for all elements
    narrow    rows (m, …trace), of which each element of y has scalars of its own, `narrow[a, e]`

Pulls of the window read rows of ∂h_K/∂h_0. Scalars whose sources do not meet are read by one pull: they have one
colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..compiler.analysis import Facts, Relation, find_nodes, one_step, steps_to_fill
from ..runtime import Layout
from ._snap import listed_scalars, reached_scalars

# More rows of different kinds than this are not tried out one by one.
_TRIED = 16


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one relation, by the numbers of state scalars in the layout of a sample.

    `wide` is (w,), `narrow` (m, *y) with −1 where an element has fewer. `reached` (S, *y) says which scalars an element
    of y ever reaches.
    """

    relation: Relation
    wide: np.ndarray
    narrow: np.ndarray
    reached: np.ndarray

    @property
    def count(self) -> int:
        return self.wide.size + self.narrow.shape[0]


def find_rows(facts: Facts, layout: Layout, relation: Relation, links: np.ndarray) -> Rows:
    """The fewest rows that hold all that the elements of y ever reach; `links` are those of `scalar_links`."""
    reached = reached_scalars(facts, layout, relation, steps_to_fill(facts, relation.site))
    flat = reached.reshape(reached.shape[0], -1)
    often = flat.mean(1) if flat.size else np.zeros(flat.shape[0])
    least = np.unique(often[often > 0])[::-1]
    least = least[np.linspace(0, least.size - 1, min(least.size, _TRIED)).astype(int)] if least.size else least
    best, fewest = np.zeros(flat.shape[0], bool), int(flat.sum(0).max(initial=0))
    for bound in least:
        # What a wide scalar acts on is wide, too, so that no narrow row is made of wide ones.
        wide = links[often >= bound].any(0) & (often > 0)
        count = int(wide.sum()) + int((flat & ~wide[:, None]).sum(0).max(initial=0))
        if count <= fewest:
            best, fewest = wide, count
    others = reached & ~best.reshape(-1, *[1] * (reached.ndim - 1))
    return Rows(relation, np.flatnonzero(best), listed_scalars(others), reached)


def scalar_links(facts: Facts, layout: Layout) -> np.ndarray:
    """(S, S): whether the state scalar of the row ever acts on that of the column, in any sample; each on itself."""
    nodes, count = find_nodes(facts), layout.group.num_positions
    all_positions = np.arange(count)
    node = np.stack([nodes.of[s.leaf][all_positions if s.index is None else s.index] for s in layout.slots])
    step, visited = one_step(facts).tocsr(), set()
    total = np.eye(layout.size, dtype=bool)
    for sample in node.T:
        links = step[sample][:, sample].toarray() | (sample[:, None] == sample[None])
        if links.tobytes() not in visited:  # samples are mostly alike
            visited.add(links.tobytes())
            total |= _closure(links)
    return total


def _closure(links: np.ndarray) -> np.ndarray:
    """What leads where in any number of steps. Products of floats, since numpy multiplies whole numbers slowly."""
    closed = links
    while True:
        further = closed.astype(np.float32) @ closed.astype(np.float32) > 0
        if further.sum() == closed.sum():
            return closed
        closed = further


def colours_of(rows: Sequence[Rows], links: np.ndarray) -> np.ndarray:
    """By state scalar the number of the pull that reads it for narrow rows; −1 for those that are in none.

    Two scalars have one colour if no state and no element of y reaches both.
    """
    used = np.zeros(links.shape[0], bool)
    for r in rows:
        used[r.narrow[r.narrow >= 0]] = True
    patterns = [_patterns(r.reached.reshape(links.shape[0], -1)) for r in rows]
    sources = np.concatenate([links.T, *patterns], 1).astype(np.float32)
    meets = sources @ sources.T > 0
    colour, blocked = np.full(links.shape[0], -1), np.zeros((0, links.shape[0]), bool)
    for s in np.flatnonzero(used):
        free = np.flatnonzero(~blocked[:, s])
        if not free.size:
            blocked, free = np.concatenate([blocked, np.zeros((1, links.shape[0]), bool)]), np.array([len(blocked)])
        colour[s] = free[0]
        blocked[free[0]] |= meets[s]
    return colour


def _patterns(reached: np.ndarray) -> np.ndarray:
    """The columns that differ."""
    packed = np.ascontiguousarray(np.packbits(reached, axis=0).T)
    keys = packed.view([("", packed.dtype)] * packed.shape[1]).reshape(-1)
    return reached[:, np.unique(keys, return_index=True)[1]]
