"""A graph in words: hidden groups, other dynamic states, weights with their groups, weights with none."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
    why = {path: dict.fromkeys(r.kind.value for r in graph.explain(weight_path=path)) for path in alone}
    parts = {
        "The hidden groups are:": groups,
        "The dynamic (non-hidden) states are:": _dynamic_states(graph),
        "The weights with a trace are:": with_groups,
        "The weights without a trace are:": [format_path(path) + _listed(kinds) for path, kinds in why.items()],
    }
    texts = ["\n".join([title, *(f"  {row}" for row in rows or ["none"])]) for title, rows in parts.items()]
    return f"\n{_RULE}\n".join(texts)


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


def _listed(names: Collection[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _why_not(met: Mapping[Path, BoundState], key: Path) -> str:
    if key not in met:
        return " (the step does not touch it)"
    return " (a hidden state without derivatives)" if met[key].role is Role.HIDDEN else ""
