"""Element by element: sums, products, casts, choices, and functions that are not linear."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ..._compat import JaxprEqn, is_inexact
from ._dep import Dep, union
from ._name import (
    name_of_first,
    name_of_imaginary_part,
    name_of_linear,
    name_of_negative,
    name_of_product,
    name_of_real_part,
    name_of_sum,
)
from ._range import (
    ANY,
    POSITIVE,
    UNIT,
    ZERO,
    Range,
    always,
    anywhere,
    join,
    minus,
    monotone,
    of_clamp,
    of_product,
    of_quotient,
    plus,
    pole,
    power,
    same,
)
from ._record import Along, Call, Deps, Precision, all_zero, any_zero, define, slope_in


def pointwise(call: Call) -> list[Deps]:
    """Output element e depends on what element e of each operand depends on; scalars are broadcast."""
    shape = call.out_shape()
    terms: dict[Hashable, list[Dep]] = {}
    for deps in call.deps:
        for source, dep in deps.items():
            if dep.shape != shape:
                dep = dep.relocate(lambda m: np.broadcast_to(m, shape), call.cause)
            terms.setdefault(source, []).append(dep)
    merged = {source: union(deps) for source, deps in terms.items()}
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
    precision = Precision(call.params["exponent_bits"], call.params["mantissa_bits"])
    call.problem(f"rounds a gradient to {precision.fraction} bits", precision)
    return pointwise(call)


def _nonlinear(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return pointwise(call)


def _define(*names: str, **fields: object) -> None:
    define(*names, elementwise=True, **{"pattern": _nonlinear, **fields})


def _integer_pow_zero(eqn: JaxprEqn, zeros: Sequence[bool]) -> bool:
    return zeros[0] and eqn.params["y"] > 0


# Linear in all operands together.
_linear = {"pattern": pointwise, "zero": all_zero}
_define("neg", **_linear, bounds=lambda eqn, r: minus(r[0]), name=name_of_negative)
_define("add", "add_any", **_linear, bounds=lambda eqn, r: plus(r[0], r[1]), name=name_of_sum,
        numbers=lambda eqn, a, b: a + b)  # fmt: skip
_define("sub", **_linear, bounds=lambda eqn, r: plus(r[0], minus(r[1])), name=name_of_sum,
        numbers=lambda eqn, a, b: a - b)  # fmt: skip
_define("copy", **_linear, bounds=same, name=name_of_first, reshapes=True)
_define("real", **_linear, bounds=same, name=name_of_real_part)
_define("imag", **_linear, name=name_of_imaginary_part)
_define(
    "copy_p", "conj", "complex", "name", "sharding_constraint", "layout_constraint", "reshard", "relayout",
    "device_put", "mesh_cast", "pvary", **_linear,
)  # fmt: skip
_define("convert_element_type", pattern=_convert, zero=all_zero, bounds=same, name=name_of_linear,
        numbers=lambda eqn, a: a, reshapes=True, casts=True)  # fmt: skip
_define("reduce_precision", pattern=_reduce_precision, zero=all_zero, bounds=same, rounds=True)

# Linear in some operands, or in one at a time.
_define("mul", pattern=_mul, zero=any_zero(0, 1), bounds=of_product, product=True, name=name_of_product,
        numbers=lambda eqn, a, b: a * b)  # fmt: skip
_define("div", pattern=_div, zero=any_zero(0), bounds=of_quotient, product=True, poles=pole(1), steep=slope_in(1))
_define("select_n", pattern=_select, zero=all_zero,
        bounds=lambda eqn, r: r[1] if r[0] == ZERO else join(r[1:]),
        numbers=lambda eqn, which, *cases: np.select([which == i for i in range(len(cases))], cases))  # fmt: skip

# Equinox's, which every solve of diffrax is made of: identities that refuse a transformation, and a choice.
_define("nontraceable", "nonbatchable", "nondifferentiable_backward", **_linear, bounds=same, name=name_of_first)
_define("select_if_vmap", pattern=_select, zero=all_zero, bounds=lambda eqn, r: join(r[1:]))

# Not linear.
_define("logistic", "is_finite", bounds=always(UNIT))
_define("eq", bounds=always(UNIT), numbers=lambda eqn, a, b: a == b)
_define("lt", bounds=always(UNIT), numbers=lambda eqn, a, b: a < b)
_define("le", bounds=always(UNIT), numbers=lambda eqn, a, b: a <= b)
_define("gt", bounds=always(UNIT), numbers=lambda eqn, a, b: a > b)
_define("ge", bounds=always(UNIT), numbers=lambda eqn, a, b: a >= b)
_define("ne", bounds=lambda eqn, r: ZERO if eqn.invars[0] is eqn.invars[1] else UNIT,  # NaN differs from itself
        numbers=lambda eqn, a, b: a != b)  # fmt: skip
_define("and", numbers=lambda eqn, a, b: a & b)
_define("or", numbers=lambda eqn, a, b: a | b)
_define("max", bounds=lambda eqn, r: Range(max(r[0].lo, r[1].lo), max(r[0].hi, r[1].hi)),
        numbers=lambda eqn, a, b: np.maximum(a, b))  # fmt: skip
_define("min", bounds=lambda eqn, r: Range(min(r[0].lo, r[1].lo), min(r[0].hi, r[1].hi)),
        numbers=lambda eqn, a, b: np.minimum(a, b))  # fmt: skip
_define("abs", bounds=lambda eqn, r: Range(0, max(-r[0].lo, r[0].hi)))
_define("clamp", bounds=of_clamp)
_define("sqrt", bounds=monotone(lambda a: np.sqrt(max(a, 0.0))), steep=slope_in(0))
_define("exp", "exp2", "cosh", bounds=always(POSITIVE))
_define("square", bounds=lambda eqn, r: power(r[0], 2))
_define("rsqrt", bounds=always(POSITIVE), poles=pole(0), steep=slope_in(0))
_define("tanh", "sin", "cos", "erf", bounds=always(Range(-1, 1)))
_define("log", "log2", poles=pole(0), steep=slope_in(0))
_define("log1p", bounds=lambda eqn, r: POSITIVE if r[0].lo >= 0 else ANY, poles=pole(0, -1.0), steep=slope_in(0))
_define("pow", bounds=lambda eqn, r: POSITIVE if r[0].lo >= 0 else ANY, poles=pole(0), steep=slope_in())
_define("rem", poles=pole(1), steep=slope_in(1))
_define("integer_pow", zero=_integer_pow_zero, bounds=lambda eqn, r: power(r[0], eqn.params["y"]),
        poles=lambda eqn: {0: 0.0} if eqn.params["y"] < 0 else {},
        steep=lambda eqn: (0,) if eqn.params["y"] < 0 else ())  # fmt: skip
_define("acos", "acosh", "asin", "atanh", "cbrt", "erf_inv", "tan", steep=slope_in(0))
_define("atan2", "igamma", "igammac", "regularized_incomplete_beta", steep=slope_in())
_define("digamma", "lgamma", "polygamma", "zeta", poles=anywhere, steep=slope_in())
_define(
    "expm1", "atan", "sinh", "asinh", "erfc", "igamma_grad_a", "bessel_i0e", "bessel_i1e", "random_gamma_grad",
    "one_minus_square", "clz", "population_count", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "mulhi", "nextafter", "xor", "not",
)  # fmt: skip

# With a derivative that is zero everywhere.
_define("stop_gradient", bounds=same, name=name_of_first, differentiable=False)
_define("floor", bounds=monotone(np.floor), differentiable=False)
_define("ceil", bounds=monotone(np.ceil), differentiable=False)
_define("round", bounds=monotone(np.round), differentiable=False)
_define("sign", bounds=always(Range(-1, 1)), differentiable=False)
define("bitcast_convert_type", differentiable=False)
_define("detach", bounds=same, name=name_of_first)  # zero for one derivative, and not for the others


def _iota_numbers(eqn: JaxprEqn) -> np.ndarray:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    beside = [shape[axis] if i == axis else 1 for i in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis]).reshape(beside), shape)


def _iota_uniform(eqn: JaxprEqn, along: Sequence[Along]) -> list[Along]:
    return [tuple(i != eqn.params["dimension"] for i in range(len(eqn.params["shape"])))]


# Made of nothing that has a gradient.
define("iota", bounds=always(POSITIVE), numbers=_iota_numbers, uniform=_iota_uniform, light=True)
define("random_bits", bounds=always(POSITIVE))
