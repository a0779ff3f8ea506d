"""Linear solves and transforms: linear in one operand, whose elements they mix along one or two axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._dep import Dep, reduce
from ._table import Call, Deps, conservative, on_operand, rule


def _along(call: Call, operand: int, axes: Sequence[int]) -> list[Deps]:
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


@rule("fft")
def _fft(call: Call) -> list[Deps]:
    return _along(call, 0, range(-len(call.params["fft_lengths"]), 0))


@rule("triangular_solve")
def _triangular_solve(call: Call) -> list[Deps]:
    return _along(call, 1, [-2 if call.params["left_side"] else -1])


@rule("tridiagonal_solve")
def _tridiagonal_solve(call: Call) -> list[Deps]:
    return _along(call, 3, [-2])


@rule("custom_linear_solve")
def _custom_linear_solve(call: Call) -> list[Deps]:
    """Operands are the constants of four functions, then the right-hand sides."""
    lengths = call.params["const_lengths"]
    if any(call.deps[: sum(lengths)]):
        call.problem("is not linear")
    return conservative(call)


@rule("ragged_dot_general")
def _ragged_dot(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
    return conservative(call)
