"""Where the boxes of a drawing stand: four columns, one band under the other, no two boxes on top of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ._drawing import Column, Drawing, Node

WIDTH = {Column.PARAMETER: 216, Column.OP: 176, Column.GROUP: 176, Column.OUTPUT: 124}
GAP = {Column.PARAMETER: 48, Column.OP: 72, Column.GROUP: 48, Column.OUTPUT: 0}
LINE, PADDING = 16, 8
ROW_GAP, BAND_GAP, MARGIN = 8, 28, 8
SWEEPS = 4


@dataclass(frozen=True)
class Box:
    """A node's rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True)
class Placed:
    """Boxes by node, and the size of the whole."""

    boxes: Mapping[str, Box]
    width: float
    height: float


def place(drawing: Drawing) -> Placed:
    """Boxes for every node; the same drawing always gives the same boxes."""
    left, width = _columns(drawing)
    boxes: dict[str, Box] = {}
    top = float(MARGIN)
    for band in range(drawing.bands):
        inside = [n for n in drawing.of_band(band) if n.column is not Column.OUTPUT]
        if inside:
            of_band = _band(drawing, inside, left, top)
            boxes |= of_band
            top = max(b.y + b.height for b in of_band.values()) + BAND_GAP
    boxes |= _outputs(drawing, boxes, left)
    height = max((b.y + b.height for b in boxes.values()), default=0) + MARGIN
    return Placed(boxes, width, height)


def height_of(node: Node) -> int:
    return LINE * len(node.lines) + 2 * PADDING


def spread(wanted: Sequence[float], sizes: Sequence[float], gap: float) -> list[float]:
    """Tops of boxes one below the other, none overlapping, with the least squared distance to the wanted middles.

    >>> spread([5, 5, 100], [10, 10, 10], 2)
    [-6.0, 6.0, 95.0]
    """
    if not wanted:
        return []
    from scipy.optimize import isotonic_regression

    # Less the room that the boxes above it take, the tops may be anything that does not decrease.
    above = np.cumsum([0.0, *(size + gap for size in sizes[:-1])])
    free = isotonic_regression(np.asarray(wanted) - np.asarray(sizes) / 2 - above).x
    return (free + above).tolist()


def _columns(drawing: Drawing) -> tuple[dict[Column, float], float]:
    """The left edge of each column that has boxes, and the right edge of the last."""
    left, x, end = {}, float(MARGIN), float(MARGIN)
    for column in Column:
        left[column] = x
        if any(n.column is column for n in drawing.nodes):
            end = x + WIDTH[column]
            x = end + GAP[column]
    return left, end + MARGIN


def _band(drawing: Drawing, inside: Sequence[Node], left: Mapping[Column, float], top: float) -> dict[str, Box]:
    near = _neighbours(drawing)
    columns = {c: [n for n in inside if n.column is c] for c in (Column.PARAMETER, Column.OP, Column.GROUP)}
    params, ops = _untangled(columns[Column.PARAMETER], columns[Column.OP], near)
    lead, follow = (ops, params) if len(ops) >= len(params) else (params, ops)
    middle: dict[str, float] = {}
    y = 0.0
    for n in lead:
        middle[n.id] = y + height_of(n) / 2
        y += height_of(n) + ROW_GAP
    wanted = [_mean([middle[k] for k in near[n.id] if k in middle], 0.0) for n in follow]
    tops = [(n, middle[n.id] - height_of(n) / 2) for n in lead] + _beside(follow, wanted)
    low = min((y for _, y in tops), default=0.0)
    high = max((y + height_of(n) for n, y in tops), default=0.0)
    boxes = {n.id: Box(left[n.column], top + y - low, WIDTH[n.column], height_of(n)) for n, y in tops}
    # A group is as tall as the ops beside it, so that their arrows run straight.
    for n in columns[Column.GROUP]:
        boxes[n.id] = Box(left[n.column], top, WIDTH[n.column], max(height_of(n), high - low))
    return boxes


def _untangled(
    params: Sequence[Node], ops: Sequence[Node], near: Mapping[str, list[str]]
) -> tuple[list[Node], list[Node]]:
    """Both columns ordered by the mean place of their neighbours, a few times over: few crossings."""
    params, ops = list(params), list(ops)
    for _ in range(SWEEPS):  # beginning with the ops as the step runs them
        params = _sorted_by(params, ops, near)
        ops = _sorted_by(ops, params, near)
    return params, ops


def _sorted_by(nodes: list[Node], others: list[Node], near: Mapping[str, list[str]]) -> list[Node]:
    at = {n.id: i for i, n in enumerate(others)}
    key = {n.id: _mean([at[k] for k in near[n.id] if k in at], float(i)) for i, n in enumerate(nodes)}
    return sorted(nodes, key=lambda n: key[n.id])  # stable: ties keep their order


def _outputs(drawing: Drawing, boxes: Mapping[str, Box], left: Mapping[Column, float]) -> dict[str, Box]:
    nodes, near = [n for n in drawing.nodes if n.column is Column.OUTPUT], _neighbours(drawing)
    # Beside the ops that lead to it, so that their arrows do not run behind groups.
    ops = {n.id for n in drawing.nodes if n.column is Column.OP}
    around = [[k for k in near[n.id] if k in ops] or near[n.id] for n in nodes]
    tops = _beside(nodes, [_mean([boxes[k].middle for k in ids if k in boxes], 0.0) for ids in around])
    down = max(0.0, MARGIN - min((y for _, y in tops), default=MARGIN))
    return {n.id: Box(left[Column.OUTPUT], y + down, WIDTH[Column.OUTPUT], height_of(n)) for n, y in tops}


def _beside(nodes: Sequence[Node], wanted: Sequence[float]) -> list[tuple[Node, float]]:
    """Nodes with their tops, in the order of the middles that they want and as near to them as they can be."""
    order = sorted(range(len(nodes)), key=lambda i: (wanted[i], i))
    tops = spread([wanted[i] for i in order], [height_of(nodes[i]) for i in order], ROW_GAP)
    return [(nodes[i], top) for i, top in zip(order, tops, strict=True)]


def _neighbours(drawing: Drawing) -> dict[str, list[str]]:
    near: dict[str, list[str]] = {n.id: [] for n in drawing.nodes}
    for link in drawing.links:
        near[link.source].append(link.target)
        near[link.target].append(link.source)
    return near


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
