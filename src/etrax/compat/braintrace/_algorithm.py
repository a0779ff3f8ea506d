"""Algorithms as brainstate modules: a model, its traces as states of their own, and a step that advances both."""

from __future__ import annotations

from typing import TypeAlias, cast

import brainstate
import jax
import jax.numpy as jnp

from ..._compat import is_concrete
from ..._errors import ArgumentError, ArgumentTypeError, CompilationError, NotSupportedError
from ...compiler.ir import Path, PyTree, Role, lies_under
from ...graph import ETraceGraph, ETraceGraphExecutor, first_steps
from ...rules import Rule
from ...stateful import SequenceDriver, Sequences, Stateful, brainstate_loop, with_batch_size
from ._compiler import ETraceVjpGraphExecutor, warn_without_effect, with_patterns
from ._config import ControlFlowPolicy, ETraceConfig
from ._diagnostics import CompilationReport
from ._hooks import SERVED, HookedStateful, Solved, check_overrides, refuse_override
from ._rules import rule_of

States: TypeAlias = brainstate.util.FlattedDict


class EligibilityTrace(brainstate.ShortTermState):
    """An array of a trace."""


class SequenceDriverMixin(SequenceDriver):
    """Sequences, time first, through what `__call__` does; a subclass counts its calls and names its parameters."""

    calls: int = 0
    vjp_method: str | None = None

    @property
    def param_states(self) -> PyTree:
        raise NotImplementedError

    def resized(self) -> bool:
        """Whether the states are of another size than the traces."""
        return False

    def _sequences(
        self, sequences: tuple[object, ...], chunk_size: int | None, mask: object = None, weights: object = None,
        reset: object = None,
    ) -> Sequences:  # fmt: skip
        if self.resized():  # what is made inside a loop does not outlive its step
            self.init_etrace_state()  # pyright: ignore[reportAttributeAccessIssue]
        loop = brainstate_loop(brainstate, self.param_states, weights)
        return Sequences(loop, lambda: self.calls, sequences, chunk_size, mask, reset)

    def _check_windows(self, chunk: int, gradients: bool) -> None:
        if gradients and chunk > 1 and self.vjp_method != "multi-step":
            raise ArgumentError(
                f"`chunk_size` is {chunk}, but the learner was made with vjp_method={self.vjp_method!r}: windows "
                "need vjp_method='multi-step'."
            )


