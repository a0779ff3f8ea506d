"""Compile a model, look at its graph, and take Jacobians of its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax

from .._errors import CompilationError, NotSupportedError, visible
from ..compiler.ir import Path, PyTree
from ..runtime import Probes
from ._compile import check_kind, compile_with_facts
from ._describe import describe
from ._diagnostics import DiagnosticKind
from ._graph import ETraceGraph
from ._input_data import first_steps, single_steps
from ._jacobians import HiddenToWeight, Key, jacobians, plan_jacobians
from ._module_info import OldValues, Values
from ._perturb import HiddenPerturbation

# States by path, in the mapping of the front end: a `brainstate.util.FlattedDict`, which filters them, or a `dict`.
States: TypeAlias = PyTree


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
        options = {"params": params, "hidden": hidden, "call": call}
        self._options = {name: value for name, value in options.items() if value is not None}
        self._graph: ETraceGraph | None = None
        self._paths: tuple[ETraceGraph, tuple[States, dict[int, Path]]] | None = None  # those of that graph
        self._probes: Probes | None = None  # None: a step that can be looked at, and has no Jacobian

    def compile_graph(self, *args: object, **kwargs: object) -> None:
        """Compile for example arguments; of `MultiStepData` the first step is the example. Writes no state."""
        args, kwargs = first_steps((args, self._options | kwargs))
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
    def states(self) -> States:
        """All states of the model by path, and the states outside it that the step touches.

        For a module a `brainstate.util.FlattedDict`: `states.filter(brainstate.ParamState)`. A parameter and a state of
        a function that share a path are at `('params', *path)` and `('hidden', *path)`.
        """
        return self._by_path(self.graph)[0]

    @property
    def path_to_states(self) -> States:
        """Another name of `states`."""
        return self.states

    @property
    def state_id_to_path(self) -> dict[int, Path]:
        """The path of each state by its `id`: one dictionary until the model is compiled again."""
        return self._by_path(self.graph)[1]

    def _by_path(self, graph: ETraceGraph) -> tuple[States, dict[int, Path]]:
        if self._paths is None or self._paths[0] is not graph:  # the model was compiled again
            bound = graph.module_info.bound
            met = {key: e.handle for key, e in zip(bound.keys, bound.states, strict=True) if key not in bound.known}
            states: States = {**bound.known, **met}
            states = type(bound.known)(states)  # pyright: ignore[reportCallIssue]: the mapping of the front end
            self._paths = graph, (states, {id(state): path for path, state in states.items()})
        return self._paths[1]

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print (if `verbose`) the groups, other states, and weights with and without a group; or return the text."""
        text = describe(self.graph)
        if verbose:
            print(visible(text))
        return text if return_msg else None

    def solve_h2w_h2h_jacobian(
        self, *args: object, old_state_vals: OldValues = None, **kwargs: object
    ) -> tuple[PyTree, Values, Values, tuple[dict[Key, HiddenToWeight], list[jax.Array]]]:
        """One step from the states' current values, or from `old_state_vals` by path, with its Jacobian pieces.

        Gives (output, new hidden values by path, new other values by path, (h2w, h2h)). `h2w` maps (weight leaf path,
        op number, group index) to the pieces of ∂h/∂w; `h2h` has for each group ∂h_t/∂h_{t-1} of the cut step,
        (*varshape, S, S). The model's states are not written: assign the values returned to go on. Runs under `jit`.
        """
        graph, flat = self.graph, self._flat(args, kwargs, old_state_vals)
        if self._probes is None:
            records = graph.explain(kind=DiagnosticKind.LOOP_WITHOUT_DERIVATIVE)
            raise NotSupportedError("\n".join(["this step has no Jacobian.", *(r.message for r in records)]))
        pieces = jacobians(self._probes, graph.module_info.step_leaves(flat))
        return *graph.module_info.sort_step_outputs(pieces.outs), (pieces.h2w, pieces.h2h)

    def solve_h2w_h2h_l2h_jacobian(
        self, *args: object, old_state_vals: OldValues = None, **kwargs: object
    ) -> tuple[PyTree, ...]:
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
        results = self.solve_h2w_h2h_jacobian(*args, old_state_vals=old_state_vals, **kwargs)
        # A `Partial` is a tree of arrays, so that it may leave the `jit` in which it was made.
        return (*results, jax.tree_util.Partial(_pull_back, pull))

    def _flat(self, args: tuple[object, ...], kwargs: dict[str, object], old_state_vals: OldValues) -> list[jax.Array]:
        args, kwargs = single_steps((args, kwargs))
        return self.graph.module_info.flat_inputs(args, kwargs, old_state_vals)


def _outputs(perturbation: HiddenPerturbation, flat: Sequence[jax.Array], p: Values, count: int) -> list[jax.Array]:
    return perturbation.eval_jaxpr(flat, [p[path] for path in perturbation.perturb_hidden_paths])[:count]


def _pull_back(pull: Callable[[list[jax.Array]], tuple[Values]], cotangent: object) -> Values:
    return pull(jax.tree.leaves(cotangent))[0]
