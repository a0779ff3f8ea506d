"""Synthetic gradients: an estimate of what later losses owe to the states, for parameters that have no trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import brainstate
import brainunit as u
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..._errors import ArgumentError
from ...compiler.ir import Path, PyTree
from ...rules import Rule
from ...stateful import Stateful
from ._config import ControlFlowPolicy, ETraceConfig
from ._presets import ParamDimVjpAlgorithm
from ._rules import bootstrapped


class SyntheticGradient(brainstate.nn.Module):
    """A linear estimate of ∂L/∂h for each group, zero at first unless `scale` is given."""

    def __init__(
        self, group_shapes: dict[int, tuple[int, ...]], hidden_width: int | None = None, scale: float = 0.0,
        seed: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.group_shapes = {int(k): tuple(v) for k, v in group_shapes.items()}
        self.weights: dict[int, brainstate.ParamState] = {}
        self.biases: dict[int, brainstate.ParamState] = {}
        with brainstate.random.seed_context(seed):
            for k, shape in self.group_shapes.items():
                n = shape[-2] * shape[-1]  # positions × states of one sample
                self.weights[k] = brainstate.ParamState(jnp.float32(scale) * brainstate.random.randn(n, n))
                self.biases[k] = brainstate.ParamState(jnp.zeros(n, jnp.float32))

    def param_values(self) -> dict[str, dict[int, jax.Array]]:
        return {
            "w": {k: s.value for k, s in self.weights.items()},
            "b": {k: s.value for k, s in self.biases.items()},
        }

    def states_dict(self) -> dict[tuple[str, int], brainstate.ParamState]:
        return {("synth_w", k): s for k, s in self.weights.items()} | {
            ("synth_b", k): s for k, s in self.biases.items()
        }

    def apply(self, param_values: PyTree, group_hiddens: dict[int, jax.Array]) -> dict[int, jax.Array]:
        out = {}
        for k, h in group_hiddens.items():
            h = u.get_mantissa(h)
            estimate = h.reshape(*h.shape[:-2], -1) @ param_values["w"][k] + param_values["b"][k]
            out[k] = estimate.reshape(h.shape).astype(h.dtype)
        return out


class DNI(ParamDimVjpAlgorithm):
    """Traces, and for parameters that have none the estimate of a synthesizer at the end of a window."""

    default_config = ETraceConfig(learning_signal="bootstrapped")

    def __init__(
        self, model: brainstate.nn.Module, synthesizer: SyntheticGradient | None = None, name: str | None = None,
        vjp_method: str = "multi-step", fast_solve: bool = True, trace_dtype: DTypeLike | None = None,
        chunked_trace: bool = True, control_flow: ControlFlowPolicy | None = None,
        snap_max_jacobian_elements: int = 2**24,
    ):  # fmt: skip
        super().__init__(
            model, name, vjp_method, fast_solve, trace_dtype, chunked_trace, control_flow,
            snap_max_jacobian_elements=snap_max_jacobian_elements,
        )  # fmt: skip
        self.synthesizer = synthesizer

    def attach_synthesizer(self, synthesizer: SyntheticGradient) -> None:
        """Use this synthesizer; if every parameter that acts on the states has a trace, warn that it has no effect.

        The losses of later windows reach such a parameter through its trace, each once: with an estimate of them at the
        end of a window they would count twice.
        """
        self.synthesizer = synthesizer
        if self.online is None:
            return
        if not any(verdict.kind == "truncated" for verdict in self.online.report.verdicts.values()):
            warnings.warn(
                "the synthesizer changes no gradient: every parameter of this model that acts on its states has a "
                "trace, which carries what later losses owe to it.",
                stacklevel=2,
            )

    def group_signal_shapes(self) -> dict[int, tuple[int, ...]]:
        """By group, the shape of its states as one array."""
        self._assert_compiled()
        return {g.index: (*g.varshape, g.num_state) for g in self.graph.hidden_groups}

    def rule(self) -> Rule:
        return bootstrapped(self._estimate)

    def _estimate(self, param_values: PyTree, states: list[jax.Array]) -> dict[int, jax.Array]:
        """∂L/∂h by state leaf, as the synthesizer with these parameters estimates it."""
        assert self.online is not None and self.synthesizer is not None
        groups, facts = self.graph.hidden_groups, self.online.learner.facts
        values = {g.index: g.concat_hidden([states[i] for i in facts.groups[g.index].leaves]) for g in groups}
        estimates = self.synthesizer.apply(param_values, values)
        out = {}
        for g in groups:
            if estimates[g.index].shape != values[g.index].shape:
                raise ArgumentError(
                    f"the synthesizer gave an estimate of shape {estimates[g.index].shape} for hidden group {g.index}, "
                    f"whose states are {values[g.index].shape} as one array."
                )
            out |= dict(zip(facts.groups[g.index].leaves, g.split_hidden(estimates[g.index]), strict=True))
        return jax.tree.map(jax.lax.stop_gradient, out)

    def pack(self, online: Stateful, trace: PyTree, modulator: object) -> PyTree:
        if self.synthesizer is None:
            raise RuntimeError(
                "no synthesizer: call `attach_synthesizer(SyntheticGradient(learner.group_signal_shapes()))`."
            )
        return [super().pack(online, trace, modulator), self.synthesizer.param_values()]

    def unpack(self, trace: PyTree) -> PyTree:
        return trace[0]


def train_synthetic_gradient(
    learner: DNI, inputs: jax.Array, *, chunk_size: int = 1, loss_fn: Callable | None = None, optimizer=None,
    lr: float = 0.01, epochs: int = 1, reset: bool = True, batch_size: int | None = None,
) -> list[float]:  # fmt: skip
    """Fit the learner's synthesizer to what each window finds at its entry; the mean errors of the epochs.

    The target at the entry of a window is the derivative of its loss in the states there, and of what the synthesizer
    says at its exit; after the last window it is zero.
    """
    if learner.synthesizer is None:
        raise RuntimeError("no synthesizer to train: call `attach_synthesizer` first.")
    if chunk_size < 1 or len(inputs) % chunk_size:
        raise ArgumentError(f"`chunk_size` ({chunk_size}) must be a multiple of one that divides {len(inputs)} steps.")
    fit = _Fit(learner, chunk_size, loss_fn or (lambda out: (out**2).sum()), optimizer, lr)
    varshape = learner.graph.hidden_groups[0].varshape  # of more than one axis, the first is the batch
    if batch_size is None and len(varshape) > 1:
        batch_size = varshape[0]
    windows = inputs.reshape(-1, chunk_size, *inputs.shape[1:])
    history = []
    for _ in range(epochs):
        if reset:
            brainstate.nn.init_all_states(learner.model4compile, batch_size=batch_size)
            learner.init_etrace_state()
        errors = brainstate.transform.for_loop(fit.window, windows)
        at_end = fit.grouped(fit.values())
        last = fit.towards(at_end, {k: jnp.zeros_like(v) for k, v in at_end.items()})
        history.append(float(jnp.append(errors, last).mean()))
    return history


@dataclass
class _Fit:
    """The synthesizer's regression, window by window."""

    learner: DNI
    chunk: int
    loss_fn: Callable
    optimizer: object
    lr: float

    def values(self) -> dict[Path, PyTree]:
        return {path: state.value for path, state in self.learner.hidden_states.items()}

    def grouped(self, values: Mapping[Path, PyTree]) -> dict[int, jax.Array]:
        return {
            g.index: g.concat_hidden([u.get_mantissa(values[p]) for p in g.hidden_paths])
            for g in self.learner.graph.hidden_groups
        }

    def window(self, xs: jax.Array) -> jax.Array:
        """One window: the model goes on, and the synthesizer takes a step towards what was found at the entry."""
        learner, model, synthesizer = self.learner, self.learner.model4compile, self.learner.synthesizer
        assert synthesizer is not None
        at_entry = self.grouped(self.values())

        def loss() -> jax.Array:
            out = brainstate.transform.for_loop(model, xs) if self.chunk > 1 else model(xs[0])
            at_exit = self.grouped(self.values())
            later = jax.lax.stop_gradient(synthesizer.apply(synthesizer.param_values(), at_exit))
            # Its derivative in the states at the exit is the estimate: what later losses owe to them.
            return self.loss_fn(out) + sum((later[k] * at_exit[k]).sum() for k in at_exit)

        grad = cast(Callable[[], Mapping[Path, PyTree]], brainstate.transform.grad(loss, learner.hidden_states))
        return self.towards(at_entry, self.grouped(grad()))

    def towards(self, hiddens: dict[int, jax.Array], targets: dict[int, jax.Array]) -> jax.Array:
        """One step of regression; the error before it."""
        synthesizer = self.learner.synthesizer
        assert synthesizer is not None
        states = synthesizer.states_dict()

        def error() -> jax.Array:
            estimates = synthesizer.apply(synthesizer.param_values(), hiddens)
            return jnp.stack([((estimates[k] - targets[k]) ** 2).mean() for k in hiddens]).sum()

        # The states may be any tree of them, whatever the annotation there says.
        grad = brainstate.transform.grad(error, states, return_value=True)  # pyright: ignore[reportArgumentType]
        grads, value = cast(Callable[[], tuple[Mapping[tuple[str, int], jax.Array], jax.Array]], grad)()
        if self.optimizer is None:
            for key, state in states.items():
                state.value = state.value - self.lr * grads[key]
        else:
            self.optimizer.update(grads)  # pyright: ignore[reportAttributeAccessIssue]
        return value
