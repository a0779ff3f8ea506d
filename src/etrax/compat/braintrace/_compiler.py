"""The compiler's functions and executors with the peer's arguments.

Arguments that steer the peer's own rewrites are accepted; a value that would matter there warns that it does nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import brainstate
import numpy as np

from ... import graph
from ..._errors import ArgumentTypeError, NotSupportedError, visible
from ...compiler.analysis import Facts, positions_reached
from ...graph import ETraceGraph
from ._config import ControlFlowPolicy, as_order
from ._diagnostics import CompilationReport

_P = ParamSpec("_P")
_R = TypeVar("_R")

# By argument: its default, which says nothing, and why another value changes nothing here.
KNOBS: dict[str, tuple[object, str]] = {
    "include_recurrent_mixing": (False, "groups and their transitions hold what recurrent weights do as they are"),
    "sparse_n": (None, "the order belongs to a rule: `SnAp(model, n)`, or `etrax.snap(n)`"),
    "snap_max_jacobian_elements": (2**24, "Etrax builds no such Jacobian; `etrax.auto(memory=...)` bounds memory"),
    "control_flow": (None, "branches and loops are differentiated as they are"),
    "descended_scan_eqn_ids": ((), "loops are read as they are"),
    "descended_hidden_paths": ((), "loops are read as they are"),
    "full_jacobian": (False, "Jacobians have the structure that the step has"),
    "projection_eps": (1e-12, "`etrax.uoro` has no such number"),
}


def warn_without_effect(where: str, **arguments: object) -> None:
    """Warn of every argument that has another value than its default, since it has no effect."""
    for name, value in arguments.items():
        default, why = KNOBS[name]
        if not (value is None or value == default or value == ControlFlowPolicy() or value in ((), [], set())):
            warnings.warn(f"`{name}={value!r}` of `{where}` has no effect in Etrax: {why}.", stacklevel=3)


def check_order(sparse_n: object, include_recurrent_mixing: bool) -> None:
    """Refuse an order of SnAp that no compiler could serve."""
    if sparse_n is not None and as_order(sparse_n) and not include_recurrent_mixing:
        raise NotSupportedError(
            f"`sparse_n={sparse_n!r}` says how far recurrent mixing is followed: pass `include_recurrent_mixing=True`."
        )


def _graph_without_bypass(compiled: ETraceGraph) -> ETraceGraph:
    """A graph whose perturbation does not know the paths around the new hidden states."""
    perturbation = compiled.hidden_perturb
    if perturbation is None or perturbation.bypass is None:
        return compiled
    return compiled._replace(hidden_perturb=perturbation._replace(bypass=None))


def with_patterns(compiled: ETraceGraph, facts: Facts, n: int | None) -> ETraceGraph:
    """The graph of a learner of SnAp-n: its groups tell which positions a trace holds for each of them."""
    if n is None:
        return compiled
    groups = tuple(g._replace(snap=_pattern_of(g, facts, n)) for g in compiled.hidden_groups)
    relations = tuple(
        r._replace(hidden_groups=tuple(groups[g.index] for g in r.hidden_groups))
        for r in compiled.hidden_param_op_relations
    )
    by_path = {path: groups[g.index] for path, g in compiled.hid_path_to_group.items()}
    return compiled._replace(hidden_groups=groups, hid_path_to_group=by_path, hidden_param_op_relations=relations)


def _pattern_of(group: graph.HiddenGroup, facts: Facts, n: int) -> graph.SnapPattern:
    reached = positions_reached(facts, group.index, n)
    others = [row[row != p] for p, row in enumerate(np.split(reached.indices, reached.indptr[1:-1]))]
    width = 1 + max(map(len, others))
    filled = [np.r_[p, np.sort(row), [p] * (width - 1 - len(row))] for p, row in enumerate(others)]
    valid = np.arange(width) <= np.array([len(row) for row in others])[:, None]
    return graph.SnapPattern(n, group.varshape, np.array(filled, np.int32), valid)


def _accepting(function: Callable[_P, _R]) -> Callable[..., _R]:
    """A function of Etrax that takes the peer's arguments too."""

    @wraps(function)
    def accepted(*args, **kwargs) -> _R:
        check_order(kwargs.get("sparse_n"), kwargs.get("include_recurrent_mixing", False))
        warn_without_effect(function.__name__, **{k: v for k, v in kwargs.items() if k in KNOBS})
        return function(*args, **{k: v for k, v in kwargs.items() if k not in KNOBS})

    return accepted


@_accepting
@wraps(graph.compile_etrace_graph)
def compile_etrace_graph(*args, include_output_bypass: bool = True, **kwargs) -> graph.ETraceGraph:
    compiled = graph.compile_etrace_graph(*args, **kwargs)
    return compiled if include_output_bypass else _graph_without_bypass(compiled)


