"""The peer's names of findings and its report, over Etrax's compiler graph."""

from __future__ import annotations

from typing import IO

import brainstate

from ..._errors import visible
from ...compiler.ir import Path
from ...graph import CompilationRecord, ETraceGraph, groups_of_weights, traced_leaves

_RULE = "=" * 80


class CompilationReport:
    """What a graph says, as lists and as text.

    Etrax finds weights wherever they meet data, so weights that a plain JAX operation uses are among `etrace_weights`;
    `excluded_weights` are those that no trace is carried for.
    """

    def __init__(self, graph: ETraceGraph):
        self._graph = graph

    @property
    def graph(self) -> ETraceGraph:
        return self._graph

    @property
    def hidden_groups(self) -> list[tuple[int, list[Path]]]:
        """By group, its number and the paths of its states."""
        return [(g.index, list(g.hidden_paths)) for g in self.graph.hidden_groups]

    @property
    def etrace_weights(self) -> list[tuple[Path, list[int]]]:
        """By weight, its path and the numbers of its groups."""
        return list(groups_of_weights(self.graph).items())

    @property
    def excluded_weights(self) -> list[tuple[Path, str | None]]:
        """Parameters without a relation, and the kind of the record that says why."""
        traced = {path for path, _ in self.etrace_weights}
        reasons = {r.weight_path: str(r.kind) for r in reversed(self.diagnostics) if r.weight_path is not None}
        return [(path, reasons.get(path)) for path in self._states(brainstate.ParamState) if path not in traced]

    @property
    def dynamic_states(self) -> list[Path]:
        """Short-term states that are in no group."""
        grouped = {path for _, paths in self.hidden_groups for path in paths}
        return [path for path in self._states(brainstate.ShortTermState) if path not in grouped]

    def _states(self, kind: type) -> list[Path]:
        return [path for path, s in self.graph.module_info.retrieved_model_states.items() if isinstance(s, kind)]

    @property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        return tuple(self.graph.diagnostics)

    @property
    def counts(self) -> dict[str, int]:
        levels = [str(r.level) for r in self.diagnostics]
        lists = ("hidden_groups", "etrace_weights", "excluded_weights")
        return {name: len(getattr(self, name)) for name in lists} | {
            "warnings": levels.count("warning"),
            "errors": levels.count("error"),
        }

    def to_str(self, level: int = 1) -> str:
        """The lists as text; at level 2 with the records that warn."""
        groups = [f"Group {i}: {paths}" for i, paths in self.hidden_groups]
        weights = [f"Weight {i}: {self._weight(path, at)}" for i, (path, at) in enumerate(self.etrace_weights)]
        left = [
            f"Weight {i}: {p}{f'  (excluded: {why})' * (why is not None)}"
            for i, (p, why) in enumerate(self.excluded_weights)
        ]
        parts = {
            "The hidden groups are:": groups,
            "The dynamic (non-hidden) states are:": [
                f"Dynamic state {i}: {p}" for i, p in enumerate(self.dynamic_states)
            ],
            "The weight parameters which are associated with the hidden states are:": weights,
            "The non-etrace weight parameters are:": left,
        }
        if level >= 2:
            parts["Compiler diagnostics:"] = [str(r) for r in self.diagnostics if str(r.level) != "info"]
        shown = {title: rows for title, rows in parts.items() if rows or title.startswith("The hidden")}
        texts = [f"{title}\n\n" + "".join(f"   {row}\n" for row in rows) for title, rows in shown.items()]
        return f"{_RULE}\n" + f"\n{_RULE}\n".join(texts)

    def _weight(self, path: Path, groups: list[int]) -> str:
        leaves = traced_leaves(self.graph, path)
        inner = f" ({', '.join(leaves)})" if leaves else ""
        numbers = f"hidden group {groups[0]}" if len(groups) == 1 else f"hidden groups {groups}"
        return f"{path}  is associated with {numbers}{inner}"

    def show(self, level: int = 1, *, file: IO[str] | None = None) -> None:
        """Print `to_str(level)`."""
        print(visible(self.to_str(level)), file=file)

    def __repr__(self) -> str:
        return f"CompilationReport({', '.join(f'{k}={v}' for k, v in self.counts.items())})"
