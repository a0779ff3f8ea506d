"""The graph of a report as nodes and links: parameters → weight ops → hidden groups → outputs, in bands.

A band holds a hidden group with the weight ops that lead to it and their parameters; ops that lead to outputs only, and
those that lead nowhere, have bands of their own. A path that also runs through a hidden group or another op is drawn
through that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from ..compiler.ir import format_path
from ..rules import Kind
from ._alike import shortened
from ._text import ORDER, kinds_text, plural, shape_text

if TYPE_CHECKING:
    from ._report import Report


class Column(IntEnum):
    PARAMETER = 0
    OP = 1
    GROUP = 2
    OUTPUT = 3


@dataclass(frozen=True)
class Node:
    """A box: its lines of text, what it says in full, where its link leads, and the number of its band."""

    id: str
    column: Column
    lines: tuple[str, ...]
    name: str
    detail: str
    href: str
    band: int
    kind: Kind | None = None
    marked: bool = False  # with the shape of its verdict


@dataclass(frozen=True)
class Link:
    """An arrow; `reads` says that a weight op reads the state of a group."""

    source: str
    target: str
    kind: Kind | None = None
    reads: bool = False


@dataclass(frozen=True)
class Drawing:
    """Nodes in reading order within each column, and links between them."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    bands: int

    def of_band(self, band: int) -> list[Node]:
        return [n for n in self.nodes if n.band == band]


def drawing_of(report: Report) -> Drawing:
    """The whole graph."""
    bands = _bands(report)
    nodes = [*_parameters(report, bands), *_ops(report, bands), *_groups(report, bands), *_outputs(report, bands)]
    return Drawing(tuple(nodes), tuple(_links(report)), len(report.groups) + 2)


def part_of(drawing: Drawing, band: int) -> Drawing:
    """One band, with whatever it touches outside."""
    inside = {n.id for n in drawing.of_band(band) if n.column in (Column.PARAMETER, Column.OP)}
    links = [link for link in drawing.links if inside & {link.source, link.target}]
    touched = {end for link in links for end in (link.source, link.target)}
    nodes = [n for n in drawing.nodes if n.id in inside or (n.id in touched and n.column > Column.OP)]
    ids = {n.id for n in nodes}
    links = [k for k in drawing.links if {k.source, k.target} <= ids and (k in links or k.kind is None)]
    return Drawing(tuple(nodes), tuple(links), drawing.bands)


def folded(drawing: Drawing, href: str) -> Drawing:
    """Each band's parameters and ops as one box, which links to `href` with its number."""
    nodes, owner = [], {}
    for band in range(drawing.bands):
        inside = [n for n in drawing.of_band(band) if n.column in (Column.PARAMETER, Column.OP)]
        if inside:
            nodes.append(_fold(inside, band, href))
            owner |= {n.id: nodes[-1].id for n in inside}
    links = [replace(k, source=owner.get(k.source, k.source), target=owner.get(k.target, k.target), kind=None)
             for k in drawing.links]  # fmt: skip
    links = list(dict.fromkeys(k for k in links if k.source != k.target))
    return Drawing((*nodes, *(n for n in drawing.nodes if n.column > Column.OP)), tuple(links), drawing.bands)


def worst(kinds: Iterable[Kind]) -> Kind | None:
    """The verdict that needs most attention."""
    return min(kinds, key=ORDER.index, default=None)


def _fold(inside: Sequence[Node], band: int, href: str) -> Node:
    kinds = [n.kind for n in inside if n.column is Column.PARAMETER and n.kind is not None]
    ops = sum(n.column is Column.OP for n in inside)
    head, counts = plural(len(kinds), "parameter"), kinds_text(kinds)
    detail = f"{head} in {plural(ops, 'weight op')}: {counts}."
    return Node(
        f"fold-{band}", Column.OP, (head, *counts.split(", ")), f"{head}: {counts}", detail, f"{href}{band}", band,
        worst(kinds), True,
    )  # fmt: skip


def _bands(report: Report) -> dict[tuple[str, int], int]:
    """Band of every op and group: groups in the order in which they act on each other, then outputs, then nothing."""
    order = {g: k for k, g in enumerate(_order(report))}
    outputs, nothing = len(order), len(order) + 1
    bands = {("group", g): band for g, band in order.items()}
    for j in reversed(range(len(report.ops))):  # what an op reaches comes later in the step, but for inner loops
        op = report.ops[j]
        further = [bands["op", k] for k in op.ops if ("op", k) in bands]
        bands["op", j] = order[op.groups[0]] if op.groups else min([*further, outputs if op.outputs else nothing])
    return bands


