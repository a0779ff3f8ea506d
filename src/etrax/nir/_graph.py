"""A NIR graph as a flat list of nodes and edges, checked, and the order in which one step visits them."""

from __future__ import annotations

import graphlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from .._arguments import check_path, foreign, short
from .._errors import ArgumentError, ArgumentTypeError, NotSupportedError, need
from ._hdf5 import read_content
from ._nodes import KINDS

if TYPE_CHECKING:
    from types import ModuleType

Name = tuple[str, ...]  # of a node: the subgraphs that it is in, then its own
Edge = tuple[Name, Name]


class Graph(Protocol):
    """A `nir.NIRGraph`."""

    nodes: dict[str, object]
    edges: list[tuple[str, str]]
    metadata: dict[str, object]


@dataclass(frozen=True)
class Flat:
    """Nodes by name and edges between them, without subgraphs."""

    nodes: dict[Name, object]
    edges: list[Edge]

    @cached_property
    def into(self) -> Mapping[Name, list[Name]]:
        """The nodes that lead to each node."""
        sources: dict[Name, list[Name]] = {name: [] for name in self.nodes}
        for source, target in self.edges:
            sources[target].append(source)
        return sources

    def of_kind(self, kind: str, graph: Name = ()) -> list[Name]:
        """Inputs or outputs of the graph, or of the subgraph of that name."""
        depth = len(graph) + 1
        return [name for name, node in self.nodes.items() if kind_of(node) == kind and len(name) == depth]


def nir_package() -> ModuleType:
    need("h5py", "`etrax.nir`", "nir")  # nir imports it
    return need("nir", "`etrax.nir`", "nir")


def shown(name: Iterable[str]) -> str:
    """A node by its name, which is whatever a file says."""
    return f"'{foreign('.'.join(name))}'"


def kind_of(node: object) -> str:
    return type(node).__name__


def as_graph(graph: object) -> Graph:
    """A graph as it is, or the one in a file."""
    nir = nir_package()
    if isinstance(graph, nir.NIRGraph):
        return cast(Graph, graph)
    if isinstance(graph, nir.NIRNode):
        raise ArgumentTypeError(f"`graph` is one node ({kind_of(graph)}): put it into a `nir.NIRGraph`.")
    file = check_path("graph", graph)
    if not file.is_file():
        raise ArgumentError(f"there is no file {str(file)!r}.")
    return _built(nir, (), read_content(file), f"in {str(file)!r}")


def _built(nir: ModuleType, name: Name, content: object, where: str) -> Graph:
    """The graph that a file describes, built node by node, so that an error names the node which cannot be built."""
    if not isinstance(content, dict) or _kind_in(content) != "NIRGraph":
        raise ArgumentError(f"{where} there is no graph, but {short(content)}.")
    nodes, metadata = content.get("nodes"), content.get("metadata", {})
    if not isinstance(nodes, dict) or not isinstance(metadata, dict):
        raise ArgumentError(f"the graph {shown(name)} {where} has no nodes, or no list of edges.")
    edges = _edges(name, content.get("edges", ()), where)
    built = {}
    for key, node in nodes.items():
        path = (*name, str(key))
        kind = _kind_in(node)
        if kind == "NIRGraph":
            built[key] = _built(nir, path, node, where)
            continue
        if kind not in KINDS:
            raise _not_served(path, str(kind), where)
        try:
            built[key] = nir.dict2NIRNode(node)
        except Exception as error:  # assertions, missing and unknown arguments
            raise ArgumentError(f"node {shown(path)} ({kind}) {where} is malformed: {foreign(error)}") from error
    try:
        return nir.NIRGraph(built, edges, metadata=metadata, type_check=False)
    except Exception as error:
        raise ArgumentError(f"the graph {shown(name)} {where} is malformed: {foreign(error)}") from error


def _kind_in(content: object) -> str:
    """What a stored node says that it is."""
    kind = content.get("type") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else f"unknown ({short(kind)})"


