"""Element by element: sums, products with a constant, casts, choices."""

from __future__ import annotations

import numpy as np

from ..._compat import is_inexact
from ._dep import Dep, union
from ._table import Call, Deps, Precision, SourceKey, rule


def pointwise(call: Call) -> list[Deps]:
    """Output element e depends on what element e of each operand depends on; scalars are broadcast."""
    shape = call.out_shape()
    found: dict[SourceKey, list[Dep]] = {}
    for deps in call.deps:
        for source, dep in deps.items():
            if dep.shape != shape:
                dep = dep.relocate(lambda m: np.broadcast_to(m, shape), call.cause)
            found.setdefault(source, []).append(dep)
    merged = {source: union(deps) for source, deps in found.items()}
    return [merged for _ in call.eqn.outvars]


LINEAR = (
    "neg", "add", "add_any", "sub", "copy", "copy_p", "real", "imag", "conj", "complex", "name",
    "sharding_constraint", "layout_constraint", "reshard", "relayout", "device_put", "mesh_cast", "pvary",
)  # fmt: skip
for _name in LINEAR:
    rule(_name)(pointwise)


@rule("optimization_barrier")
def _each(call: Call) -> list[Deps]:
    return [dict(deps) for deps in call.deps]


@rule("convert_element_type")
def _convert(call: Call) -> list[Deps]:
    before, after = (v.aval for v in (call.eqn.invars[0], call.eqn.outvars[0]))
    if not is_inexact(after):
        call.problem("rounds a gradient")
    elif is_inexact(before) and not Precision.of(after.dtype).holds(Precision.of(before.dtype)):
        call.problem(f"rounds a gradient to {after.dtype}", Precision.of(after.dtype))
    return pointwise(call)


@rule("reduce_precision")
def _reduce_precision(call: Call) -> list[Deps]:
    kept = Precision(call.params["exponent_bits"], call.params["mantissa_bits"])
    call.problem(f"rounds a gradient to {kept.fraction} bits", kept)
    return pointwise(call)


@rule("mul")
def _mul(call: Call) -> list[Deps]:
    if call.deps[0] and call.deps[1]:
        call.problem("multiplies two gradients")
    return pointwise(call)


@rule("div")
def _div(call: Call) -> list[Deps]:
    if call.deps[1]:
        call.problem("divides by a gradient")
    return pointwise(call)


@rule("select_n")
def _select(call: Call) -> list[Deps]:
    if call.deps[0]:
        call.problem("chooses by the value of a gradient")
    return pointwise(call)


NONLINEAR = (
    "max", "min", "abs", "sign", "exp", "exp2", "log", "log1p", "expm1", "tanh", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "logistic", "sqrt", "rsqrt", "cbrt", "pow",
    "integer_pow", "square", "erf", "erfc", "erf_inv", "lgamma", "digamma", "polygamma", "igamma", "igammac",
    "igamma_grad_a", "zeta", "bessel_i0e", "bessel_i1e", "regularized_incomplete_beta", "random_gamma_grad", "log2",
    "one_minus_square", "clz", "population_count", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "mulhi", "floor", "ceil", "round", "rem", "clamp", "nextafter", "gt", "ge", "lt", "le", "eq", "ne", "and", "or",
    "xor", "not", "is_finite", "stop_gradient",
)  # fmt: skip


def _nonlinear(call: Call) -> list[Deps]:
    call.problem("is not linear")
    return pointwise(call)


for _name in NONLINEAR:
    rule(_name)(_nonlinear)