def _order(report: Report) -> list[int]:
    """Groups after those that their ops read; where that goes round, by number."""
    before: dict[int, set[int]] = {g: set() for g in range(len(report.groups))}
    for op in report.ops:
        for g in op.groups:
            before[g] |= set(op.reads) - {g}
    for g, line in enumerate(report.groups):
        for other in line.groups:
            before[other].add(g)
    done: list[int] = []
    while before:
        free = [g for g, b in before.items() if not b - set(done)]
        done.append(min(free or before))
        del before[done[-1]]
    return done


def _parameters(report: Report, bands: dict[tuple[str, int], int]) -> Iterable[Node]:
    nothing = len(report.groups) + 1
    for i, p in enumerate(report.parameters):
        name, shape = format_path(p.path, "params")[1:-1], shape_text(p.shape, "scalar")
        used = [bands["op", j] for j, op in enumerate(report.ops) if i in op.parameters]
        yield Node(
            f"parameter-{i}",
            Column.PARAMETER,
            (name, f"{shape} · {p.verdict.kind}"),
            f"parameter {name}, {p.verdict.kind}",
            f"{name} ({shape}) is {p.verdict.kind}: {shortened(p.verdict.full)}",
            f"row-{i}",
            min(used, default=nothing),
            p.verdict.kind,
            True,
        )


def _ops(report: Report, bands: dict[tuple[str, int], int]) -> Iterable[Node]:
    for j, op in enumerate(report.ops):
        names = [format_path(report.parameters[i].path, "params") for i in op.parameters]
        shown = op.primitive if op.family == "elementwise" else op.family
        at = f" at {op.source}" if op.source else ""
        reads = f"; reads {_listed('group', op.reads)}" if op.reads else ""
        yield Node(
            f"op-{j}",
            Column.OP,
            (shown, op.source or "no source line"),
            f"weight op {shown} of {', '.join(names)}",
            f"`{op.primitive}`{at}, the weight op of {', '.join(names)}{reads}",
            f"row-{min(op.parameters)}",
            bands["op", j],
            worst(report.parameters[i].verdict.kind for i in op.parameters),
        )


def _groups(report: Report, bands: dict[tuple[str, int], int]) -> Iterable[Node]:
    for g, line in enumerate(report.groups):
        shape = shape_text(line.positions, "one")
        first, *rest = (s[1:-1] for s in line.states)
        states = ", ".join([first, *rest])
        shown = f"{first}, +{len(rest)}" if rest and len(states) > 20 else states
        size = f"{plural(line.num_state, 'state')} each · {line.structure}"
        across = f" Across positions: {'; '.join(map(shortened, line.across))}." if line.across else ""
        yield Node(
            f"group-{g}",
            Column.GROUP,
            (f"group {g}", shown, f"{shape} positions", size),
            f"hidden group {g}: {states}",
            f"Group {g} ({states}): {shape} positions, {plural(line.num_state, 'state')} each, recurrence "
            f"{line.structure}.{across}",
            f"group-row-{g}",
            bands["group", g],
        )


def _outputs(report: Report, bands: dict[tuple[str, int], int]) -> Iterable[Node]:
    for k, name in enumerate(report.outputs):
        yield Node(
            f"output-{k}", Column.OUTPUT, (name[1:-1],), f"output {name[1:-1]}", f"The output {name} of the step.",
            "graph", len(report.groups),
        )  # fmt: skip


def _links(report: Report) -> Iterable[Link]:
    kinds = [p.verdict.kind for p in report.parameters]
    for j, op in enumerate(report.ops):
        kind = worst(kinds[i] for i in op.parameters)
        yield from (Link(f"parameter-{i}", f"op-{j}", kinds[i]) for i in op.parameters)
        yield from (Link(f"op-{j}", f"group-{g}", kind) for g in op.groups)
        # Outputs that its groups lead to are reached by their arrows.
        shown = {k for g in op.groups for k in report.groups[g].outputs}
        yield from (Link(f"op-{j}", f"output-{k}", kind) for k in op.outputs if k not in shown)
        # Of a chain of ops each is linked to the next only: arrows past them would say nothing more.
        further = {k for m in op.ops if m != j for k in report.ops[m].ops}
        direct = [k for k in op.ops if k != j and k not in further]
        yield from (Link(f"op-{j}", f"op-{k}", kind) for k in direct if not {*op.groups} & {*report.ops[k].reads})
        yield from (Link(f"group-{g}", f"op-{j}", reads=True) for g in op.reads)
    for g, line in enumerate(report.groups):
        yield from (Link(f"group-{g}", f"output-{k}") for k in line.outputs)
        yield from (Link(f"group-{g}", f"group-{other}") for other in line.groups)


def _listed(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
