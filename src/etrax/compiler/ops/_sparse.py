"""Sparse products with trainable entries: BCOO, and products with a fixed connectivity that has a weight a synapse.

With e over the stored entries, row r(e), column c(e), and f the free axes of the data:

    y[f, i] = Σ_{e: r(e) = i} w[e] u[f, c(e)]        trace[f, e]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import is_concrete
from ..._machine import machine
from ..primitives import PRODUCTS, Stored
from ._base import BlockRow, Kernels, OpCall, Operands, OpRule, Product, WithWeight, register_weight_op, size
from ._entries import Entries, by_entry, by_trace, entries_of, on_traces, plan_on_mesh, plan_product
from ._synapses import columns_of, counts_of, synapses


@dataclass(frozen=True)
class _Storage:
    """How one kind of sparse matrix holds its entries, and where the data of its product stand.

    `data` gives (k, f, column) as it counts in the derivative, `product_data` as it counts in the product itself;
    `shape` is (rows, columns).
    """

    accepts: Callable[[OpCall], bool]
    entries: Callable[[OpCall, Operands], Entries]
    data: Callable[[OpCall, Array], Array]
    product_data: Callable[[OpCall, Array], Array]
    shape: Callable[[OpCall], tuple[int, int]]
    fixed_operands: tuple[int, ...]


def _accepts_bcoo(call: OpCall) -> bool:
    (lhs_c, _), (lhs_b, _) = call.params["dimension_numbers"]
    plain = len(call.params["lhs_spinfo"].shape) == 2 and len(call.w.shape) == 1
    return call.weight == 0 and plain and len(lhs_c) == 1 and not lhs_b


def _bcoo_shape(call: OpCall) -> tuple[int, int]:
    # The contracted axis of the matrix is that of columns, whichever it is.
    inner, shape = call.params["dimension_numbers"][0][0][0], call.params["lhs_spinfo"].shape
    return shape[1 - inner], shape[inner]


def _bcoo_entries(call: OpCall, fixed: Operands) -> Entries:
    inner = call.params["dimension_numbers"][0][0][0]
    indices = np.asarray(fixed[0]) if is_concrete(fixed[0]) else fixed[0]
    return entries_of(indices[:, 1 - inner], indices[:, inner], _bcoo_shape(call))


def _bcoo_data(call: OpCall, x: Array) -> Array:
    """(k, f, column) of the data (k, *u), whose contracted axis is that of columns."""
    x = jnp.moveaxis(x, call.params["dimension_numbers"][0][1][0] + 1, -1)
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _accepts_synapses(call: OpCall) -> bool:
    """Each synapse has a weight, and the product is the one that its row of the table says."""
    return call.weight == 0 and size(call.w.shape) == size(call.operands[1].shape) and counts_of(call) is not None


def _synapse_shape(call: OpCall) -> tuple[int, int]:
    return call.out.shape[-1], columns_of(call)


def _synapse_data(call: OpCall, x: Array, forward: bool = False) -> Array:
    """(k, f, column) of data (k, column, f…); events count as in the product, or as in its derivative."""
    counts = counts_of(call)
    assert counts is not None
    x = (counts.forward if forward else counts.backward)(x).astype(call.w.dtype)
    return jnp.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2)


def _samples(y: Array, lead: int) -> Array:
    """An array like y behind `lead` axes, as (…, f, row)."""
    return y.reshape(*y.shape[:lead], -1, y.shape[-1])


def _product(storage: _Storage, call: OpCall, fixed: Operands) -> WithWeight | None:
    """The op by reads alone, which on a CPU is several times faster than by scattering; on a mesh, in its own way."""
    on_mesh = machine().mesh is not None
    if not (machine().gathers_entries or on_mesh) or call.out.dtype != call.w.dtype:
        return None
    # brainevent has compiled kernels of its own where numba is installed; these cannot be cut over devices.
    if call.primitive != "bcoo_dot_general" and find_spec("numba") and not on_mesh:
        return None
    by_weight = (plan_on_mesh if on_mesh else plan_product)(storage.entries(call, fixed), storage.shape(call))

    def with_weight(w: Array) -> Product:
        product = by_weight(w.reshape(-1))

        def op(x: Array) -> Array:
            u = storage.product_data(call, x[None])[0].astype(w.dtype)
            if call.primitive in PRODUCTS and jnp.issubdtype(x.dtype, jnp.inexact):
                # The value is that of the event, the derivative that of the number it was.
                number = x.reshape(x.shape[0], -1).T.astype(w.dtype)
                u = number + lax.stop_gradient(u - number)
            return product(u).reshape(call.out.shape)

        return op

    return with_weight


def _rule(storage: _Storage) -> OpRule:
    entries, data = storage.entries, storage.data

    def trace_shape(call: OpCall) -> tuple[int, int]:
        return size(call.out.shape[:-1]), size(call.w.shape)

    def outer(call: OpCall, fixed: Operands, u: Sequence[Array], c: Array) -> Array:
        """`move` of a trace of zeros, sample by sample: no array is as large as entries times steps."""
        zeros = jnp.zeros(trace_shape(call), c.dtype)
        return on_traces(entries(call, fixed), [[None]], [zeros], data(call, u[0]), [_samples(c, 1)])[0]

    def spread(call: OpCall, fixed: Operands, p: Array) -> Array:
        return _samples(p, 0)[:, entries(call, fixed).rows]

    def apply(call: OpCall, fixed: Operands, trace: Array, g: Array) -> Array:
        return by_trace(entries(call, fixed), trace, _samples(g, 0)).reshape(call.w.shape)

    def grad(call: OpCall, fixed: Operands, u: Sequence[Array], g: Array) -> Array:
        return by_entry(entries(call, fixed), data(call, u[0]), _samples(g, 1)).reshape(call.w.shape)

    def move(
        call: OpCall, fixed: Operands, block: Sequence[BlockRow], traces: Sequence[Array], u: Sequence[Array],
        c: Sequence[Array],
    ) -> tuple[Array, ...]:  # fmt: skip
        rows = [[None if p is None else _samples(p, 0) for p in row] for row in block]
        return on_traces(entries(call, fixed), rows, traces, data(call, u[0]), [_samples(a, 1) for a in c])

    return OpRule(
        name="sparse product",
        mixes=True,
        accepts=storage.accepts,
        trace_shape=trace_shape,
        outer=outer,
        spread=spread,
        apply=apply,
        grad=grad,
        fixed_operands=storage.fixed_operands,
        kernels=Kernels(product=partial(_product, storage), move=move, rows_last=True),
    )


_BCOO = _Storage(_accepts_bcoo, _bcoo_entries, _bcoo_data, _bcoo_data, _bcoo_shape, (1,))
register_weight_op("bcoo_dot_general", _rule(_BCOO))
for _name, _kind in PRODUCTS.items():
    if _kind.stored not in (Stored.NOT, Stored.DENSE):
        _by_synapse = _Storage(
            _accepts_synapses,
            lambda call, fixed: synapses(call, fixed, call.out.shape[-1]),
            _synapse_data,
            partial(_synapse_data, forward=True),
            _synapse_shape,
            _kind.fixed,
        )
        register_weight_op(_name, _rule(_by_synapse))
