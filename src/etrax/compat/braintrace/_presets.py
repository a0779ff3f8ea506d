"""The named algorithms: each is an engine with its coordinates."""

from __future__ import annotations

import operator

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..._errors import ArgumentError, ArgumentTypeError, NotSupportedError
from ...compiler.ir import Path, PyTree
from ...rules import Rule
from ...stateful import Stateful
from ._algorithm import EligibilityTrace, ETraceVjpAlgorithm
from ._compiler import warn_without_effect
from ._config import ControlFlowPolicy, ETraceConfig
from ._rules import rule_of

Traces = dict[tuple[Path, int], jax.Array]
DecayOrRank = float | int | tuple[float | int, float | int]


class ParamDimVjpAlgorithm(ETraceVjpAlgorithm):
    """A trace for each parameter. `fast_solve` and `chunked_trace`, which change no result there, do nothing here."""

    factorization = "per_param"

    def __init__(
        self, model: brainstate.nn.Module, name: str | None = None, vjp_method: str = "single-step",
        fast_solve: bool = True, trace_dtype: DTypeLike | None = None, chunked_trace: bool = True,
        control_flow: ControlFlowPolicy | None = None, config: ETraceConfig | None = None,
        random_feedback_key: jax.Array | None = None, snap_max_jacobian_elements: int = 2**24,
    ):  # fmt: skip
        super().__init__(model, name, vjp_method, control_flow, config, random_feedback_key, snap_max_jacobian_elements)
        self.fast_solve, self.chunked_trace = fast_solve, chunked_trace
        self.trace_dtype = None if trace_dtype is None else jnp.dtype(trace_dtype)


class D_RTRL(ParamDimVjpAlgorithm):
    """`etrax.d_rtrl`: exact wherever each state acts on its own position only, and where its structure allows more."""


class OSTLRecurrent(ParamDimVjpAlgorithm):
    """Online spatio-temporal learning with what a recurrent weight does to a neuron's own next state."""

    regime = "with-H"
    default_config = ETraceConfig(recurrence_scope="coupled")


class SnAp(ParamDimVjpAlgorithm):
    """`etrax.snap(n)`: the influence of a parameter on the positions that it reaches within n steps."""

    def __init__(
        self, model: brainstate.nn.Module, n: int = 2, name: str | None = None, vjp_method: str = "single-step",
        fast_solve: bool = True, snap_max_jacobian_elements: int = 2**24, **kwargs,
    ):  # fmt: skip
        if "config" in kwargs:
            raise ArgumentTypeError("`SnAp` takes `n`, which is its configuration; drop `config=`.")
        config = ETraceConfig(recurrence_scope="sparse_n", sparse_n=n)
        super().__init__(
            model, name, vjp_method, fast_solve, config=config, snap_max_jacobian_elements=snap_max_jacobian_elements,
            **kwargs,
        )  # fmt: skip
        self.n = n


class EProp(ParamDimVjpAlgorithm):
    """`etrax.e_prop`, with symmetric or random feedback."""

    def __init__(
        self, model: brainstate.nn.Module, feedback: str = "symmetric", kappa_filter_decay: float = 0.0,
        random_feedback_key: jax.Array | None = None, name: str | None = None, vjp_method: str = "single-step",
        fast_solve: bool = True, **kwargs,
    ):  # fmt: skip
        if feedback not in ("symmetric", "random"):
            raise ArgumentError(f"`feedback` must be 'symmetric' or 'random'; got {feedback!r}.")
        config = kwargs.pop("config", None)
        if config is None:
            config = ETraceConfig(
                trace_filter="kappa",
                kappa=kappa_filter_decay,
                learning_signal="symmetric" if feedback == "symmetric" else "random_feedback",
            )
        if feedback == "random" and random_feedback_key is None:
            random_feedback_key = jax.random.PRNGKey(0)
        super().__init__(
            model, name, vjp_method, fast_solve, config=config, random_feedback_key=random_feedback_key, **kwargs
        )
        self.feedback, self.kappa_filter_decay = feedback, kappa_filter_decay


