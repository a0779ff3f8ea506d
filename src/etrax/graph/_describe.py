"""A graph in words: hidden groups, other dynamic states, weights with their groups, weights with none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..compiler.ir import BoundState, Path, Role, format_path
from ._graph import ETraceGraph

_RULE = "=" * 80


def describe(graph: ETraceGraph) -> str:
    """The four parts, with a rule between them."""
    groups = [
        f"{g.index}: {', '.join(map(format_path, g.hidden_paths))} ({g.tag}, {list(g.varshape)})"
        for g in graph.hidden_groups
    ]
    traced = groups_of_weights(graph)
    with_groups = [
        f"{format_path(path)}{_listed(traced_leaves(graph, path))} -> group {', '.join(map(str, numbers))}"
        for path, numbers in traced.items()
    ]
    alone = [path for path in graph.module_info.weight_path_to_invars if path not in traced]
    parts = {
        "The hidden groups are:": groups,
        "The dynamic (non-hidden) states are:": _dynamic_states(graph),
        "The weights with a trace are:": with_groups,
        "The weights without a trace are:": [format_path(path) + _why(graph, path) for path in alone],
    }
    return f"\n{_RULE}\n".join(_part(title, rows) for title, rows in parts.items())


def groups_of_weights(graph: ETraceGraph) -> dict[Path, list[int]]:
    """The numbers of the groups that each weight has a relation to, by its path, in program order."""
    groups: dict[Path, set[int]] = {}
    for r in graph.hidden_param_op_relations:
        groups.setdefault(r.path, set()).update(g.index for g in r.hidden_groups)
    return {path: sorted(numbers) for path, numbers in groups.items()}


def traced_leaves(graph: ETraceGraph, path: Path) -> list[str]:
    """The arrays inside a weight that have a relation, by name; none if the weight is one array."""
    inner = [r.leaf_path[len(path) :] for r in graph.hidden_param_op_relations if r.path == path]
    return [".".join(map(str, keys)) for keys in dict.fromkeys(inner) if keys]


def _dynamic_states(graph: ETraceGraph) -> list[str]:
    bound = graph.module_info.bound
    met = dict(zip(bound.keys, bound.states, strict=True))  # every parameter is among these, met by the step or not
    keys = [key for key, e in met.items() if e.role is not Role.PARAM and e.path not in graph.hid_path_to_group]
    keys += [key for key in bound.known if key not in met]
    return [format_path(key) + _why_not(met, key) for key in keys]


def _part(title: str, rows: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {row}" for row in rows or ["none"])])


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _why_not(met: Mapping[Path, BoundState], key: Path) -> str:
    if key not in met:
        return " (the step does not touch it)"
    return " (a hidden state without derivatives)" if met[key].role is Role.HIDDEN else ""


def _why(graph: ETraceGraph, path: Path) -> str:
    return _listed(list(dict.fromkeys(r.kind.value for r in graph.explain(weight_path=path))))
