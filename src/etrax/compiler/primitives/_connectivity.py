"""Products with a fixed connectivity, as libraries of sparse and of event-driven connections bring them.

The data's first axis is summed along the synapses, the others (samples) stay apart:

    y[i, f] = Σ_j A[i, j] φ(u[j, f])

A is linear in the weights together: one number a synapse, one for all of them, or the two of a distribution from which
the matrix is drawn anew at each use. φ is the identity, or what an event counts for.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from ..._compat import JaxprEqn
from ._dep import Dep, reduce
from ._record import Call, Deps, conservative, define, on_operand


class Stored(Enum):
    """How the synapses of a connectivity are stored."""

    CSR = "indices, starts of the rows"
    CSR_BY_SLOT = "indices, starts of the rows, which weight each synapse has"
    COO = "rows, columns"
    ELL = "equally many indices a row"
    DENSE = "all of them"
    NOT = "drawn from a seed at each use"


class Product(NamedTuple):
    """The operands of a product: weights, data, the connectivity; whether data are events, which need not count by
    their value.
    """

    stored: Stored
    weights: tuple[int, ...]
    data: int
    fixed: tuple[int, ...]
    events: bool


def _row(stored: Stored, weights: int, data: int, operands: int, *names: str) -> dict[str, Product]:
    fixed = tuple(i for i in range(weights, operands) if i != data)
    by_events = ("binary" in name or "event" in name for name in names)
    rows = (Product(stored, tuple(range(weights)), data, fixed, events) for events in by_events)
    return dict(zip(names, rows, strict=True))


PRODUCTS: dict[str, Product] = {
    **_row(Stored.CSR, 1, 3, 4, "csrmv", "csrmm", "csr_matvec", "csr_matmat"),
    **_row(Stored.CSR, 1, 3, 7, "binary_csrmv", "binary_csrmm"),
    **_row(Stored.CSR_BY_SLOT, 1, 4, 8, "binary_csrmv_indexed", "binary_csrmm_indexed"),
    **_row(Stored.COO, 1, 3, 4, "coo_matvec", "coo_matmat"),
    **_row(Stored.ELL, 1, 2, 3, "ell_binary_matvec", "binary_fcnmm"),
    **_row(Stored.DENSE, 1, 1, 2, "binary_densemv", "binary_densemm"),
    **_row(Stored.NOT, 1, 2, 5, "float_jitsmv", "float_jitsmm", "binary_jitsmv", "binary_jitsmm"),
    **_row(Stored.NOT, 2, 3, 5, "float_jitnmv", "float_jitnmm", "event_jitc_mv_normal", "binary_jitc_mm_normal"),
    **_row(Stored.NOT, 2, 3, 5, "float_jitumv", "float_jitumm", "binary_jitumv", "binary_jitumm"),
}


def _pattern(call: Call) -> list[Deps]:
    product = PRODUCTS[call.eqn.primitive.name]
    if any(deps for i, deps in enumerate(call.deps) if i != product.data):
        if any(deps for i, deps in enumerate(call.deps) if i not in product.weights):
            call.problem("multiplies two gradients")
        return conservative(call)
    if product.events and call.deps[product.data]:
        call.problem("is not linear")  # a gradient goes by another product than the events did
    shape = call.out_shape()

    def f(dep: Dep) -> Dep:
        return reduce(dep, (0,), call.cause).relocate(lambda m: np.broadcast_to(m, shape))

    return on_operand(call, f, product.data) + [{} for _ in call.eqn.outvars[1:]]


def _zero(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    product = PRODUCTS[eqn.primitive.name]
    return zeros[product.data] or all(zeros[i] for i in product.weights)


define(*PRODUCTS, pattern=_pattern, zero=_zero)
