"""Sparse products with trainable entries: BCOO, and brainevent's CSR products.

With e over the stored entries, row r(e), column c(e), and f the free axes of the data:

    y[f, i] = Σ_{e: r(e) = i} w[e] u[f, c(e)]        trace[f, e]
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._compat import is_concrete
from ._base import OpCall, OpRule, register_weight_op, size
from ._entries import Entries, by_entry, by_trace, entries_of, on_traces, plan_product


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


def _accepts_csr(call: OpCall) -> bool:
    return call.weight == 0 and call.w.shape == call.operands[1].shape


def _csr_shape(call: OpCall) -> tuple[int, int]:
    return call.out.shape[-1], call.operands[3].shape[0]


def _csr_entries(call: OpCall, fixed) -> Entries:
    indices, indptr = fixed[:2]
    if not is_concrete((indices, indptr)):
        along = jnp.repeat(jnp.arange(indptr.shape[0] - 1), jnp.diff(indptr), total_repeat_length=indices.shape[0])
    else:
        indices, indptr = np.asarray(indices), np.asarray(indptr)
        along = np.repeat(np.arange(indptr.shape[0] - 1, dtype=indices.dtype), np.diff(indptr))
    return entries_of(*((indices, along) if call.params["transpose"] else (along, indices)), _csr_shape(call))


def _csr_data(call: OpCall, x):
    """(k, f, column); events count as one."""
    if call.primitive.startswith("binary"):
        x = (x > 0).astype(call.w.dtype)
    return jnp.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2)


def _samples(y, lead: int):
    """An array like y behind `lead` axes, as (…, f, row)."""
    return y.reshape(*y.shape[:lead], -1, y.shape[-1])


def _plan(entries, data, shape):
    """The op by reads alone, which on CPU is several times faster than by scattering."""

    def plan(call: OpCall, fixed) -> Callable | None:
        if jax.default_backend() != "cpu" or call.out.dtype != call.w.dtype:
            return None
        if call.primitive != "bcoo_dot_general" and find_spec("numba"):  # brainevent's own compiled kernels
            return None
        product = plan_product(entries(call, fixed), shape(call))

        def with_weights(w):
            run = product(w)

            def op(x):
                u = data(call, x[None])[0].astype(w.dtype)
                if call.primitive.startswith("binary") and jnp.issubdtype(x.dtype, jnp.inexact):
                    own = x.reshape(x.shape[0], -1).T.astype(w.dtype)
                    u = own + lax.stop_gradient(u - own)  # the derivative of an event is that of the number it was
                return run(u).reshape(call.out.shape)

            return op

        return with_weights

    return plan


def _rule(accepts, entries, data, shape, fixed_operands: tuple[int, ...]) -> OpRule:
    def outer(call, fixed, u, c):
        """Sample by sample; nothing was there before."""
        zeros = jnp.zeros((size(call.out.shape[:-1]), call.w.shape[0]), c.dtype)
        return on_traces(entries(call, fixed), [[None]], [zeros], data(call, u[0]), [_samples(c, 1)])[0]

    def moved(call, fixed, block, traces, u, c):
        rows = [[None if p is None else _samples(p, 0) for p in line] for line in block]
        late = [_samples(a, 1) for a in c]
        return on_traces(entries(call, fixed), rows, traces, data(call, u[0]), late)

    return OpRule(
        name="sparse product",
        mixes=True,
        accepts=accepts,
        trace_shape=lambda call: (size(call.out.shape[:-1]), call.w.shape[0]),
        outer=outer,
        spread=lambda call, fixed, p: _samples(p, 0)[:, entries(call, fixed).rows],
        apply=lambda call, fixed, trace, g: by_trace(entries(call, fixed), trace, _samples(g, 0)),
        grad=lambda call, fixed, u, g: by_entry(entries(call, fixed), _samples(data(call, u[0]), 0), _samples(g, 0)),
        fixed_operands=fixed_operands,
        rows_last=True,
        moved=moved,
        plan=_plan(entries, data, shape),
    )


register_weight_op("bcoo_dot_general", _rule(_accepts_bcoo, _bcoo_entries, _bcoo_data, _bcoo_shape, (1,)))
for _name in ("csrmv", "csrmm"):
    register_weight_op(_name, _rule(_accepts_csr, _csr_entries, _csr_data, _csr_shape, (1, 2)))
for _name in ("binary_csrmv", "binary_csrmm"):
    register_weight_op(_name, _rule(_accepts_csr, _csr_entries, _csr_data, _csr_shape, (1, 2, 4, 5, 6)))