@_accepting
@wraps(graph.add_hidden_perturbation_from_minfo)
def add_hidden_perturbation_from_minfo(
    minfo: graph.ModuleInfo, *, include_output_bypass: bool = True
) -> graph.HiddenPerturbation:
    perturbation = graph.add_hidden_perturbation_from_minfo(minfo)
    return perturbation if include_output_bypass else perturbation._replace(bypass=None)


extract_module_info = _accepting(graph.extract_module_info)
find_hidden_groups_from_minfo = _accepting(graph.find_hidden_groups_from_minfo)
find_hidden_groups_from_module = _accepting(graph.find_hidden_groups_from_module)
find_hidden_param_op_relations_from_minfo = _accepting(graph.find_hidden_param_op_relations_from_minfo)
find_hidden_param_op_relations_from_module = _accepting(graph.find_hidden_param_op_relations_from_module)
add_hidden_perturbation_in_module = _accepting(graph.add_hidden_perturbation_in_module)


class ETraceGraphExecutor(graph.ETraceGraphExecutor):
    """A model and its compiled graph."""

    def __init__(
        self, model: brainstate.nn.Module, include_recurrent_mixing: bool = False, sparse_n: int | None = None,
        snap_max_jacobian_elements: int = 2**24, control_flow: ControlFlowPolicy | None = None,
    ):  # fmt: skip
        if not isinstance(model, brainstate.nn.Module):
            raise ArgumentTypeError(f"`model` must be a brainstate.nn.Module; got {type(model)}.")
        super().__init__(model)
        warn_without_effect(
            type(self).__name__, include_recurrent_mixing=include_recurrent_mixing, sparse_n=sparse_n,
            snap_max_jacobian_elements=snap_max_jacobian_elements, control_flow=control_flow,
        )  # fmt: skip
        self.include_recurrent_mixing, self.sparse_n = include_recurrent_mixing, sparse_n
        self.snap_max_jacobian_elements = snap_max_jacobian_elements
        self.control_flow = ControlFlowPolicy() if control_flow is None else control_flow

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print the report, or return it."""
        text = CompilationReport(self.graph).to_str()
        if verbose:
            print(visible(text))
        return text if return_msg else None


class ETraceVjpGraphExecutor(ETraceGraphExecutor):
    """The executor of an algorithm, which compiles the model itself and hands over the graph when it is asked for.

    A learner makes its graph when it is first asked for, and most programs never ask.
    """

    def __init__(
        self, model: brainstate.nn.Module, vjp_method: str = "single-step", include_recurrent_mixing: bool = False,
        sparse_n: int | None = None, snap_max_jacobian_elements: int = 2**24,
        control_flow: ControlFlowPolicy | None = None, full_jacobian: bool = False, include_output_bypass: bool = True,
    ):  # fmt: skip
        assert vjp_method in ("single-step", "multi-step"), (
            f"`vjp_method` must be 'single-step' or 'multi-step'; got {vjp_method!r}"
        )
        super().__init__(model, include_recurrent_mixing, sparse_n, snap_max_jacobian_elements, control_flow)
        warn_without_effect(type(self).__name__, full_jacobian=full_jacobian)
        self.vjp_method, self.full_jacobian = vjp_method, full_jacobian
        self.include_output_bypass = include_output_bypass
        self._graph_of_learner: Callable[[], ETraceGraph] | None = None
        self._facts_of_learner: Facts | None = None

    @property
    def is_single_step_vjp(self) -> bool:
        return self.vjp_method == "single-step"

    @property
    def is_multi_step_vjp(self) -> bool:
        return self.vjp_method == "multi-step"

    def adopt(self, graph_of_learner: Callable[[], ETraceGraph], facts: Facts) -> None:
        """Take the graph of a learner that has been compiled elsewhere, when it is first asked for."""
        self._graph_of_learner, self._graph = graph_of_learner, None
        self._facts_of_learner, self._probes = facts, None

    def solve_h2w_h2h_jacobian(self, *args, **kwargs):
        if self._probes is None and self._facts_of_learner is not None:
            self._probes = graph.plan_jacobians(self._facts_of_learner, self.graph.hidden_groups)
        return super().solve_h2w_h2h_jacobian(*args, **kwargs)

    @property
    def graph(self) -> ETraceGraph:
        if self._graph is None and self._graph_of_learner is not None:
            self._graph = self._graph_of_learner()
        compiled = super().graph
        if not self.include_output_bypass:
            self._graph = compiled = _graph_without_bypass(compiled)
        return compiled
