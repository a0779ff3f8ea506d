"""Elements summed together: reductions, products with constants, convolutions, cumulative sums."""

from __future__ import annotations

import numpy as np

from ._dep import Dep, reduce
from ._table import Call, Deps, conservative, on_operand, rule


@rule("reduce_sum")
def _reduce_sum(call: Call) -> list[Deps]:
    return on_operand(call, lambda dep: reduce(dep, call.params["axes"], call.cause))


@rule("reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin")
def _reduce_other(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return _reduce_sum(call)


@rule("sort", "top_k")
def _ordered(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return conservative(call)


@rule("cumsum", "cumlogsumexp", "cumprod", "cummax", "cummin")
def _cumulative(call: Call) -> list[Deps]:
    if call.eqn.primitive.name != "cumsum":
        call.problem("is not linear")
    axis = call.params["axis"]

    def f(dep: Dep) -> Dep:
        total = reduce(dep, (axis,), call.cause)
        return total.relocate(lambda m: np.broadcast_to(np.expand_dims(m, axis), dep.shape))

    return on_operand(call, f)


@rule("dot_general")
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


@rule("conv_general_dilated")
def _conv(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
        return conservative(call)
    if call.deps[1] or call.params["batch_group_count"] != 1:
        return conservative(call)
    dims = call.params["dimension_numbers"]
    return _keep_batch(call, dims.lhs_spec[0], (dims.out_spec[0],))


def _keep_batch(call: Call, in_axis: int, out_axes: tuple[int, ...]) -> list[Deps]:
    """Only samples stay apart."""
    shape = call.out_shape()
    if not out_axes:
        return conservative(call)

    def f(dep: Dep) -> Dep:
        dep = reduce(dep, [i for i in range(len(dep.shape)) if i != in_axis], call.cause)
        spread = [n if i in out_axes else 1 for i, n in enumerate(shape)]
        return dep.relocate(lambda m: np.broadcast_to(m.reshape(spread), shape))

    return on_operand(call, f)


@rule("csrmv", "csrmm", "binary_csrmv", "binary_csrmm")
def _csr(call: Call) -> list[Deps]:
    """Samples (the second axis, if any) stay apart."""
    if any(call.deps[:3]):
        return conservative(call)
    shape = call.out_shape()

    def f(dep: Dep) -> Dep:
        return reduce(dep, (0,), call.cause).relocate(lambda m: np.broadcast_to(m, shape))

    return on_operand(call, f, 3) + [{} for _ in call.eqn.outvars[1:]]


@rule("bcoo_dot_general")
def _bcoo(call: Call) -> list[Deps]:
    (_, rhs_c), (lhs_b, _) = call.params["dimension_numbers"]
    if call.deps[0] or lhs_b:
        return conservative(call)
    shape = call.out_shape()

    def f(dep: Dep) -> Dep:
        dep = reduce(dep, rhs_c, call.cause)
        return dep.relocate(lambda m: np.broadcast_to(m, shape))

    return on_operand(call, f, 2)
