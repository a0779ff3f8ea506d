"""The peer's names of findings and its report, over Etrax's compiler graph."""

from __future__ import annotations

from enum import StrEnum
from typing import IO

import brainstate

from ..._errors import visible
from ...graph import CompilationRecord, ETraceGraph
from ...ir import Path


class DiagnosticLevel(StrEnum):
    """How much a record matters."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# Findings that are Etrax's own too keep their value; the others name rewrites that Etrax has no need of.
DiagnosticKind = StrEnum(
    "DiagnosticKind",
    {
        name.upper(): name
        for name in (
            "relation_included", "relation_excluded_no_paramstate", "relation_excluded_non_temporal",
            "relation_excluded_shape_mismatch", "relation_excluded_weight_to_weight", "relation_partial_path",
            "trainable_invar_not_paramstate", "cond_if_converted", "cond_conversion_skipped", "scan_unrolled",
            "scan_unroll_skipped", "relation_excluded_sliced_weight", "scan_descent_applied",
            "scan_descent_skipped", "scan_descent_no_relations", "weight_in_while", "control_flow_opaque_fwd",
            "control_flow_recurrent_mixing", "output_bypasses_hidden", "output_bypass_dropped",
            "primitive_inside_nested_jit", "primitive_inside_control_flow", "multi_output_primitive_detected",
            "pytree_weight_leaf_ambiguous", "snap_pattern_conservative", "snap_pattern_degenerate",
            "transition_tail_bounded", "hidden_group_merged", "state_mismatch", "weight_in_control_flow",
        )
    },
)  # fmt: skip


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
        """By relation, the path of its weight and the numbers of its groups."""
        return [(r.path, [g.index for g in r.hidden_groups]) for r in self.graph.hidden_param_op_relations]

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
        weights = [
            f"Weight {i}: {path}  is associated with hidden group{'s' * (len(at) != 1)} {at[0] if len(at) == 1 else at}"
            for i, (path, at) in enumerate(self.etrace_weights)
        ]
        left = [f"Weight {i}: {p}{f' ({why})' * (why is not None)}" for i, (p, why) in enumerate(self.excluded_weights)]
        parts = {
            "The hidden groups are:": groups,
            "The dynamic states are:": [str(p) for p in self.dynamic_states],
            "The weight parameters which are associated with the hidden states are:": weights,
            "The non-etrace weight parameters are:": left,
        }
        if level >= 2:
            parts["Compiler diagnostics:"] = [str(r) for r in self.diagnostics if str(r.level) != "info"]
        return "\n".join(f"{title}\n\n" + "".join(f"   {line}\n" for line in lines) for title, lines in parts.items()
                         if lines or title.startswith("The hidden"))  # fmt: skip

    def show(self, level: int = 1, *, file: IO[str] | None = None) -> None:
        """Print `to_str(level)`."""
        print(visible(self.to_str(level)), file=file)

    def __repr__(self) -> str:
        return f"CompilationReport({', '.join(f'{k}={v}' for k, v in self.counts.items())})"
