"""How far the rule's gradient is from the true one, measured at the end of every epoch."""

from __future__ import annotations

from collections.abc import Callable

import jax

from ..compiler.ir import LossFunction, PyTree, format_path
from ..learn import Learner
from ..meter import Measured
from ._batch import Batch

# By the name of a parameter, and "all": the cosine with the true gradient, and the ends of its interval.
Cosines = dict[str, tuple[float, float, float]]


def bias_meter(
    learner: Learner, loss_fn: LossFunction, window: int, probes: int
) -> Callable[[Batch, bool, PyTree, int], Cosines]:
    """`f(batch, batched, params, epoch)`: the rule's cosines with the true gradient of one batch, by the meter."""
    meter = learner.meter(loss_fn, window, probes)

    def measure(batch: Batch, batched: bool, params: PyTree, epoch: int) -> Cosines:
        # Other directions in every epoch, so that a lucky or unlucky draw does not stay.
        reading = meter.measure(params, learner.init(params), *batch.masked(batched), key=jax.random.key(epoch))
        named = {format_path(path, "params").strip("'"): m for path, m in reading.parameters.items()}
        return {name: _numbers(m) for name, m in {**named, "all": reading.whole}.items()}

    return measure


def _numbers(measured: Measured) -> tuple[float, float, float]:
    return measured.cosine, *measured.interval
