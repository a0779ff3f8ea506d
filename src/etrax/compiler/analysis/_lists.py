"""Edge lists: products `w[e] * h[pre[e]]`, summed at `post[e]`, that connect positions by trainable entries.

Such a product is written element by element, but does the work of a sparse matrix, and is cut from the recurrence like
one.
"""

from __future__ import annotations

import numpy as np

from ..primitives import Dep, components
from ._edges import Edges
from ._positions import MAX_STATES

# So many links are looked at first: the analysis runs in numpy on the host, whatever the device is.
_FEW = 1 << 16


def joined_by_list(edges: Edges, site: int) -> int:
    """How many state elements an elementwise product joins, if it is an edge list; else 0.

    It is one if its elements carry states to other positions, each from one element to one. `edges` are those of the
    step with the product cut. Within a leaf, an element that arrives elsewhere is enough; between leaves, whose
    positions are not known yet, fan-out together with fan-in decides.
    """
    most = 0
    for source, first in edges.states_into(site).items():
        start = _only_source(first)
        for target, then in edges.states_from(site).items():
            end = _only_target(then)
            if start is None or end is None:
                continue
            live = (start >= 0) & (end >= 0)
            left, right = (start, end) if live.all() else (start[live], end[live])
            same = source == target
            if (left != right).any() if same else _fans(left, right) and _fans(right, left):
                most = max(most, _largest(left, right, same))
    return most


def _largest(left: np.ndarray, right: np.ndarray, same: bool) -> int:
    """Size of the largest set of elements that links join; a few links are enough to see that it is large."""
    if not same:
        right = right + (left.max() + 1)
    for n in (_FEW, left.size):
        largest = int(np.bincount(components(int(max(left[:n].max(), right[:n].max())) + 1, left[:n], right[:n])).max())
        if largest > MAX_STATES:
            break
    return largest


def _fans(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether some element on the left has several on the right."""
    if not left.size:
        return False
    one = np.empty(int(left.max()) + 1, right.dtype)
    one[left] = right
    return bool((one[left] != right).any())


def _only_source(first: Dep) -> np.ndarray | None:
    """For each element of the product, the one state element that it reads (-1: none); None if it reads several."""
    block_source = np.full(int(first.part.all_labels().max(initial=-1)) + 1, -1, np.int32)
    for m in first.maps:
        flat = m.reshape(-1)
        at = np.flatnonzero(flat >= 0).astype(np.int32)
        sources = block_source[flat[at]]
        if ((sources >= 0) & (sources != at)).any():
            return None
        block_source[flat[at]] = at
        if (block_source[flat[at]] != at).any():  # two elements of one map share a block
            return None
    return block_source[first.part.all_labels()]


def _only_target(then: Dep) -> np.ndarray | None:
    """For each element of the product, the one state element that it reaches (-1: none); None if it reaches several."""
    if then.part.labels is not None or len(then.maps) != 1:
        return None
    return then.maps[0].reshape(-1)
