"""The structure of a group's recurrence, as a visible tag, for the report and the compiler API."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from ..primitives import Dep, components
from ._nodes import StateNode
from ._positions import Group

if TYPE_CHECKING:
    from ._facts import Facts


class Tag(StrEnum):
    """Structure of a group's recurrence through the cut step."""

    DIAGONAL = "diagonal"
    BLOCK = "block"
    SPARSE = "sparse"
    DENSE = "dense"


def tag_of(facts: Facts, group: Group) -> Tag:
    deps = [
        (a, b, facts.edges.dep[StateNode(a), StateNode(b)])
        for a in group.leaves
        for b in group.leaves
        if (StateNode(a), StateNode(b)) in facts.edges.dep and not facts.carries(a, b)
    ]
    if not deps:
        return Tag.DIAGONAL if group.num_state == 1 else Tag.BLOCK
    return Tag.DENSE if any(d.part.labels is not None for *_, d in deps) or _fills(group, deps) else Tag.SPARSE


def _fills(group: Group, deps: Sequence[tuple[int, int, Dep]]) -> bool:
    """Whether positions reach most of the positions that they are joined with."""
    pairs = [np.stack([group.place_of(a).reshape(-1)[m >= 0], group.place_of(b).reshape(-1)[m[m >= 0]]])
             for a, b, d in deps for m in (m.reshape(-1) for m in d.maps)]  # fmt: skip
    links = np.unique(np.concatenate(pairs, 1), axis=1)
    joined = np.bincount(components(group.num_positions, *links))
    return 4 * links.shape[1] > 3 * int((joined.astype(np.int64) ** 2)[joined > 1].sum())
