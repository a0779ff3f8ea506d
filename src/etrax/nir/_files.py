"""`read` and `write`: the way from NIR to a learner, and home."""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .._arguments import check_whole, short
from .._errors import ArgumentError, ArgumentTypeError
from ..compiler.ir import PyTree
from ..learn import Learner, check_like
from ._graph import Graph, as_graph, kind_of, nir_package
from ._nodes import KINDS
from ._simulator import Simulator, Spike, as_simulator, as_spike
from ._step import Step

if TYPE_CHECKING:
    import nir

FIELDS = {field for kind in KINDS.values() for field in kind.numbers}


def read(
    graph: nir.NIRGraph | str | Path, *, simulator: Simulator | str = "nir", dt: float | None = None,
    surrogate: Spike | str = "fast_sigmoid", train: Collection[str] = ("weight", "bias", "scale"),
    batch_size: int | None = None, dtype: DTypeLike = jnp.float32,
) -> tuple[Step, PyTree, PyTree]:  # fmt: skip
    """A NIR graph, or the file of one, as `(step, params, hidden)` for `etrax.compile`.

    `simulator` says how continuous time becomes steps, in seconds of `dt`; `surrogate` is the derivative of a spike, by
    name or as a function; `train` names the fields that are parameters, all others are constants. With `batch_size`
    states have a batch axis in front, as the inputs must then have.

    >>> import etrax, jax.numpy as jnp, nir, numpy as np
    >>> one = np.ones(2)
    >>> graph = nir.NIRGraph.from_list(
    ...     nir.Linear(np.ones((2, 3))), nir.LIF(tau=1e-3 * one, r=one, v_leak=0 * one, v_threshold=one))
    >>> step, params, hidden = etrax.nir.read(graph)
    >>> learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=hidden)
    >>> str(learner.report.verdicts["linear", "weight"].kind)
    'exact'
    >>> etrax.nir.write(learner, params).nodes["linear"].weight.shape
    (2, 3)
    """
    if isinstance(train, str) or not isinstance(train, Collection) or not set(train) <= FIELDS:
        raise ArgumentError(f"`train` is {short(train)}; expected some of {', '.join(map(repr, sorted(FIELDS)))}.")
    if batch_size is not None:
        check_whole("batch_size", batch_size, "samples")
    try:
        kind = jnp.dtype(dtype)
    except TypeError:
        kind = None
    if kind is None or not jnp.issubdtype(kind, jnp.floating):
        raise ArgumentTypeError(f"`dtype` is {short(dtype)}; expected a type of real numbers, such as `jnp.float32`.")
    step = Step(as_graph(graph), as_simulator(simulator, dt), as_spike(surrogate), frozenset(train), kind)
    return step, step.params(), step.hidden(batch_size)


def write(step: Step | Learner, params: PyTree) -> nir.NIRGraph:
    """The graph that a step was read from, with other values for its parameters; the graph itself is left as it is.

    >>> import etrax, jax, nir, numpy as np
    >>> step, params, _ = etrax.nir.read(nir.NIRGraph.from_list(nir.Linear(np.ones((2, 3)))))
    >>> etrax.nir.write(step, jax.tree.map(lambda a: 2 * a, params)).nodes["linear"].weight[0].tolist()
    [2.0, 2.0, 2.0]
    """
    model = step.bound.model if isinstance(step, Learner) else step
    if not isinstance(model, Step):
        raise ArgumentTypeError(
            f"`write` takes what `etrax.nir.read` returned, or a learner of it; this {type(model).__name__} has no "
            "graph. Build one of its values (`nir.NIRGraph.from_list(nir.Affine(...), nir.LIF(...))`), and see by "
            "`etrax.nir.read` that it computes the same; docs/nir.md shows it for cells of `etrax.nn`."
        )
    check_like("params", params, model.params(), "`etrax.nir.read`")
    return _with_values(model.graph, params)


def _with_values(graph: Graph, values: PyTree) -> nir.NIRGraph:
    nodes = {}
    for key, node in graph.nodes.items():
        inner = values.get(key, {})
        if kind_of(node) == "NIRGraph":
            nodes[key] = _with_values(node, inner)  # pyright: ignore[reportArgumentType]
            continue
        nodes[key] = copy.deepcopy(node)
        for field, value in inner.items():
            old = np.asarray(getattr(node, field))
            setattr(nodes[key], field, np.asarray(value).astype(old.dtype if old.dtype.kind == "f" else value.dtype))
    metadata = copy.deepcopy(graph.metadata)
    return nir_package().NIRGraph(nodes, list(graph.edges), metadata=metadata, type_check=False)
