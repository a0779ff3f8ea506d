"""Compile a model, look at its graph, and take Jacobians of its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .._errors import CompilationError, NotSupportedError, visible
from ..engine import Probes
from ..ir import Path, Role, format_path
from ._compile import check_kind, compile_with_facts
from ._diagnostics import DiagnosticKind
from ._graph import ETraceGraph
from ._input_data import first_steps, single_steps
from ._jacobians import HiddenToWeight, Key, jacobians, plan_jacobians
from ._module_info import OldValues, Values
from ._perturb import HiddenPerturbation


class ETraceGraphExecutor:
    """A model and its compiled graph; `params=`, `hidden=` and `call=` are as in `etrax.compile`.

    >>> import brainstate, etrax.nn, jax.numpy as jnp
    >>> cell = etrax.nn.GRUCell(3, 4)
    >>> _ = brainstate.nn.init_all_states(cell)
    >>> executor = ETraceGraphExecutor(cell)
    >>> executor.compile_graph(jnp.ones(3))
    >>> output, hidden, other, (h2w, h2h) = executor.solve_h2w_h2h_jacobian(jnp.ones(3))
    >>> h2h[0].shape, h2w[('Wz', 'weight', 'weight'), 0, 0].dense().shape
    ((4, 1, 1), (7, 4, 1))
    """

    def __init__(self, model: object, *, params: object = None, hidden: object = None, call: object = None):
        check_kind(model, params, hidden, "ETraceGraphExecutor")
        self.model = model
        given = {"params": params, "hidden": hidden, "call": call}
        self._values = {name: value for name, value in given.items() if value is not None}
        self._graph: ETraceGraph | None = None
        self._probes: Probes | None = None  # None: a step that can be looked at, and has no Jacobian

    def compile_graph(self, *args: object, **kwargs: object) -> None:
        """Compile for example arguments; of `MultiStepData` the first step is the example. Writes no state."""
        args, kwargs = first_steps((args, self._values | kwargs))
        self._graph, facts = compile_with_facts(self.model, args, kwargs, True, "ETraceGraphExecutor")
        trainable = facts.step is self._graph.module_info.step
        self._probes = plan_jacobians(facts, self._graph.hidden_groups) if trainable else None

    @property
    def graph(self) -> ETraceGraph:
        """The compiled graph."""
        if self._graph is None:
            raise CompilationError("the model has not been compiled: call `compile_graph(*example_args)` first.")
        return self._graph

    @property
    def states(self) -> Any:
        """All states of the model by path, a `brainstate.util.FlattedDict`: `states.filter(brainstate.ParamState)`."""
        return self.graph.module_info.retrieved_model_states

    @property
    def path_to_states(self) -> Any:
        """The same, and the states outside the module that the step touches."""
        info = self.graph.module_info
        touched = dict(zip(info.compiled_state_paths, info.compiled_model_states, strict=True))
        return type(self.states)({**self.states, **touched})

    @property
    def state_id_to_path(self) -> dict[int, Path]:
        """The path of each state by its `id`."""
        return {id(state): path for path, state in self.path_to_states.items()}

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print (if `verbose`) the groups, other states, and weights with and without a group; or return the text."""
        text = describe(self.graph)
        if verbose:
            print(visible(text))
        return text if return_msg else None

    def solve_h2w_h2h_jacobian(
        self, *args: object, old_state_vals: OldValues = None, **kwargs: object
    ) -> tuple[Any, Values, Values, tuple[dict[Key, HiddenToWeight], list[jax.Array]]]:
        """One step from the states' current values, or from `old_state_vals` by path, with its Jacobian pieces.

        Gives (output, new hidden values by path, new other values by path, (h2w, h2h)). `h2w` maps (weight leaf path,
        op number, group index) to the pieces of ∂h/∂w; `h2h` has for each group ∂h_t/∂h_{t-1} of the cut step,
        (*varshape, S, S). The model's states are not written: assign the values returned to go on. Runs under `jit`.
        """
        graph, flat = self.graph, self._flat(args, kwargs, old_state_vals)
        if self._probes is None:
            records = graph.explain(kind=DiagnosticKind.LOOP_WITHOUT_DERIVATIVE)
            raise NotSupportedError("\n".join(["this step has no Jacobian.", *(r.message for r in records)]))
        found = jacobians(self._probes, graph.module_info.step_leaves(flat))
        return *graph.module_info.sort_step_outputs(found.outs), (found.h2w, found.h2h)

    def solve_h2w_h2h_l2h_jacobian(
        self, *args: object, old_state_vals: OldValues = None, **kwargs: object
    ) -> tuple[Any, ...]:
        """As `solve_h2w_h2h_jacobian`, and a fifth: the pull-back from outputs to hidden states.

        It takes a cotangent of the outputs ∂L/∂o, of their structure, and gives ∂L/∂h_t by path: how the loss of this
        step depends on the new hidden values through the outputs of the step. It works outside `jit` also if it was
        made inside.
        """
        graph, flat = self.graph, self._flat(args, kwargs, old_state_vals)
        perturbation = graph.hidden_perturb
        assert perturbation is not None  # the executor always compiles it
        zeros = dict(zip(perturbation.perturb_hidden_paths, perturbation.init_perturb_data(), strict=True))
        _, pull = jax.vjp(lambda p: _outputs(perturbation, flat, p, graph.module_info.num_var_out), zeros)
        found = self.solve_h2w_h2h_jacobian(*args, old_state_vals=old_state_vals, **kwargs)
        return (*found, jax.tree_util.Partial(_pull_back, pull))

    def _flat(self, args: tuple[object, ...], kwargs: dict[str, object], old_state_vals: OldValues) -> list[jax.Array]:
        args, kwargs = single_steps((args, kwargs))
        return self.graph.module_info.flat_inputs(args, kwargs, old_state_vals)


