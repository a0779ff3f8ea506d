"""Edge lists: products `w[e] * h[pre[e]]`, summed at `post[e]`, that connect positions by trainable entries.

Such a product is written element by element, but does the work of a sparse matrix: it is cut from the recurrence as one.
"""

from __future__ import annotations

import numpy as np

from ._edges import Edges
from .pattern import Dep, components


def joined_by_list(edges: Edges, site: int) -> int:
    """How many state elements an elementwise product joins, if it is an edge list; else 0.

    It is one if its elements carry states to other positions, each from one element to one. `edges` are those of the step
    with the product cut. Within a leaf, an element that arrives elsewhere is enough; between leaves, whose positions are
    not known yet, fan-out together with fan-in decides.
    """
    most = 0
    for source, first in edges.into(("y", site), "h").items():
        for target, then in edges.out(("y", site), "h").items():
            start, end = _only_source(first), _only_target(then)
            if start is None or end is None:
                continue
            links = np.stack([start, end])[:, (start >= 0) & (end >= 0)]
            same = source == target
            if (links[0] != links[1]).any() if same else links.size and _fan(links) > 1 and _fan(links[::-1]) > 1:
                most = max(most, _largest(links, same))
    return most


def _largest(links: np.ndarray, same: bool) -> int:
    """Size of the largest set of elements that links join."""
    left, right = links if same else (links[0], links[1] + links[0].max() + 1)
    return int(np.bincount(components(int(max(left.max(), right.max())) + 1, left, right)).max())


def _only_source(first: Dep) -> np.ndarray | None:
    """For each element of the product, the one state element that it reads (-1: none); None if it reads several."""
    block_source = np.full(int(first.part.all_labels().max(initial=-1)) + 1, -1, np.int64)
    for m in first.maps:
        flat = m.reshape(-1)
        at = np.flatnonzero(flat >= 0)
        found = block_source[flat[at]]
        if ((found >= 0) & (found != at)).any():
            return None
        block_source[flat[at]] = at
        if (block_source[flat[at]] != at).any():  # two elements of one map share a block
            return None
    return block_source[first.part.all_labels()]


def _only_target(then: Dep) -> np.ndarray | None:
    """For each element of the product, the one state element that it reaches (-1: none); None if it reaches several."""
    if then.part.labels is not None or len(then.maps) != 1:
        return None
    return then.maps[0].reshape(-1).astype(np.int64)


def _fan(links: np.ndarray) -> int:
    """The most distinct ends of one start."""
    pairs = np.unique(links, axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max())
