"""`compile`: a model and the name of an algorithm, to a learner that is ready."""

from __future__ import annotations

import contextlib

import brainstate
import jax
import jax.numpy as jnp

from ..._errors import ArgumentError, ArgumentTypeError, CompilationError
from ...compiler.ir import PyTree
from ...frontends import check_batch_size
from ._algorithm import ETraceAlgorithm
from ._config import ETraceConfig
from ._dni import DNI
from ._presets import (
    D_RTRL,
    UORO,
    EProp,
    IODimVjpAlgorithm,
    OSTLFeedforward,
    OSTLRecurrent,
    ParamDimVjpAlgorithm,
    RandomProjectionVjpAlgorithm,
    ThreeFactor,
    pp_prop,
)
from ._vmap import ETraceVmap

BY_NAME: dict[str, type[ETraceAlgorithm]] = {
    "d_rtrl": D_RTRL,
    "pp_prop": pp_prop,
    "es_d_rtrl": pp_prop,
    "esd_rtrl": pp_prop,
    "eprop": EProp,
    "e_prop": EProp,
    "ostl_recurrent": OSTLRecurrent,
    "ostl_feedforward": OSTLFeedforward,
    "uoro": UORO,
    "three_factor": ThreeFactor,
    "dni": DNI,
}
BY_FACTORIZATION: dict[str, type[ETraceAlgorithm]] = {
    "per_param": ParamDimVjpAlgorithm,
    "io_factorized": IODimVjpAlgorithm,
    "random_projection": RandomProjectionVjpAlgorithm,
}


def algorithm_class(algorithm: str | ETraceConfig | type[ETraceAlgorithm]) -> type[ETraceAlgorithm]:
    """The class that a name, a configuration or the class itself stands for."""
    if isinstance(algorithm, ETraceConfig):
        return BY_FACTORIZATION[algorithm.trace_factorization]
    if isinstance(algorithm, type) and issubclass(algorithm, ETraceAlgorithm):
        return algorithm
    if not isinstance(algorithm, str):
        raise ArgumentTypeError(
            f"`algorithm` must be a name, a class of algorithms or an `ETraceConfig`; got {algorithm!r}."
        )
    if algorithm.strip().lower() not in BY_NAME:
        raise ArgumentError(f"there is no algorithm {algorithm!r}; there are {', '.join(sorted(BY_NAME))}.")
    return BY_NAME[algorithm.strip().lower()]


def compile(
    model: brainstate.nn.Module, algorithm: str | ETraceConfig | type[ETraceAlgorithm], *example_inputs: object,
    batch_size: int | None = None, seed: int | None = None, verbose: int = 0, vmap: bool = False, **options,
) -> ETraceAlgorithm | ETraceVmap:  # fmt: skip
    """Create the model's states, compile it for the example inputs of one step, and return the learner.

    `options` are those of the algorithm. With `vmap` the model is one of a single sample, and the learner maps it over
    the first axis of its inputs, of size `batch_size`. `seed` is for the initial states; `verbose` prints the report
    (1), with warnings (2).

    >>> import jax.numpy as jnp
    >>> from etrax.compat import braintrace
    >>> learner = compile(braintrace.nn.GRUCell(3, 4), "D_RTRL", jnp.ones((2, 3)), batch_size=2)
    >>> learner(jnp.ones((2, 3))).shape
    (2, 4)
    """
    kind = algorithm_class(algorithm)
    if isinstance(algorithm, ETraceConfig):
        if "config" in options:
            raise ArgumentTypeError("`compile` was given two configurations: drop `config=`.")
        options["config"] = algorithm
        if issubclass(kind, IODimVjpAlgorithm):
            options.setdefault("decay_or_rank", algorithm.decay)
    if not example_inputs:
        raise ArgumentError("`compile` needs an example input of one step, as `learner.update` will be given.")
    check_batch_size(batch_size)
    if verbose not in (0, 1, 2):
        raise ArgumentError(f"`verbose` must be 0, 1 or 2; got {verbose!r}.")
    if vmap and batch_size is None:
        raise ArgumentError("`vmap=True` needs `batch_size=`, the size of the axis that is mapped.")
    with contextlib.nullcontext() if seed is None else brainstate.random.seed_context(seed):
        if vmap:
            learner = kind(model, **options)
            _compile_mapped(model, learner, example_inputs, batch_size)
        else:
            brainstate.nn.init_all_states(model, batch_size=batch_size)
            learner = kind(model, **options)
            learner.compile_graph(*example_inputs)
    if not _reaches_states(learner):
        raise CompilationError(
            "no parameter of the model reaches a hidden state, so there is nothing to learn online (in the peer's "
            "words, no weight goes through an ETP op): check that its states are `brainstate.HiddenState`."
        )
    if verbose:
        learner.report.show(level=verbose)
    return ETraceVmap(learner, vmap_states="new") if vmap else learner  # pyright: ignore[reportCallIssue]


def _reaches_states(learner: ETraceAlgorithm) -> bool:
    """Whether any parameter acts on a hidden state, by a trace or without one."""
    online = getattr(learner, "online", None)
    return bool(learner.graph.hidden_param_op_relations if online is None else online.learner.facts.relations)


def _compile_mapped(
    model: brainstate.nn.Module, learner: ETraceAlgorithm, inputs: tuple[object, ...], batch_size: int | None
) -> None:
    """States and traces of one sample, created with an axis for all of them."""

    def sample(a: PyTree) -> PyTree:
        if jnp.shape(a)[:1] != (batch_size,):
            raise ArgumentError(
                f"`vmap=True` maps the first axis of every input, of size `batch_size` ({batch_size}); found an array "
                f"of shape {jnp.shape(a)}{', a scalar' if not jnp.shape(a) else ''}."
            )
        return a[0]

    one = jax.tree.map(sample, inputs)

    # States that are created in here get the mapped axis; parameters exist already, and have none.
    @brainstate.transform.vmap_new_states(state_tag="new", axis_size=batch_size)
    def create() -> None:
        brainstate.nn.init_all_states(model)
        learner.compile_graph(*one)

    create()
