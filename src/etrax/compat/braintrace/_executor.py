"""Executors with the peer's arguments: those that ask for its own compiler's rewrites warn that they do nothing."""

from __future__ import annotations

from collections.abc import Callable

import brainstate

from ... import graph
from ..._errors import ArgumentTypeError, visible
from ...graph import ETraceGraph
from ._config import ControlFlowPolicy
from ._diagnostics import CompilationReport
from ._knobs import warn_without_effect


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
    """The executor of an algorithm, which compiles the model itself and hands over the graph when it is asked for."""

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

    @property
    def is_single_step_vjp(self) -> bool:
        return self.vjp_method == "single-step"

    @property
    def is_multi_step_vjp(self) -> bool:
        return self.vjp_method == "multi-step"

    def adopt(self, graph_of_learner: Callable[[], ETraceGraph]) -> None:
        """Take the graph of a learner that has been compiled elsewhere, when it is first asked for."""
        self._graph_of_learner, self._graph = graph_of_learner, None

    @property
    def graph(self) -> ETraceGraph:
        if self._graph is None and self._graph_of_learner is not None:
            self._graph = self._graph_of_learner()
        compiled = super().graph
        perturbation = compiled.hidden_perturb
        if self.include_output_bypass or perturbation is None or perturbation.bypass is None:
            return compiled
        self._graph = compiled._replace(hidden_perturb=perturbation._replace(bypass=None))
        return self._graph
