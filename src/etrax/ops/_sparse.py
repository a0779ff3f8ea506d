"""Sparse products with trainable entries: BCOO, and brainevent's CSR products.

With e over the stored entries, row r(e), column c(e), and f the free axes of the data:

    y[f, i] = Σ_{e: r(e) = i} w[e] u[f, c(e)]        trace[f, e]
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from ._base import OpCall, OpRule, register_weight_op, size


class _Entries(NamedTuple):
    """Row and column of each stored entry."""

    rows: jnp.ndarray
    cols: jnp.ndarray


def _accepts_bcoo(call: OpCall) -> bool:
    (lhs_c, _), (lhs_b, _) = call.params["dimension_numbers"]
    plain = len(call.params["lhs_spinfo"].shape) == 2 and len(call.w.shape) == 1
    return call.weight == 0 and plain and len(lhs_c) == 1 and not lhs_b


def _bcoo_entries(call: OpCall, fixed) -> _Entries:
    inner = call.params["dimension_numbers"][0][0][0]
    return _Entries(fixed[0][:, 1 - inner], fixed[0][:, inner])


def _bcoo_data(call: OpCall, x):
    """(k, f, column)."""
    x = jnp.moveaxis(x, call.params["dimension_numbers"][0][1][0] + 1, -1)
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _accepts_csr(call: OpCall) -> bool:
    return call.weight == 0 and call.w.shape == call.operands[1].shape


def _csr_entries(call: OpCall, fixed) -> _Entries:
    indices, indptr = fixed[:2]
    along = jnp.repeat(jnp.arange(indptr.shape[0] - 1), jnp.diff(indptr), total_repeat_length=indices.shape[0])
    return _Entries(indices, along) if call.params["transpose"] else _Entries(along, indices)


def _csr_data(call: OpCall, x):
    """(k, f, column); events count as one."""
    if call.primitive.startswith("binary"):
        x = (x > 0).astype(call.w.dtype)
    return jnp.swapaxes(x.reshape(*x.shape[:2], -1), 1, 2)


def _rows_last(y, lead: int):
    """An array like y (rows first) behind `lead` axes, as (…, f, row)."""
    return jnp.swapaxes(y.reshape(*y.shape[: lead + 1], -1), lead, lead + 1)


def _rule(accepts, entries, data, fixed_operands: tuple[int, ...]) -> OpRule:
    def products(call, fixed, u, y):
        """u[k, f, c(e)] and y[k, f, r(e)]."""
        at = entries(call, fixed)
        return data(call, u[0])[..., at.cols], _rows_last(y, 1)[..., at.rows]

    def on_entries(call, fixed, y):
        return _rows_last(y, 0)[:, entries(call, fixed).rows]

    return OpRule(
        name="sparse product",
        mixes=True,
        accepts=accepts,
        trace_shape=lambda call: (size(call.out.shape[1:]), call.w.shape[0]),
        outer=lambda call, fixed, u, c: jnp.einsum("kfe,kfe->fe", *products(call, fixed, u, c)),
        spread=on_entries,
        apply=lambda call, fixed, trace, g: jnp.einsum("fe,fe->e", trace, on_entries(call, fixed, g)),
        grad=lambda call, fixed, u, g: jnp.einsum("kfe,kfe->e", *products(call, fixed, u, g)),
        fixed_operands=fixed_operands,
    )


register_weight_op("bcoo_dot_general", _rule(_accepts_bcoo, _bcoo_entries, _bcoo_data, (1,)))
for _name in ("csrmv", "csrmm"):
    register_weight_op(_name, _rule(_accepts_csr, _csr_entries, _csr_data, (1, 2)))
for _name in ("binary_csrmv", "binary_csrmm"):
    register_weight_op(_name, _rule(_accepts_csr, _csr_entries, _csr_data, (1, 2, 4, 5, 6)))