def _edges(name: Name, stored: object, where: str) -> list[tuple[str, str]]:
    """Pairs of names."""
    pairs: list[tuple[str, str]] = []
    for pair in np.atleast_1d(np.asarray(stored, dtype=object)):
        texts = [e.decode("utf8", "replace") if isinstance(e, bytes) else e for e in np.ravel(pair)]
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise ArgumentError(
                f"the graph {shown(name)} {where} has an edge {short(list(texts))}; expected two names."
            )
        pairs.append((texts[0], texts[1]))
    return pairs


def _not_served(name: Name, kind: str, where: str = "") -> NotSupportedError:
    return NotSupportedError(
        f"node {shown(name)} {where + ' ' if where else ''}is of kind {kind}, which is not supported. Supported are "
        f"{', '.join(KINDS)} and NIRGraph."
    )


def flat(graph: Graph, prefix: Name = ()) -> Flat:
    """Subgraphs opened: an edge to one goes to its input, an edge from one leaves its output."""
    nodes: dict[Name, object] = {}
    edges: list[Edge] = []
    ends: dict[str, Mapping[str, list[Name]]] = {}
    for key, node in graph.nodes.items():
        path = (*prefix, key)
        if kind_of(node) == "NIRGraph":
            inner = flat(node, path)  # pyright: ignore[reportArgumentType]
            nodes |= inner.nodes
            edges += inner.edges
            ends[key] = {kind: inner.of_kind(kind, path) for kind in ("Input", "Output")}
        elif kind_of(node) not in KINDS:
            raise _not_served(path, kind_of(node))
        else:
            nodes[path] = node
            ends[key] = {"Input": [path], "Output": [path]}
    for pair in graph.edges:
        for key in pair:
            if key not in ends:
                raise ArgumentError(
                    f"edge ({shown(pair[:1])}, {shown(pair[1:])}) of the graph {shown(prefix)}: it has no node "
                    f"{shown([key])}."
                )
        edges.append((_end(ends, prefix, pair[0], "Output"), _end(ends, prefix, pair[1], "Input")))
    doubled = [edge for edge, times in Counter(edges).items() if times > 1]
    if doubled:
        raise ArgumentError(f"the edge from {shown(doubled[0][0])} to {shown(doubled[0][1])} occurs twice.")
    return Flat(nodes, edges)


def _end(ends: Mapping[str, Mapping[str, list[Name]]], prefix: Name, key: str, kind: str) -> Name:
    nodes = ends[key][kind]
    if len(nodes) != 1:
        raise NotSupportedError(
            f"the subgraph {shown((*prefix, key))} has {len(nodes)} nodes of kind {kind}; an edge to or from it needs "
            "exactly one."
        )
    return nodes[0]


def depths(graph: Flat) -> dict[Name, int]:
    """How many edges a node is away from the nearest input; nodes that no input reaches are left out."""
    layer, distance = graph.of_kind("Input"), 0
    depth = dict.fromkeys(layer, distance)
    while layer:
        before, distance = set(layer), distance + 1
        layer = [b for a, b in graph.edges if a in before and b not in depth]
        depth |= dict.fromkeys(layer, distance)
    return depth


def schedule(graph: Flat, reads_past: Collection[Name]) -> tuple[list[Name], frozenset[Edge]]:
    """The order of one step, and the edges that carry the output of the step before.

    A cycle is opened behind its neuron that is farthest from the inputs. Nodes of `reads_past` give what they give
    without their input of this step, so that edges into them close no cycle.
    """
    delayed: set[Edge] = set()
    depth = depths(graph)
    while True:
        before = {name: [] for name in graph.nodes}
        for source, target in graph.edges:
            if target not in reads_past and (source, target) not in delayed:
                before[target].append(source)
        try:
            return list(graphlib.TopologicalSorter(before).static_order()), frozenset(delayed)
        except graphlib.CycleError as error:
            ring = error.args[1]
        behind = [(a, b) for a, b in itertools.pairwise(ring) if KINDS[kind_of(graph.nodes[a])].neuron]
        if not behind:
            raise NotSupportedError(
                f"the cycle {' -> '.join(map(shown, ring))} has no neuron in it, nor a delay of a step or more, "
                "so the order of its nodes is undefined. Put a `nir.Delay` into it."
            )
        delayed.add(max(behind, key=lambda edge: (depth.get(edge[0], -1), edge)))
