"""Linear solves and transforms: linear in one operand, whose elements they mix along one or two axes."""

from __future__ import annotations

from collections.abc import Sequence

from ..._compat import JaxprEqn
from ._mixing import along
from ._range import anywhere
from ._record import Call, Deps, all_zero, any_zero, conservative, define


def _fft(call: Call) -> list[Deps]:
    return along(call, 0, range(-len(call.params["fft_lengths"]), 0))


def _triangular_solve(call: Call) -> list[Deps]:
    return along(call, 1, [-2 if call.params["left_side"] else -1])


def _tridiagonal_solve(call: Call) -> list[Deps]:
    return along(call, 3, [-2])


def _custom_linear_solve(call: Call) -> list[Deps]:
    """Operands are the constants of four functions, then the right-hand sides."""
    if any(call.deps[: sum(call.params["const_lengths"])]):
        call.problem("is not linear")
    return conservative(call)


def _right_hand_sides(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    return all(zeros[sum(eqn.params["const_lengths"]) :])


define("fft", pattern=_fft, zero=all_zero)
define("triangular_solve", pattern=_triangular_solve, zero=any_zero(1), poles=anywhere)
define("tridiagonal_solve", pattern=_tridiagonal_solve, zero=any_zero(3), poles=anywhere)
define("custom_linear_solve", pattern=_custom_linear_solve, zero=_right_hand_sides, poles=anywhere)
