"""Sparse products with trainable entries: BCOO, and products with a fixed connectivity that has a weight a synapse.

With e over the stored entries, row r(e), column c(e), and f the free axes of the data:

    y[f, i] = Σ_{e: r(e) = i} w[e] u[f, c(e)]        trace[f, e]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._compat import is_concrete
from ..._machine import machine
from ..primitives import PRODUCTS, Stored
from ._base import OpCall, OpRule, register_weight_op, size
from ._entries import Entries, by_entry, by_trace, entries_of, on_traces, plan_on_mesh, plan_product
from ._synapses import columns_of, counts_of, synapses


def _accepts_bcoo(call: OpCall) -> bool:
    (lhs_c, _), (lhs_b, _) = call.params["dimension_numbers"]
    plain = len(call.params["lhs_spinfo"].shape) == 2 and len(call.w.shape) == 1
    return call.weight == 0 and plain and len(lhs_c) == 1 and not lhs_b


def _bcoo_shape(call: OpCall) -> tuple[int, int]:
    inner, shape = call.params["dimension_numbers"][0][0][0], call.params["lhs_spinfo"].shape
    return shape[1 - inner], shape[inner]


def _bcoo_entries(call: OpCall, fixed) -> Entries:
    inner = call.params["dimension_numbers"][0][0][0]
    indices = np.asarray(fixed[0]) if is_concrete(fixed[0]) else fixed[0]
    return entries_of(indices[:, 1 - inner], indices[:, inner], _bcoo_shape(call))


def _bcoo_data(call: OpCall, x):
    """(k, f, column)."""
    x = jnp.moveaxis(x, call.params["dimension_numbers"][0][1][0] + 1, -1)
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _accepts_synapses(call: OpCall) -> bool:
    """Each synapse has a weight of its own."""
    own = call.weight == 0 and size(call.w.shape) == size(call.operands[1].shape)
    return own and counts_of(call) is not None


def _shape(call: OpCall) -> tuple[int, int]:
    return call.out.shape[-1], columns_of(call)


def _data(call: OpCall, x, forward: bool = False):
    """(k, f, column); events count as in the product, or as in its derivative."""
    counts = counts_of(call)
    assert counts is not None
    x = (counts.forward if forward else counts.backward)(x).astype(call.w.dtype)
    return jnp.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2)


def _samples(y, lead: int):
    """An array like y behind `lead` axes, as (…, f, row)."""
    return y.reshape(*y.shape[:lead], -1, y.shape[-1])


def _plan(entries, data, shape):
    """The op by reads alone, which on CPU is several times faster than by scattering."""

    def plan(call: OpCall, fixed) -> Callable | None:
        on_mesh = machine().mesh is not None
        if not (machine().gathers_entries or on_mesh) or call.out.dtype != call.w.dtype:
            return None
        compiled_kernels = call.primitive != "bcoo_dot_general" and find_spec("numba")  # brainevent's own
        if compiled_kernels and not on_mesh:
            return None
        product = (plan_on_mesh if on_mesh else plan_product)(entries(call, fixed), shape(call))

        def with_weights(w):
            run = product(w.reshape(-1))

            def op(x):
                u = data(call, x[None])[0].astype(w.dtype)
                if call.primitive in PRODUCTS and jnp.issubdtype(x.dtype, jnp.inexact):
                    own = x.reshape(x.shape[0], -1).T.astype(w.dtype)
                    u = own + lax.stop_gradient(u - own)  # the derivative of an event is that of the number it was
                return run(u).reshape(call.out.shape)

            return op

        return with_weights

    return plan


def _rule(accepts, entries, data, planned, shape, fixed_operands: tuple[int, ...]) -> OpRule:
    def trace_shape(call):
        return size(call.out.shape[:-1]), size(call.w.shape)

    def outer(call, fixed, u, c):
        """Sample by sample; nothing was there before."""
        zeros = jnp.zeros(trace_shape(call), c.dtype)
        return on_traces(entries(call, fixed), [[None]], [zeros], data(call, u[0]), [_samples(c, 1)])[0]

    def moved(call, fixed, block, traces, u, c):
        rows = [[None if p is None else _samples(p, 0) for p in line] for line in block]
        late = [_samples(a, 1) for a in c]
        return on_traces(entries(call, fixed), rows, traces, data(call, u[0]), late)

    def grad(call, fixed, u, g):
        found = by_entry(entries(call, fixed), data(call, u[0]), _samples(g, 1))
        return found.reshape(call.w.shape)

    return OpRule(
        name="sparse product",
        mixes=True,
        accepts=accepts,
        trace_shape=trace_shape,
        outer=outer,
        spread=lambda call, fixed, p: _samples(p, 0)[:, entries(call, fixed).rows],
        apply=lambda call, fixed, trace, g: by_trace(entries(call, fixed), trace, _samples(g, 0)).reshape(call.w.shape),
        grad=grad,
        fixed_operands=fixed_operands,
        rows_last=True,
        moved=moved,
        plan=_plan(entries, planned, shape),
    )


register_weight_op("bcoo_dot_general", _rule(_accepts_bcoo, _bcoo_entries, _bcoo_data, _bcoo_data, _bcoo_shape, (1,)))
for _name, _product in PRODUCTS.items():
    if _product.stored not in (Stored.NOT, Stored.DENSE):
        _by_synapse = _rule(
            _accepts_synapses,
            lambda call, fixed: synapses(call, fixed, call.out.shape[-1]),
            _data,
            partial(_data, forward=True),
            _shape,
            _product.fixed,
        )
        register_weight_op(_name, _by_synapse)