class ThreeFactor(ParamDimVjpAlgorithm):
    """Traces under a modulator that is given: the attribute `modulator`, or that of one call."""

    default_config = ETraceConfig(learning_signal="modulatory")

    def __init__(
        self, model: brainstate.nn.Module, name: str | None = None, vjp_method: str = "single-step",
        modulator: object = None, fast_solve: bool = True, trace_dtype: DTypeLike | None = None,
        chunked_trace: bool = True, control_flow: ControlFlowPolicy | None = None,
        snap_max_jacobian_elements: int = 2**24,
    ):  # fmt: skip
        if vjp_method != "single-step":
            raise ArgumentError("a modulator belongs to one step: `ThreeFactor` needs vjp_method='single-step'.")
        super().__init__(
            model, name, vjp_method, fast_solve, trace_dtype, chunked_trace, control_flow,
            snap_max_jacobian_elements=snap_max_jacobian_elements,
        )  # fmt: skip
        self.modulator = modulator

    def pack(self, online: Stateful, trace: PyTree, modulator: object) -> PyTree:
        modulator = self.modulator if modulator is None else modulator
        if modulator is None:
            raise RuntimeError("no modulator: set `learner.modulator`, or call `update(*inputs, modulator=m)`.")
        if isinstance(modulator, tuple | list | dict):
            raise ArgumentTypeError("the modulator is one array for every group, not one per-group array each.")
        signal = {}
        for group, view in zip(online.learner.facts.groups, self.graph.hidden_groups, strict=True):
            shape = (*view.varshape, view.num_state)
            signal[group.index] = _on_positions(jnp.asarray(modulator), shape, group.num_positions, group.index)
        return trace._replace(source=signal)

    def unpack(self, trace: PyTree) -> PyTree:
        return trace._replace(source=())


def _on_positions(value: jax.Array, shape: tuple[int, ...], count: int, index: int) -> jax.Array:
    """A modulator at every position of a group: a number, an array of its positions, or of its states there."""
    if value.shape == shape[:-1] and len(shape) > 1:
        value = value[..., None]
    states = shape[len(shape) - 1]
    if value.ndim == len(shape) and value.shape[len(shape) - 1] > 1:
        raise NotSupportedError(
            f"the modulator has one number for each of the {states} states at a position of hidden group {index}: "
            "pass one for the position."
        )
    try:
        value = jnp.broadcast_to(value, shape)
    except ValueError as error:
        raise ArgumentError(
            f"the modulator has shape {value.shape}; hidden group {index} has shape {shape} (positions, states)."
        ) from error
    return value[..., 0].reshape(count)


class IODimVjpAlgorithm(ETraceVjpAlgorithm):
    """A trace of the input and one of the state, `etrax.pp_prop`. A whole number is a rank r, decay (r − 1)/(r + 1)."""

    factorization = "io_factorized"

    default_config = None

    def __init__(
        self, model: brainstate.nn.Module, decay_or_rank: DecayOrRank, name: str | None = None,
        vjp_method: str = "single-step", fast_solve: bool = True, control_flow: ControlFlowPolicy | None = None,
        config: ETraceConfig | None = None, random_feedback_key: jax.Array | None = None,
    ):  # fmt: skip
        if isinstance(decay_or_rank, tuple | list):
            sides = _decay(decay_or_rank[0]), _decay(decay_or_rank[1])
        else:
            sides = _decay(decay_or_rank)
        if config is None:
            config = ETraceConfig(trace_factorization="io_factorized", decay=sides)
        super().__init__(model, name, vjp_method, control_flow, config, random_feedback_key)
        self.fast_solve, self.decay_or_rank = fast_solve, decay_or_rank

    @property
    def decay_x(self) -> float:
        """The decay of the input's trace."""
        return self.config.decay_x

    @property
    def decay_f(self) -> float:
        """The decay of the state's trace."""
        return self.config.decay_f

    @property
    def decay(self) -> float:
        """The decay of both traces."""
        if self.decay_x != self.decay_f:
            raise AttributeError(
                f"the decays are asymmetric, {self.decay_x} and {self.decay_f}: read `decay_x` and `decay_f`."
            )
        return self.decay_x

    @property
    def etrace_xs(self) -> dict[str, EligibilityTrace]:
        """The traces of inputs."""
        return {key: state for key, state in self.etrace_bwg.items() if key.startswith(".data")}

    @property
    def etrace_dfs(self) -> dict[str, EligibilityTrace]:
        """The traces of states."""
        return {key: state for key, state in self.etrace_bwg.items() if key.startswith(".back")}

    def get_etrace_of(self, weight: brainstate.ParamState | Path) -> tuple[Traces, Traces]:
        """The traces that belong to a parameter, of inputs and of states."""
        path, arrays = self._arrays_of(weight)
        traces = {(path, i): a for i, a in enumerate(a for of_leaf in arrays.values() for a in of_leaf)}
        # The rule says which arrays belong to a parameter; that one of them is an input's, the state that holds it.
        of_inputs = [id(s.value) for s in self.etrace_xs.values()]
        xs = {key: a for key, a in traces.items() if id(a) in of_inputs}
        return xs, {key: a for key, a in traces.items() if key not in xs}


