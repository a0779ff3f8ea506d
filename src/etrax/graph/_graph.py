"""The compiled graph: everything the compiler found, in one tuple."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .._errors import ArgumentTypeError, CompilationError
from ..compiler.ir import Path, format_path, is_at
from ._diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from ._group import HiddenGroup
from ._module_info import ModuleInfo, OldValues, StepResult
from ._perturb import HiddenPerturbation
from ._relation import HiddenParamOpRelation
from ._show import counted, show


class Records(tuple[CompilationRecord, ...]):
    """Findings of the compiler; printed, a line for each."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "()"


def _matches(paths: Iterable[Path], asked: Path | str | list[object] | None) -> bool:
    """Whether one of the paths is the one that is asked for, if any is."""
    if asked is None:
        return True
    asked = tuple(asked) if isinstance(asked, list) else asked
    return any(is_at(path, asked) for path in paths)


def _weights(record: CompilationRecord) -> list[Path]:
    """The path of the parameter's state, and that of the array in it."""
    return [path for path in (record.weight_path, record.context.get("leaf_path")) if path is not None]


class ETraceGraph(NamedTuple):
    """Which parameters reach which hidden states through which operations.

    >>> import etrax, jax.numpy as jnp
    >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
    >>> learner.graph.hidden_groups[0].varshape, len(learner.graph.hidden_param_op_relations)
    ((4,), 1)
    """

    module_info: ModuleInfo
    hidden_groups: tuple[HiddenGroup, ...]
    hid_path_to_group: dict[Path, HiddenGroup]
    hidden_param_op_relations: tuple[HiddenParamOpRelation, ...]
    hidden_perturb: HiddenPerturbation | None
    diagnostics: tuple[CompilationRecord, ...] = ()

    def explain(
        self,
        *,
        weight_path: Path | str | None = None,
        hidden_path: Path | str | None = None,
        kind: DiagnosticKind | None = None,
    ) -> Records:
        """The diagnostics that match all given filters, in the order emitted, as a tuple that prints line by line.

        The weight path must be equal, the hidden path a member of the record's, the kind identical. A path is a tuple
        of keys, or a name as the graph prints it.

        >>> import etrax, jax.numpy as jnp
        >>> step = lambda w, h, x: (0.9 * h + x @ w,) * 2
        >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=jnp.ones((3, 4)), hidden=jnp.zeros(4))
        >>> [record.kind.name for record in learner.graph.explain(weight_path=())]
        ['RELATION_INCLUDED']
        """
        for name, path in (("weight_path", weight_path), ("hidden_path", hidden_path)):
            if path is not None and not isinstance(path, tuple | list | str):
                raise ArgumentTypeError(
                    f"`{name}` is a {type(path).__name__}; expected a path: a tuple of keys, or a name such as 'rnn.w'."
                )
        if kind is not None and not (isinstance(kind, str) and kind in set(DiagnosticKind)):
            raise ArgumentTypeError(f"`kind` is a {type(kind).__name__}; expected one of `etrax.DiagnosticKind`.")
        return Records(
            r
            for r in self.diagnostics
            if _matches(_weights(r), weight_path)
            and _matches(r.hidden_paths, hidden_path)
            and (kind is None or r.kind == kind)
        )

    def call_hidden_perturb(
        self,
        args: Sequence[object],
        perturb_data: Sequence[object],
        old_state_vals: OldValues = None,
        kwargs: Mapping[str, object] | None = None,
        bypass_data: Sequence[object] | None = None,
        bypass_hidden_data: Sequence[object] | None = None,
    ) -> StepResult:
        """Run the step with `perturb_data` added to the hidden states; writes no state.

        `bypass_data` and `bypass_hidden_data` are copies as `HiddenPerturbation.eval_jaxpr` takes them.

        Gives (outputs, new hidden values by path, new other values by path, values by variable of `module_info.jaxpr`).
        Without `old_state_vals` the model's current values are used.
        """
        if self.hidden_perturb is None:
            raise CompilationError(
                "this graph has no hidden perturbation: compile with `include_hidden_perturb=True` to call it."
            )
        flat = self.module_info.flat_inputs(tuple(args), kwargs or {}, old_state_vals)
        return self.module_info.sort_outputs(
            self.hidden_perturb.eval_jaxpr(flat, perturb_data, bypass_data, bypass_hidden_data)
        )

    def dict(self) -> dict[str, object]:
        return self._asdict()

    def __repr__(self) -> str:
        return show(self)

    def __str__(self) -> str:
        groups, relations = self.hidden_groups, self.hidden_param_op_relations
        lines = [f"ETraceGraph of {counted(len(groups), 'hidden group')}, {counted(len(relations), 'relation')}"]
        for g in groups:
            names = ", ".join(format_path(p, "hidden") for p in g.hidden_paths)
            weights = dict.fromkeys(
                format_path(r.leaf_path, "params")
                for r in relations
                if any(g.index == o.index for o in r.hidden_groups)
            )
            lines.append(
                f"  group {g.index} ({g.tag}, {g.num_state} a position): {names} <- {', '.join(weights) or 'no weight'}"
            )
        warned = sum(r.level is not DiagnosticLevel.INFO for r in self.diagnostics)
        lines.append(f"  {counted(warned, 'warning')}; see `explain()`" if warned else "  no warnings")
        return "\n".join(lines)