class ETraceAlgorithm(SequenceDriverMixin, brainstate.nn.Module):
    """A model with the executor that compiles it; what is learned, and how, is a subclass's."""

    def __init__(self, model: brainstate.nn.Module, graph_executor: ETraceGraphExecutor, name: str | None = None):
        super().__init__(name=name)  # pyright: ignore[reportCallIssue]
        if not isinstance(model, brainstate.nn.Module):
            raise ArgumentTypeError(f"`model` must be a brainstate.nn.Module; got {type(model)}.")
        if not isinstance(graph_executor, ETraceGraphExecutor):
            raise ArgumentTypeError(f"`graph_executor` must be a ETraceGraphExecutor; got {type(graph_executor)}.")
        self.model4compile, self.graph_executor = model, graph_executor
        self.is_compiled = False
        self.running_index = brainstate.LongTermState(0)
        self._split: tuple[tuple[int, ...], tuple[States, States, States]] | None = None

    @property
    def graph(self) -> ETraceGraph:
        """The compiled graph."""
        return self.graph_executor.graph

    @property
    def report(self) -> CompilationReport:
        """What the compiler found."""
        if not self.is_compiled:
            raise RuntimeError("there is no report yet: call `compile_graph(*example_inputs)` first.")
        return CompilationReport(self.graph)

    @property
    def executor(self) -> ETraceGraphExecutor:
        return self.graph_executor

    def _states(self) -> tuple[States, States, States]:
        """Parameters, hidden states and the others, as the model has them now: creating states makes new objects."""
        states = self.path_to_states
        ids = tuple(map(id, states.values()))
        # Splitting walks all states, so it is done once for the same objects.
        if self._split is None or self._split[0] != ids:
            parts = states.split(brainstate.ParamState, brainstate.HiddenState, ...)
            self._split = ids, cast(tuple[States, States, States], parts)
        return self._split[1]

    @property
    def param_states(self) -> States:
        return self._states()[0]

    @property
    def hidden_states(self) -> States:
        return self._states()[1]

    @property
    def other_states(self) -> States:
        return self._states()[2]

    @property
    def path_to_states(self) -> States:
        now = cast(States, self.model4compile.states())
        return States({path: now.get(path, state) for path, state in self.graph_executor.path_to_states.items()})

    @property
    def state_id_to_path(self) -> dict[int, Path]:
        return self.graph_executor.state_id_to_path

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print the report, or return it."""
        return self.graph_executor.show_graph(verbose=verbose, return_msg=return_msg)

    def compile_graph(self, *args: object) -> None:
        """Compile for example inputs; a second call does nothing."""
        if self.is_compiled or brainstate.transform.in_new_state_probe():  # a probe's states are thrown away
            return
        self._compile(args)
        self._split = None
        self.init_etrace_state(*args)
        self.is_compiled = True

    def _compile(self, args: tuple[object, ...]) -> None:
        self.graph_executor.compile_graph(*args)

    def update(self, *args: object, **kwargs: object) -> PyTree:
        raise NotImplementedError

    def init_etrace_state(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError

    def get_etrace_of(self, weight: brainstate.ParamState | Path) -> PyTree:
        raise NotImplementedError


class ETraceVjpAlgorithm(ETraceAlgorithm):
    """An algorithm that is a rule of Etrax: calling it advances the model and the traces, and the derivative of what it
    returns is the online gradient."""

    modulator: object = None
    default_config = ETraceConfig()
    factorization: str | None = None  # of the traces that a class has, where it has one kind of them only

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        check_overrides(cls, cls.__name__)

    def __init__(
        self, model: brainstate.nn.Module, name: str | None = None, vjp_method: str = "single-step",
        control_flow: ControlFlowPolicy | None = None, config: ETraceConfig | None = None,
        random_feedback_key: jax.Array | None = None, snap_max_jacobian_elements: int = 2**24,
    ):  # fmt: skip
        assert vjp_method in ("single-step", "multi-step"), (
            f"`vjp_method` must be 'single-step' or 'multi-step'; got {vjp_method!r}"
        )
        warn_without_effect(
            type(self).__name__, control_flow=control_flow, snap_max_jacobian_elements=snap_max_jacobian_elements
        )
        coordinates = self.default_config if config is None else config
        if self.factorization not in (None, coordinates.trace_factorization):
            raise ArgumentError(
                f"`{type(self).__name__}` has traces of trace_factorization={self.factorization!r}; `config` has "
                f"{coordinates.trace_factorization!r}: pass the configuration to `compile`, which takes the class that "
                "it names."
            )
        # A modulator is given for the new states, so there is no signal that could bypass them.
        bypass = coordinates.learning_signal != "modulatory"
        self._executor = ETraceVjpGraphExecutor(model, vjp_method, include_output_bypass=bypass)
        self._executor.control_flow = control_flow or ControlFlowPolicy()
        super().__init__(model, self._executor, name)
        self.vjp_method = vjp_method
        self.config = coordinates
        if self.config.learning_signal == "random_feedback" and random_feedback_key is None:
            raise ArgumentError("learning_signal='random_feedback' draws its matrices: pass `random_feedback_key=`.")
        self.random_feedback_key = random_feedback_key
        self.snap_max_jacobian_elements = snap_max_jacobian_elements
        self.trace_dtype: object = None
        self._example: tuple[object, ...] = ()
        self.online: Stateful | None = None
        self.etrace_bwg: dict[str, EligibilityTrace] = {}

    def __setattr__(self, name: str, value: object) -> None:
        refuse_override(name, type(self).__name__)
        super().__setattr__(name, value)

    def rule(self) -> Rule:
        """The rule of Etrax that the coordinates name."""
        return rule_of(self.config, self.random_feedback_key)

    def _compile(self, args: tuple[object, ...]) -> None:
        check_overrides(self, type(self).__name__)  # a method may have been put on the class later
        self._example = first_steps(args)
        kind = HookedStateful if self._changes_gradients() else Stateful
        online = kind(self.model4compile, self.rule(), *self._example, trace_dtype=self.trace_dtype)
        self.online, learner = online, online.learner
        del online.trace  # the traces are states of this module, one for each array
        facts, n = learner.facts, self.config.sparse_n
        self._executor.adopt(lambda: with_patterns(learner.graph, facts, n), facts)

    def _changes_gradients(self) -> bool:
        """Whether a subclass, or somebody who put a function on the class or this object, has gradients of its own."""
        solve = self._solve_weight_gradients
        return getattr(solve, "__func__", solve) is not _GRADIENTS_AS_THEY_ARE

    def _check_hooks(self, online: Stateful) -> None:
        """Methods may have been put on the class or this object since the model was compiled."""
        check_overrides(self, type(self).__name__)
        if self._changes_gradients() and not isinstance(online, HookedStateful):
            raise NotSupportedError(
                f"`{type(self).__name__}` was given `{SERVED}` after it was compiled, without which it was compiled to "
                "run: put it on the class, or on the object before `compile_graph`."
            )

    def _assert_compiled(self) -> Stateful:
        if self.online is None:
            raise CompilationError(
                "the model has not been compiled: call `compile_graph()` with example inputs before anything else."
            )
        return self.online

    def init_etrace_state(self, *args: object, **kwargs: object) -> None:
        """New traces, all zero, for the states as they are now."""
        if self.online is None:
            return
        if self.resized():
            self._compile(self._example_of_now())
            self._split = None
        leaves = jax.tree_util.tree_flatten_with_path(self._fresh())[0]
        # New state objects: those that are created under `vmap_new_states` get the mapped axis.
        self.etrace_bwg = {jax.tree_util.keystr(path): EligibilityTrace(leaf) for path, leaf in leaves}
        self.running_index.value = 0

    def reset_state(self, batch_size: int | None = None, **kwargs: object) -> None:
        """Traces back to zero; if the model's states have another batch size now, traces of that size."""
        if self.online is None or (self.resized() and not self._in_lanes()):
            self.init_etrace_state()
        else:
            for state, value in zip(self.etrace_bwg.values(), jax.tree.leaves(self._fresh()), strict=True):
                state.value = value
        self.running_index.value = 0

    def _fresh(self) -> PyTree:
        return self.unpack(self._assert_compiled().learner.program.new_trace())

    def resized(self) -> bool:
        """Whether the model's states have been created anew with other shapes than those that were compiled."""
        compiled, current = self._state_shapes()
        return current != compiled

    def _state_shapes(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The shapes of the model's states when it was compiled, and those that they have now."""
        learner = self._assert_compiled().learner
        current = [jnp.shape(a) for a in jax.tree.leaves(learner.bound.read()[1:])]
        return [tuple(leaf.aval.shape) for leaf in learner.facts.step.states], current

    def _in_lanes(self) -> bool:
        """Whether the model's states lack one axis: a `vmap` over the batch shows those of one sample.

        The traces of the whole batch are no part of it, so they keep their shapes. brainstate runs such a function
        once outside of `vmap` too, so the states alone tell; a model that was made without a batch fails at its next
        step.
        """
        return all(len(new) == len(old) - 1 for old, new in zip(*self._state_shapes(), strict=True))

    def _example_of_now(self) -> tuple[object, ...]:
        """The example inputs with the batch size that the states have now."""
        old, new = (shapes[0] for shapes in self._state_shapes())  # hidden states come first
        if len(old) != len(new) or old[1:] != new[1:]:
            raise CompilationError(
                f"a hidden state had shape {list(old)} when the model was compiled and has {list(new)} now, which is "
                "more than another batch size: make the learner anew."
            )
        return with_batch_size(self._example, old, new[0])

    def get_etrace_of(self, weight: brainstate.ParamState | Path) -> PyTree:
        """The trace of a parameter, given as its path or as the state itself: `{(path, i): {leaf: array}}`.

        A leaf is named by its key in the parameter's value, and "weight" where the value is an array; the i-th entry
        holds the i-th array of each leaf.
        """
        trace: dict[tuple[Path, int], dict[str, jax.Array]] = {}
        path, arrays = self._arrays_of(weight)
        for leaf, of_leaf in arrays.items():
            for i, a in enumerate(of_leaf):
                trace.setdefault((path, i), {})[leaf] = a
        return trace

    def _arrays_of(self, weight: brainstate.ParamState | Path) -> tuple[Path, dict[str, list[jax.Array]]]:
        """A parameter's path, and the arrays of its trace by leaf."""
        online = self._assert_compiled()
        states = cast(States, self.model4compile.states(brainstate.ParamState))
        path = next((p for p, s in states.items() if s is weight), weight)
        if not isinstance(path, tuple) or path not in states:
            raise ArgumentError(f"{path!r} is no parameter of the model; they are {sorted(states)}.")
        leaves = [leaf.path for leaf in online.learner.facts.step.select(Role.PARAM) if lies_under(leaf.path, path)]
        return path, {
            ".".join(map(str, leaf[len(path) :])) or "weight": online.parts_of(self._trace(), leaf) for leaf in leaves
        }

    def _trace(self) -> PyTree:
        tree = jax.tree.structure(self._fresh())  # under `jit` its zeros are dead code
        return jax.tree.unflatten(tree, [state.value for state in self.etrace_bwg.values()])

    def update(self, *args: object, modulator: object = None, **kwargs: object) -> PyTree:
        """One step, or those that `MultiStepData` holds."""
        self.calls += 1
        online = self._assert_compiled()
        if self.resized():
            # Traces that are made inside a transformation would be lost with it.
            if not all(map(is_concrete, jax.tree.leaves(online.learner.bound.read()))):
                raise CompilationError(
                    "the states have been created anew with another batch size: call `init_etrace_state()` or "
                    "`reset_state()` of the learner before the loop or transformation that runs it."
                )
            self.init_etrace_state()
            online = self._assert_compiled()
        self._check_hooks(online)
        trace = self.pack(online, self._trace(), modulator)
        if isinstance(online, HookedStateful):
            out, trace = online.advance_hooked(self, self.running_index.value, trace, args, kwargs)
        else:
            out, trace = online.advance(trace, args, kwargs)
        for state, value in zip(self.etrace_bwg.values(), jax.tree.leaves(self.unpack(trace)), strict=True):
            state.value = value
        self.running_index.value = self.running_index.value + 1
        return out

    def _solve_weight_gradients(
        self, running_index, etrace_h2w_at_t, dl_to_hidden_groups, weight_vals, dl_to_nonetws_at_t, dl_to_etws_at_t
    ) -> dict[Path, PyTree]:
        """The gradients of a step by parameter, for a subclass to change; `weight_vals` are the parameters' values."""
        if not isinstance(etrace_h2w_at_t, Solved):
            raise ArgumentTypeError(
                "`_solve_weight_gradients` was given traces of its own: pass on what the override was given."
            )
        return etrace_h2w_at_t.gradients

    def pack(self, online: Stateful, trace: PyTree, modulator: object) -> PyTree:
        """The trace of the rule: what the states hold, and what a subclass has to say to the rule before a step."""
        if modulator is not None:
            raise ArgumentTypeError(f"`modulator` is for `ThreeFactor`; this is {type(self).__name__}.")
        return trace

    def unpack(self, trace: PyTree) -> PyTree:
        """What of the rule's trace the states hold."""
        return trace


# What the hook is where nobody has overridden it.
_GRADIENTS_AS_THEY_ARE = ETraceVjpAlgorithm._solve_weight_gradients