def _decay(value: float | int) -> float:
    if isinstance(value, bool | np.bool_):
        raise ArgumentTypeError("`decay_or_rank` must be a decay in [0, 1) or a rank; got a truth value.")
    if isinstance(value, float):
        if not 0 <= value < 1:
            raise ArgumentError(f"`decay_or_rank` as a decay must be in [0, 1); got {value}.")
        return value
    try:
        rank = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"`decay_or_rank` must be a decay in [0, 1) or a rank; got {value!r}.") from None
    if rank < 1:
        raise ArgumentError(f"`decay_or_rank` as a rank must be at least 1; got {rank}.")
    return (rank - 1) / (rank + 1)


class pp_prop(IODimVjpAlgorithm):
    """`etrax.pp_prop`."""


ES_D_RTRL = pp_prop


class OSTLFeedforward(pp_prop):
    """Online spatio-temporal learning without recurrent weights: of the past, almost nothing is kept."""

    regime = "without-H"

    def __init__(
        self, model: brainstate.nn.Module, decay_or_rank: DecayOrRank = 1e-6, name: str | None = None, **kwargs
    ):
        super().__init__(model, decay_or_rank, name, **kwargs)


class RandomProjectionVjpAlgorithm(ETraceVjpAlgorithm):
    """`etrax.uoro`: an unbiased estimate of rank one of the whole influence."""

    factorization = "random_projection"

    default_config = ETraceConfig(trace_factorization="random_projection", recurrence_scope="coupled")

    def __init__(
        self, model: brainstate.nn.Module, name: str | None = None, vjp_method: str = "multi-step",
        fast_solve: bool = True, control_flow: ControlFlowPolicy | None = None, config: ETraceConfig | None = None,
        projection_key: int | jax.Array = 42, projection_eps: float = 1e-12,
        random_feedback_key: jax.Array | None = None, snap_max_jacobian_elements: int = 2**24,
    ):  # fmt: skip
        super().__init__(model, name, vjp_method, control_flow, config, random_feedback_key, snap_max_jacobian_elements)
        warn_without_effect(type(self).__name__, projection_eps=projection_eps)
        self.fast_solve, self.projection_key, self.projection_eps = fast_solve, projection_key, projection_eps

    def rule(self) -> Rule:
        return rule_of(self.config, self.random_feedback_key, self.projection_key)


class UORO(RandomProjectionVjpAlgorithm):
    """`etrax.uoro`."""

    def __init__(
        self, model: brainstate.nn.Module, name: str | None = None, vjp_method: str = "multi-step",
        fast_solve: bool = True, control_flow: ControlFlowPolicy | None = None, projection_key: int | jax.Array = 42,
        projection_eps: float = 1e-12, random_feedback_key: jax.Array | None = None,
        snap_max_jacobian_elements: int = 2**24,
    ):  # fmt: skip
        super().__init__(
            model, name, vjp_method, fast_solve, control_flow, None, projection_key, projection_eps,
            random_feedback_key, snap_max_jacobian_elements,
        )  # fmt: skip