def _outputs(perturbation: HiddenPerturbation, flat: Sequence[jax.Array], p: Values, count: int) -> list[jax.Array]:
    return perturbation.eval_jaxpr(flat, [p[path] for path in perturbation.perturb_hidden_paths])[:count]


def _pull_back(pull: Callable[[list[jax.Array]], tuple[Values]], cotangent: object) -> Values:
    return pull(jax.tree.leaves(cotangent))[0]


def describe(graph: ETraceGraph) -> str:
    """The graph in words: hidden groups, other dynamic states, weights with their groups, weights with none."""
    info = graph.module_info
    lines = ["Hidden groups:"]
    lines += [
        f"  {g.index}: {', '.join(map(format_path, g.hidden_paths))} ({g.tag}, {list(g.varshape)})"
        for g in graph.hidden_groups
    ]
    grouped = set(graph.hid_path_to_group)
    met = {e.path: e.role for e in info.bound.states}  # every parameter is among these, met by the step or not
    dynamic = [p for p in (*met, *(q for q in info.bound.known if q not in met)) if met.get(p) is not Role.PARAM]
    others = [p for p in dynamic if p not in grouped]
    lines += _section("Other dynamic states:", [format_path(p) + _why_not(met, p) for p in others])
    reached: dict[Path, dict[int, None]] = {}
    for r in graph.hidden_param_op_relations:
        reached.setdefault(r.path, {}).update(dict.fromkeys(g.index for g in r.hidden_groups))
    with_groups = [f"{format_path(p)} -> group {', '.join(map(str, sorted(found)))}" for p, found in reached.items()]
    lines += _section("Weights with a trace:", with_groups)
    alone = [p for p in info.weight_path_to_invars if p not in reached]
    lines += _section("Weights without a trace:", [format_path(p) + _why(graph, p) for p in alone])
    return "\n".join(lines)


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return [title, *(f"  {row}" for row in rows)] if rows else [title, "  none"]


def _why_not(met: Mapping[Path, Role], path: Path) -> str:
    if path not in met:
        return " (the step does not touch it)"
    return " (a hidden state without derivatives)" if met[path] is Role.HIDDEN else ""


def _why(graph: ETraceGraph, path: Path) -> str:
    kinds = dict.fromkeys(r.kind.value for r in graph.explain(weight_path=path))
    return f" ({', '.join(kinds)})" if kinds else ""
