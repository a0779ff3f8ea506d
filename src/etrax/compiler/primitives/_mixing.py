"""Elements summed together: reductions, products with constants, convolutions, cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._compat import JaxprEqn
from ._dep import Dep, reduce
from ._name import name_of_linear
from ._range import POSITIVE, always, of_sum, same, summed, times
from ._record import Along, Call, Deps, all_zero, any_zero, conservative, define, on_operand


def _reduce_sum(call: Call) -> list[Deps]:
    return on_operand(call, lambda dep: reduce(dep, call.params["axes"], call.cause))


def _reduce_other(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return _reduce_sum(call)


def _ordered(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return conservative(call)


def along(call: Call, operand: int, axes: Sequence[int]) -> list[Deps]:
    """Linear in one operand: each of its elements reaches all of the output along `axes`, other axes stay apart."""
    if any(deps for i, deps in enumerate(call.deps) if i != operand):
        call.problem("is not linear")
        return conservative(call)
    shape, rank = call.out_shape(), len(call.in_shape(operand))
    axes = [a % rank for a in axes]

    def f(dep: Dep) -> Dep:
        total = reduce(dep, axes, call.cause)
        return total.relocate(lambda m: np.broadcast_to(np.expand_dims(m, tuple(axes)), shape))

    return on_operand(call, f, operand)


def _cumsum(call: Call) -> list[Deps]:
    return along(call, 0, [call.params["axis"]])


def _cumulative(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return _cumsum(call)


def _dot_general(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
        return conservative(call)
    side = 0 if call.deps[0] else 1
    contracted, batch = (pair[side] for pair in call.params["dimension_numbers"])
    rank, shape = len(call.in_shape(side)), call.out_shape()
    free = [i for i in range(rank) if i not in contracted and i not in batch]
    first = len(batch) if side == 0 else len(shape) - len(free)

    def f(dep: Dep) -> Dep:
        dep = dep.relocate(lambda m: m.transpose(*batch, *free, *contracted))
        dep = reduce(dep, range(len(batch) + len(free), rank), call.cause) if contracted else dep
        spread = [1] * len(shape)
        for axis, n in enumerate(dep.shape):
            spread[axis if axis < len(batch) else first + axis - len(batch)] = n
        return dep.relocate(lambda m: np.broadcast_to(m.reshape(spread), shape))

    return on_operand(call, f, side)


def _conv(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
        return conservative(call)
    if call.deps[1] or call.params["batch_group_count"] != 1:
        return conservative(call)
    dims = call.params["dimension_numbers"]
    shape, sample = call.out_shape(), dims.lhs_spec[0]  # only samples stay apart

    def f(dep: Dep) -> Dep:
        dep = reduce(dep, [i for i in range(len(dep.shape)) if i != sample], call.cause)
        spread = [n if i == dims.out_spec[0] else 1 for i, n in enumerate(shape)]
        return dep.relocate(lambda m: np.broadcast_to(m.reshape(spread), shape))

    return on_operand(call, f)


def _ragged_dot(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
    return conservative(call)


def _bcoo(call: Call) -> list[Deps]:
    (_, rhs_c), (lhs_b, _) = call.params["dimension_numbers"]
    if call.deps[0] or lhs_b:
        return conservative(call)
    shape = call.out_shape()

    def f(dep: Dep) -> Dep:
        dep = reduce(dep, rhs_c, call.cause)
        return dep.relocate(lambda m: np.broadcast_to(m, shape))

    return on_operand(call, f, 2)


def _reduce_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    return [tuple(a for i, a in enumerate(along[0]) if i not in eqn.params["axes"])]


def _dot_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    """Batch axes come first, then the free axes of the left operand, then those of the right one."""
    contracted, (batch_left, batch_right) = eqn.params["dimension_numbers"]
    left, right = along
    shared = [left[i] and right[j] for i, j in zip(batch_left, batch_right, strict=True)]
    free = [
        side[i]
        for side, summed, batch in zip((left, right), contracted, (batch_left, batch_right), strict=True)
        for i in range(len(side))
        if i not in summed and i not in batch
    ]
    return [(*shared, *free)]


_reduces = {"uniform": _reduce_uniform, "light": True}
define("reduce_sum", **_reduces, pattern=_reduce_sum, zero=all_zero, bounds=of_sum, name=name_of_linear)
define("reduce_max", "reduce_min", **_reduces, pattern=_reduce_other, bounds=same)
define("reduce_prod", "reduce_and", "reduce_or", **_reduces, pattern=_reduce_other)
define("reduce_xor", pattern=_reduce_other)
define("argmax", "argmin", pattern=_reduce_other, bounds=always(POSITIVE), light=True)
define("sort", "top_k", pattern=_ordered)
define("unvmap_all", "unvmap_any", "unvmap_max", pattern=_ordered)  # Equinox's reductions over all samples
define("cumsum", pattern=_cumsum, zero=all_zero, bounds=of_sum)
define("cummax", "cummin", pattern=_cumulative, bounds=same)
define("cumprod", "cumlogsumexp", pattern=_cumulative)
define("dot_general", pattern=_dot_general, zero=any_zero(0, 1), product=True, uniform=_dot_uniform,
       bounds=lambda eqn, r: summed(times(r[0], r[1])))  # fmt: skip
define("conv_general_dilated", pattern=_conv, zero=any_zero(0, 1), product=True)
define("ragged_dot_general", pattern=_ragged_dot, zero=any_zero(0, 1))
define("bcoo_dot_general", pattern=_bcoo, zero=any_zero(0, 2))
