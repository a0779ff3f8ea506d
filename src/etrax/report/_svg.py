"""A placed drawing as inline SVG. Colours and fonts come from the page's style sheet."""

from __future__ import annotations

from ..rules import Kind
from ._drawing import Column, Drawing, Link, Node
from ._escape import cut_to, esc
from ._layout import LINE, PADDING, Box, Placed, place

# Advance of one character at the sizes of the style sheet, with room to spare.
MONO, SANS = 7.3, 6.7
SYMBOL = 14
ARROW = 7

# A verdict has a shape as well as a colour: full, half, a square cut off, and empty.
SHAPES = {
    Kind.EXACT: '<circle cx="7" cy="7" r="6"/>',
    Kind.APPROXIMATE: '<circle class="hollow" cx="7" cy="7" r="5.25"/><path d="M7 1a6 6 0 0 0 0 12z"/>',
    Kind.TRUNCATED: '<path d="M1 1h7.5l-3 12H1z"/><path class="hollow" d="M11.8 1.75h1.45v10.5H8.8z"/>',
    Kind.UNUSED: '<circle class="hollow" cx="7" cy="7" r="5.25"/>',
}


def symbols() -> str:
    """The shapes and the arrow heads, once for a page."""
    shapes = "".join(f'<symbol id="shape-{k}" viewBox="0 0 14 14">{body}</symbol>' for k, body in SHAPES.items())
    return f'<svg class="symbols" width="0" height="0" aria-hidden="true" focusable="false"><defs>{shapes}</defs></svg>'


def symbol(kind: Kind) -> str:
    """A verdict's shape, for use in text."""
    return (
        f'<svg class="symbol {kind}" width="14" height="14" aria-hidden="true" focusable="false">'
        f'<use href="#shape-{kind}"/></svg>'
    )


def svg_of(drawing: Drawing, label: str, prefix: str) -> str:
    """The drawing; ids of nodes get the prefix, so that a page can hold several."""
    placed = place(drawing)
    links = "".join(_link(k, placed, prefix) for k in drawing.links)
    nodes = "".join(_node(n, placed.boxes[n.id], prefix) for n in drawing.nodes)
    w, h = _number(placed.width), _number(placed.height)
    return (
        f'<svg class="graph" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="group" aria-label="{esc(label)}">'
        f'<g class="links" aria-hidden="true">{links}</g><g class="nodes">{nodes}</g></svg>'
    )


def _node(node: Node, box: Box, prefix: str) -> str:
    x, y = box.x, box.y
    indent = PADDING + (SYMBOL + 6 if node.marked else 2)
    mark = ""
    if node.marked:
        mark = (
            f'<use class="mark" href="#shape-{node.kind}" x="{_number(x + PADDING)}" '
            f'y="{_number(y + PADDING + 1)}" width="{SYMBOL}" height="{SYMBOL}"/>'
        )
    lines = "".join(_line(node, i, x + indent, y, box.width - indent - PADDING) for i in range(len(node.lines)))
    classes = f"node {node.column.name.lower()} {node.kind or 'plain'}"
    return (
        f'<a id="{prefix}{node.id}" class="{classes}" href="#{node.href}" aria-label="{esc(node.name)}">'
        f"<title>{esc(node.detail)}</title>"
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(box.width)}" height="{_number(box.height)}" rx="6"/>'
        f"{mark}{lines}</a>"
    )


def _line(node: Node, i: int, x: float, y: float, room: float) -> str:
    code = (i == 0 and node.column in (Column.PARAMETER, Column.OUTPUT)) or (i == 1 and node.column is Column.GROUP)
    text = cut_to(node.lines[i], int(room / (MONO if code else SANS)))
    kind = "code" if code else "head" if i == 0 else "small"
    return f'<text class="{kind}" x="{_number(x)}" y="{_number(y + PADDING + LINE * i + 12)}">{esc(text)}</text>'


def _link(link: Link, placed: Placed, prefix: str) -> str:
    a, b = placed.boxes[link.source], placed.boxes[link.target]
    if a.x == b.x:
        path = _within_column(a, b)
    elif link.reads:
        path = _back(a, b)
    else:
        path = _forward(a, b)
    kind = "reads" if link.reads else f"flow {link.kind or 'plain'}"
    ends = f'data-from="{prefix}{link.source}" data-to="{prefix}{link.target}"'
    return f'<g class="link {kind}" {ends}>{path}</g>'


def _forward(a: Box, b: Box) -> str:
    """From the right edge of a to the left edge of b, as straight as b's height allows."""
    x, y = a.x + a.width, a.middle
    end = b.x - ARROW
    at = min(max(y, b.y + 12), b.y + b.height - 12)
    bend = (end - x) / 2
    return _curve((x, y), (x + bend, end - bend), (end, at)) + _head(b.x, at, 1)


def _back(a: Box, b: Box) -> str:
    """From the left edge of a group to the right edge of an op that reads it, below the arrow that leads there."""
    x, end = a.x, b.x + b.width + ARROW
    y = b.middle + 9
    at = min(max(y, a.y + 12), a.y + a.height - 6)
    bend = (end - x) / 2
    return _curve((x, at), (x + bend, end - bend), (end, y)) + _head(b.x + b.width, y, -1)


def _within_column(a: Box, b: Box) -> str:
    """An arc on the right of the column."""
    x, y, at = a.x + a.width, a.middle - 6, b.middle - 9
    out = x + min(16 + abs(at - y) / 8, 44)
    return _curve((x, y), (out, out), (x + ARROW, at)) + _head(x, at, -1)


def _curve(start: tuple[float, float], bends: tuple[float, float], end: tuple[float, float]) -> str:
    """A curve that leaves and arrives horizontally; `bends` are the x of its two control points."""
    (x, y), (first, second), (to, at) = start, bends, end
    numbers = [_number(n) for n in (x, y, first, y, second, at, to, at)]
    return '<path d="M{} {}C{} {} {} {} {} {}"/>'.format(*numbers)


def _head(x: float, y: float, way: int) -> str:
    """An arrow head with its tip at (x, y)."""
    back = x - way * (ARROW + 1)
    return f'<path class="tip" d="M{_number(x)} {_number(y)}L{_number(back)} {_number(y - 4)}V{_number(y + 4)}z"/>'


def _number(value: float) -> str:
    """At most one decimal, so that the page does not depend on the last bit of a mean."""
    return f"{value:.1f}".removesuffix(".0")
