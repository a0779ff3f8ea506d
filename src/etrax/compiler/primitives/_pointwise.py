"""Element by element: sums, products, casts, choices, and functions that are not linear."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from ..._compat import is_inexact
from ._dep import Dep, union
from ._range import (
    ANY,
    POSITIVE,
    UNIT,
    ZERO,
    Bounds,
    Range,
    always,
    join,
    minus,
    monotone,
    of_clamp,
    of_product,
    of_quotient,
    plus,
    power,
    same,
)
from ._record import Call, Deps, Pattern, Precision, Zero, all_zero, any_zero, define


def pointwise(call: Call) -> list[Deps]:
    """Output element e depends on what element e of each operand depends on; scalars are broadcast."""
    shape = call.out_shape()
    found: dict[Hashable, list[Dep]] = {}
    for deps in call.deps:
        for source, dep in deps.items():
            if dep.shape != shape:
                dep = dep.relocate(lambda m: np.broadcast_to(m, shape), call.cause)
            found.setdefault(source, []).append(dep)
    merged = {source: union(deps) for source, deps in found.items()}
    return [merged for _ in call.eqn.outvars]


def _mul(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
    return pointwise(call)


def _div(call: Call) -> list[Deps]:
    if call.deps[1]:
        call.problem("divides by a gradient")
    return pointwise(call)


def _select(call: Call) -> list[Deps]:
    if call.deps[0]:
        call.problem("chooses by the value of a gradient")
    return pointwise(call)


def _convert(call: Call) -> list[Deps]:
    before, after = (v.aval for v in (call.eqn.invars[0], call.eqn.outvars[0]))
    if not is_inexact(after):
        call.problem("rounds a gradient")
    elif is_inexact(before) and not Precision.of(after.dtype).holds(Precision.of(before.dtype)):
        call.problem(f"rounds a gradient to {after.dtype}", Precision.of(after.dtype))
    return pointwise(call)


def _reduce_precision(call: Call) -> list[Deps]:
    kept = Precision(call.params["exponent_bits"], call.params["mantissa_bits"])
    call.problem(f"rounds a gradient to {kept.fraction} bits", kept)
    return pointwise(call)


def _nonlinear(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return pointwise(call)


def _define(*names: str, pattern: Pattern = _nonlinear, zero: Zero | None = None, bounds: Bounds | None = None) -> None:
    define(*names, pattern=pattern, zero=zero, bounds=bounds, elementwise=True)


# Linear in all operands together.
_define("neg", pattern=pointwise, zero=all_zero, bounds=lambda eqn, r: minus(r[0]))
_define("add", "add_any", pattern=pointwise, zero=all_zero, bounds=lambda eqn, r: plus(r[0], r[1]))
_define("sub", pattern=pointwise, zero=all_zero, bounds=lambda eqn, r: plus(r[0], minus(r[1])))
_define("copy", "real", pattern=pointwise, zero=all_zero, bounds=same)
_define(
    "copy_p", "imag", "conj", "complex", "name", "sharding_constraint", "layout_constraint", "reshard", "relayout",
    "device_put", "mesh_cast", "pvary", pattern=pointwise, zero=all_zero,
)  # fmt: skip
_define("convert_element_type", pattern=_convert, zero=all_zero, bounds=same)
_define("reduce_precision", pattern=_reduce_precision, zero=all_zero, bounds=same)

# Linear in some operands, or in one at a time.
define("mul", pattern=_mul, zero=any_zero(0, 1), bounds=of_product, elementwise=True, product=True)
define("div", pattern=_div, zero=any_zero(0), bounds=of_quotient, elementwise=True, product=True)
_define("select_n", pattern=_select, zero=all_zero, bounds=lambda eqn, r: r[1] if r[0] == ZERO else join(r[1:]))

# Not linear.
_define("logistic", "eq", "lt", "le", "gt", "ge", "is_finite", bounds=always(UNIT))
_define("sqrt", bounds=monotone(lambda a: np.sqrt(max(a, 0.0))))
_define("exp", "exp2", "rsqrt", "square", "cosh", bounds=always(POSITIVE))
_define("tanh", "sin", "cos", "erf", "sign", bounds=always(Range(-1, 1)))
_define("log1p", "pow", bounds=lambda eqn, r: POSITIVE if r[0].lo >= 0 else ANY)
_define("stop_gradient", "detach", bounds=same)
_define("floor", bounds=monotone(np.floor))
_define("ceil", bounds=monotone(np.ceil))
_define("round", bounds=monotone(np.round))
_define("ne", bounds=lambda eqn, r: ZERO if eqn.invars[0] is eqn.invars[1] else UNIT)  # NaN differs from itself
_define("max", bounds=lambda eqn, r: Range(max(r[0].lo, r[1].lo), max(r[0].hi, r[1].hi)))
_define("min", bounds=lambda eqn, r: Range(min(r[0].lo, r[1].lo), min(r[0].hi, r[1].hi)))
_define("abs", bounds=lambda eqn, r: Range(0, max(-r[0].lo, r[0].hi)))
_define("clamp", bounds=of_clamp)
_define("integer_pow", zero=any_zero(0), bounds=lambda eqn, r: power(r[0], eqn.params["y"]))
_define(
    "log", "expm1", "tan", "asin", "acos", "atan", "atan2", "sinh", "asinh", "acosh", "atanh", "cbrt", "erfc",
    "erf_inv", "lgamma", "digamma", "polygamma", "igamma", "igammac", "igamma_grad_a", "zeta", "bessel_i0e",
    "bessel_i1e", "regularized_incomplete_beta", "random_gamma_grad", "log2", "one_minus_square", "clz",
    "population_count", "shift_left", "shift_right_arithmetic", "shift_right_logical", "mulhi", "rem", "nextafter",
    "and", "or", "xor", "not",
)  # fmt: skip

# Made of nothing that has a gradient.
define("iota", "random_bits", bounds=always(POSITIVE))
