"""`conv_general_dilated` with strides, padding, dilation and feature groups, as a product over patches.

With n (sample), p (output place), g (feature group), c (patch element), o (output channel of the group):

    y[n, p, g, o] = Σ_c patch[n, p, g, c] w[g, c, o]        trace[n, p, g, c, o]
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from ._base import Columns, OpCall, OpRule, register_weight_op, size


def _accepts(call: OpCall) -> bool:
    return call.weight == 1 and call.params["batch_group_count"] == 1


def _sizes(call: OpCall) -> tuple[int, int, int, int, int]:
    """n, p, g, c, o. The specs of a convolution say where sample, channel and places stand: in this order."""
    dims, groups = call.params["dimension_numbers"], call.params["feature_group_count"]
    out = [call.out.shape[i] for i in dims.out_spec]
    w = [call.w.shape[i] for i in dims.rhs_spec]
    return out[0], size(out[2:]), groups, w[1] * size(w[2:]), out[1] // groups


def _patches(call: OpCall, u: Array) -> Array:
    """Patches (k, n, p, g, c) of the data (k, *u)."""
    p, dims = call.params, call.params["dimension_numbers"]
    k, (n, places, groups, depth, _) = u.shape[0], _sizes(call)
    # (k, n, channel, places…), then steps and samples as one axis, for which patches are cut out at once.
    u = jnp.moveaxis(u, [d + 1 for d in dims.lhs_spec], range(1, u.ndim))
    u = u.reshape(k * n, *u.shape[2:])
    window = [call.w.shape[i] for i in dims.rhs_spec[2:]]
    patches = lax.conv_general_dilated_patches(
        u,
        window,
        p["window_strides"],
        p["padding"],
        p["lhs_dilation"],
        p["rhs_dilation"],
        precision=lax.Precision.HIGHEST,  # JAX cuts patches out by a convolution, which must not round the data
    )
    return jnp.moveaxis(patches.reshape(k, n, groups, depth, places), 4, 2)


def _by_group(call: OpCall, y: Array, lead: int) -> Array:
    """An array like y behind `lead` axes, as (…, n, p, g, o)."""
    dims, (n, places, groups, _, o) = call.params["dimension_numbers"], _sizes(call)
    y = jnp.moveaxis(y, [d + lead for d in dims.out_spec], range(lead, y.ndim))
    return jnp.moveaxis(y.reshape(*y.shape[:lead], n, groups, o, places), -1, lead + 1)


def _to_weight(call: OpCall, w: Array) -> Array:
    """(g, c, o) in the layout of the weight, whose output channels count groups first."""
    dims = call.params["dimension_numbers"]
    shape = [call.w.shape[i] for i in dims.rhs_spec]
    return jnp.moveaxis(jnp.moveaxis(w, 2, 1).reshape(shape), range(len(shape)), dims.rhs_spec)


def _columns(call: OpCall) -> Columns | None:
    dims, rank = call.params["dimension_numbers"], len(call.out.shape)
    one_group = call.params["feature_group_count"] == 1
    return Columns(dims.out_spec[1] - rank, dims.rhs_spec[0] - rank) if one_group else None


CONV = OpRule(
    name="convolution",
    mixes=True,
    accepts=_accepts,
    trace_shape=_sizes,
    outer=lambda call, fixed, u, c: jnp.einsum("knpgc,knpgo->npgco", _patches(call, u[0]), _by_group(call, c, 1)),
    spread=lambda call, fixed, p: _by_group(call, p, 0)[:, :, :, None, :],
    apply=lambda call, fixed, trace, g: _to_weight(call, jnp.einsum("npgco,npgo->gco", trace, _by_group(call, g, 0))),
    grad=lambda call, fixed, u, g: _to_weight(
        call, jnp.einsum("knpgc,knpgo->gco", _patches(call, u[0]), _by_group(call, g, 1))
    ),
    columns=_columns,
)
register_weight_op("conv_general_dilated", CONV)
