"""Weight ops that mix nothing, written out as the products of elements that they are.

Whether an op mixes positions is which elements of its data reach which of its output, not its primitive:

| written as | is |
|---|---|
| `einsum("d,dn->dn", u, w)`, a product without a contraction | `u[:, None] * w` |
| `einsum("btc,tc->bc", u, w)`, in which each channel has weights of its own | `(u * w).sum(1)` |
| a depthwise convolution of which one place is read | the same |
| `jnp.diag(a) @ u`, a matrix that is zero off its diagonal for any parameters | `a * u` |

A step is rewritten where a gradient passes the op's data. Everything that follows then sees an elementwise weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._compat import Jaxpr, JaxprEqn, Literal, close_jaxpr, is_jaxpr, open_jaxpr
from ..dataflow import zeros_of_variables
from ..ir import Site, Step, check_step, without_calls
from ..ops import Letters, OpCall, expand, letters_of, size
from ._chain import as_call
from ._sites import WeightSite, find_sites

# What computes an op's output, given its operands in order.
Written: TypeAlias = Callable[..., Array]


def with_elementwise_ops(step: Step) -> tuple[Step, tuple[WeightSite, ...]]:
    """The step, with weight ops that mix nothing as elementwise products, and its weight ops; itself if all mix."""
    every = find_sites(step)
    # A product that is told how its result lies on devices stays as it is.
    sites = [s for s in every if s.rule.mixes and s.reads_moving and s.call.params.get("out_sharding") is None]
    written = {site.at: op for site in sites if (op := _written_out(step, site)) is not None}
    diagonal = [site for site in sites if site.at not in written and _may_be_diagonal(step, site)]
    if diagonal:
        zeros = zeros_of_variables(step)
        for site in diagonal:
            mask = zeros[step.jaxpr.eqns[next(iter(site.at))].invars[site.operand]].nonzero()
            if mask is not None and _is_diagonal(site.call, mask):
                written[site.at] = partial(_by_diagonal, site.call)
    if not written:
        return step, every
    jaxpr, consts = without_calls(_rewritten(step.jaxpr, (), written), step.consts)
    step = check_step(replace(step, jaxpr=jaxpr, consts=consts))
    return step, find_sites(step)


def _rewritten(jaxpr: Jaxpr, at: Site, written: Mapping[Site, Written]) -> Jaxpr:
    """A program with calls of elementwise products in place of some equations, also inside loops and branches."""
    return jaxpr.replace(eqns=[_equation(eqn, (*at, i), written) for i, eqn in enumerate(jaxpr.eqns)])


def _equation(eqn: JaxprEqn, at: Site, written: Mapping[Site, Written]) -> JaxprEqn:
    if at in written:
        return as_call(eqn, eqn.invars, written[at])
    if not any(site[: len(at)] == at for site in written):
        return eqn
    bodies = {key: body for key, body in eqn.params.items() if is_jaxpr(body)}
    params = {key: _body(body, at, written) for key, body in bodies.items()}
    if eqn.primitive.name == "cond":
        branches = enumerate(eqn.params["branches"])
        params["branches"] = tuple(_body(body, (*at, number), written) for number, body in branches)
    return eqn.replace(params={**eqn.params, **params})


def _body(body: Jaxpr, at: Site, written: Mapping[Site, Written]) -> Jaxpr:
    jaxpr, consts = open_jaxpr(body)
    return close_jaxpr(_rewritten(jaxpr, at, written), consts)


def _written_out(step: Step, site: WeightSite) -> Written | None:
    """How an op is computed element by element; None if its shape alone does not say that it can be."""
    call = site.call
    if site.rule.name == "matmul" and call.primitive == "dot_general" and _sums_by_element(call):
        return partial(_by_products, call)
    if site.rule.name == "convolution" and _is_depthwise(call):
        place = _place_read(step.jaxpr, site)
        return None if place is None else partial(_by_taps, call, place)
    return None


def _lengths(call: OpCall, s: Letters) -> dict[str, int]:
    data = call.operands[1 - call.weight]
    return dict(zip(s.u + s.w, (*data.shape, *call.w.shape), strict=True))


def _sums_by_element(call: OpCall) -> bool:
    """Whether a product adds nothing up, or adds up what each of several channels reads by weights of its own.

    One unit that feeds a layer adds nothing up either. It stays a product: what is below it is carried as a hop.
    """
    s = letters_of(call)
    lengths = _lengths(call, s)
    contracted = size([lengths[x] for x in s.w if x not in s.y])
    free = size([lengths[x] for x in s.w if x not in s.u])
    channels = size([lengths[x] for x in s.w if x in s.u and x in s.y])
    adds = any(x not in s.y for x in s.w)
    return not adds or contracted == free == 1 or (channels > 1 and 1 in (contracted, free))


def _by_products(call: OpCall, *operands: Array) -> Array:
    """y[b, f, o] = Σ_c u[b, f, c] w[b, c, o], by broadcasting."""
    s = letters_of(call)
    summed = "".join(x for x in s.w if x not in s.y)
    full = s.y + summed
    u, w = (a.astype(call.out.dtype) for a in (operands[1 - call.weight], operands[call.weight]))
    terms = expand(u, s.u, full) * expand(w, s.w, full)
    return terms.sum(tuple(range(len(s.y), len(full)))) if summed else terms


# --- diagonal matrices ---


def _may_be_diagonal(step: Step, site: WeightSite) -> bool:
    """Whether a weight is a square matrix, or several, that is computed of parameters."""
    if site.rule.name != "matmul" or site.call.primitive != "dot_general" or len(site.at) > 1:
        return False
    s = letters_of(site.call)
    axes = _matrix_axes(s)
    var = step.jaxpr.eqns[next(iter(site.at))].invars[site.operand]
    is_computed = not isinstance(var, Literal) and var not in step.jaxpr.invars
    return is_computed and axes is not None and site.call.w.shape[axes[0]] == site.call.w.shape[axes[1]]


def _matrix_axes(s: Letters) -> tuple[int, int] | None:
    """The contracted and the free axis of a weight, if it has one each."""
    contracted = [i for i, x in enumerate(s.w) if x not in s.y]
    free = [i for i, x in enumerate(s.w) if x not in s.u]
    return (contracted[0], free[0]) if len(contracted) == len(free) == 1 else None


def _is_diagonal(call: OpCall, nonzero: np.ndarray) -> bool:
    axes = _matrix_axes(letters_of(call))
    assert axes is not None
    n = call.w.shape[axes[0]]
    return not np.moveaxis(nonzero, axes, (-2, -1))[..., ~np.eye(n, dtype=bool)].any()


def _by_diagonal(call: OpCall, *operands: Array) -> Array:
    """y[b, f, o] = u[b, f, o] w[b, o, o]; a sum over rows of which one element is not zero is that element."""
    s = letters_of(call)
    axes = _matrix_axes(s)
    assert axes is not None
    contracted, free = (s.w[i] for i in axes)
    u, w = (a.astype(call.out.dtype) for a in (operands[1 - call.weight], operands[call.weight]))
    diagonal, left = w.sum(axes[0]), s.w.replace(contracted, "")
    return expand(u, s.u.replace(contracted, free), s.y) * expand(diagonal, left, s.y)


# --- depthwise convolutions ---


def _is_depthwise(call: OpCall) -> bool:
    """Whether each channel is convolved by itself."""
    channels = call.operands[0].shape[call.params["dimension_numbers"].lhs_spec[1]]
    return call.params["feature_group_count"] == channels


def _place_read(jaxpr: Jaxpr, site: WeightSite) -> tuple[int, ...] | None:
    """The one place of a convolution's output that is read; None if there are several.

    A causal convolution over the last inputs is often computed at all places, and the last of them read.
    """
    axes = site.call.params["dimension_numbers"].out_spec[2:]
    lengths = [site.call.out.shape[axis] for axis in axes]
    if size(lengths) == 1:
        return (0,) * len(axes)
    if len(site.at) > 1:
        return None
    y = jaxpr.eqns[next(iter(site.at))].outvars[0]
    readers = [eqn for eqn in jaxpr.eqns if any(v is y for v in eqn.invars)]
    if not readers or any(eqn.primitive.name != "slice" for eqn in readers) or any(v is y for v in jaxpr.outvars):
        return None
    parts = {
        tuple((eqn.params["start_indices"][axis], eqn.params["limit_indices"][axis]) for axis in axes)
        for eqn in readers
    }
    bounds = parts.pop()
    return tuple(low for low, _ in bounds) if not parts and all(high == low + 1 for low, high in bounds) else None


def _by_taps(call: OpCall, place: Sequence[int], u: Array, w: Array) -> Array:
    """y at one place, Σ_k u[n, c, k] w[c, m, k] over the taps k; zero at the others, which nothing reads."""
    p, dims = call.params, call.params["dimension_numbers"]
    u, w = lax.transpose(u, dims.lhs_spec), lax.transpose(w, dims.rhs_spec)  # (n, c, places…), (c m, 1, taps…)
    taps, channels = w.shape[2:], u.shape[1]
    padding = [(low, high, gap - 1) for (low, high), gap in zip(p["padding"], p["lhs_dilation"], strict=True)]
    u = lax.pad(u, jnp.zeros((), u.dtype), [(0, 0, 0), (0, 0, 0), *padding])
    starts = [at * stride for at, stride in zip(place, p["window_strides"], strict=True)]
    ends = [start + (n - 1) * gap + 1 for start, n, gap in zip(starts, taps, p["rhs_dilation"], strict=True)]
    u = lax.slice(u, (0, 0, *starts), (*u.shape[:2], *ends), (1, 1, *p["rhs_dilation"]))
    u = lax.expand_dims(u.astype(call.out.dtype), (2,))  # (n, c, 1, taps…)
    w = w.reshape(1, channels, w.shape[0] // channels, *taps).astype(call.out.dtype)
    y = (u * w).sum(tuple(range(3, u.ndim))).reshape(u.shape[0], -1, *[1] * len(taps))
    lengths = [call.out.shape[axis] for axis in dims.out_spec[2:]]
    around = [(at, n - at - 1, 0) for at, n in zip(place, lengths, strict=True)]
    y = lax.pad(y, jnp.zeros((), y.dtype), [(0, 0, 0), (0, 0, 0), *around])
    return lax.transpose(y, np.argsort(dims.out_spec))
