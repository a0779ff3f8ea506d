"""The eight operations as ordinary functions: Etrax finds the weights of any JAX operation, so these mark nothing.

`weight_fn` and its kin are applied to the weight first. Quantities with units are served throughout; a bias is
converted to the unit of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import brainunit as u
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._errors import ArgumentError, ArgumentTypeError, NotSupportedError

WeightFn: TypeAlias = Callable[[jax.Array], jax.Array] | None


def _product(function: Callable[..., jax.Array], *operands: ArrayLike) -> tuple[jax.Array, u.Unit]:
    """A function that is linear in each operand, of their numbers; and the unit of its result."""
    parts = [u.split_mantissa_unit(a) for a in operands]
    unit = u.UNITLESS
    for _, factor in parts:
        unit = cast(u.Unit, unit * factor)
    return function(*(value for value, _ in parts)), unit


def _finish(value: jax.Array, unit: u.Unit, bias: ArrayLike | None, bias_fn: WeightFn = None) -> jax.Array:
    if bias is not None:
        # `bias_fn` is a function of plain numbers, so the bias is converted before it.
        number = cast(jax.Array, u.Quantity(bias).to_decimal(unit))
        value = value + _through(bias_fn, number)
    return u.maybe_decimal(value * unit)


def _through(fn: WeightFn, weight: jax.Array) -> jax.Array:
    return weight if fn is None else fn(weight)


def _check_rank(name: str, x: ArrayLike, ranks: Sequence[int], layout: str) -> None:
    rank = jnp.ndim(u.get_mantissa(x))
    if rank not in ranks:
        raise ArgumentError(f"`{name}` takes x of {layout}; got ndim={rank}, shape {list(jnp.shape(x))}.")


def matmul(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, weight_fn: WeightFn = None,
    bias_fn: WeightFn = None,
) -> jax.Array:  # fmt: skip
    """`x @ weight_fn(weight) + bias_fn(bias)` for x of shape (in,) or (batch, in).

    >>> import jax.numpy as jnp
    >>> matmul(jnp.ones(3), jnp.ones((3, 2)), weight_fn=jnp.negative).tolist()
    [-3.0, -3.0]
    """
    _check_rank("matmul", x, (1, 2), "shape (in,) or (batch, in); `einsum` contracts other layouts")
    return _finish(*_product(lambda a, w: a @ _through(weight_fn, w), x, weight), bias, bias_fn)


def grouped_matmul(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, *, weight_fn: WeightFn = None,
    bias_fn: WeightFn = None,
) -> jax.Array:  # fmt: skip
    """One matrix product a group: x (groups, in) or (batch, groups, in) with weight (groups, in, out)."""
    if jnp.ndim(u.get_mantissa(weight)) != 3:
        raise ArgumentError(f"`weight` must be (groups, in, out); got ndim={jnp.ndim(u.get_mantissa(weight))}.")
    _check_rank("grouped_matmul", x, (2, 3), "shape (groups, in) or (batch, groups, in)")
    if jnp.shape(x)[-2:] != jnp.shape(weight)[:2]:
        raise ArgumentError(f"x ends in {list(jnp.shape(x)[-2:])}, weight begins with {list(jnp.shape(weight)[:2])}.")
    run = lambda a, w: jnp.einsum("...gk,gkn->...gn", a, _through(weight_fn, w))  # noqa: E731
    return _finish(*_product(run, x, weight), bias, bias_fn)


def embedding(indices: ArrayLike, weight: ArrayLike, *, weight_fn: WeightFn = None) -> jax.Array:
    """Rows of a table (entries, features), by one index or by a batch of them."""
    rows = jnp.asarray(indices)
    if not jnp.issubdtype(rows.dtype, jnp.integer):
        raise ArgumentTypeError(f"`indices` must be integers; got {rows.dtype}.")
    if rows.ndim > 1:
        raise NotSupportedError(f"`embedding` takes one index or a batch of them; got shape {list(rows.shape)}.")
    if jnp.ndim(u.get_mantissa(weight)) != 2:
        raise ArgumentError(f"`weight` must be (entries, features); got shape {list(jnp.shape(weight))}.")
    return _finish(*_product(lambda w: jnp.take(_through(weight_fn, w), rows, axis=0), weight), None)


def einsum(equation: str, x: ArrayLike, weight: ArrayLike, *, weight_fn: WeightFn = None) -> jax.Array:
    """`jnp.einsum(equation, x, weight_fn(weight))` for an explicit equation of x, which has a batch axis, and weight.

    >>> import jax.numpy as jnp
    >>> einsum("bi,io->bo", jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    equation = equation.replace(" ", "")
    _check_equation(equation, jnp.ndim(u.get_mantissa(x)), jnp.ndim(u.get_mantissa(weight)))
    return _finish(*_product(lambda a, w: jnp.einsum(equation, a, _through(weight_fn, w)), x, weight), None)


def _check_equation(equation: str, *ranks: int) -> None:
    left, arrow, out = equation.partition("->")
    operands = left.split(",")
    where = f"in the einsum equation {equation!r}"
    if not arrow or len(operands) != 2:
        raise ArgumentError(f"`einsum` takes 'x,weight->output': explicit, of two operands; found {equation!r}.")
    x, w = operands
    for name, spec in (("x", x), ("weight", w), ("output", out)):
        if not (spec.isalpha() and spec.islower()) or len(set(spec)) != len(spec):
            raise ArgumentError(f"{name} is {spec!r} {where}; expected lower-case letters, each of them once.")
    if x[0] != out[0] or x[0] in w:
        raise ArgumentError(f"x and output must share their first axis, the batch, and weight not have it, {where}.")
    if unknown := set(out) - set(x) - set(w) | set(w) - set(x) - set(out):
        raise ArgumentError(f"{sorted(unknown)} appear in one place only {where}.")
    for name, spec, rank in zip(("x", "weight"), operands, ranks, strict=True):
        if len(spec) != rank:
            raise ArgumentError(f"{name} has {rank} axes and {spec!r} {where}.")


def element_wise(weight: ArrayLike, *, weight_fn: WeightFn = None) -> jax.Array:
    """`weight_fn(weight)`."""
    return _finish(*_product(lambda w: _through(weight_fn, w), weight), None)


def conv(
    x: ArrayLike, kernel: ArrayLike, bias: ArrayLike | None = None, *, strides: Sequence[int] = (1,),
    padding: str | Sequence[tuple[int, int]] = "SAME", lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None, feature_group_count: int = 1, batch_group_count: int = 1,
    dimension_numbers: jax.lax.ConvGeneralDilatedDimensionNumbers = None, kernel_fn: WeightFn = None,
    bias_fn: WeightFn = None,
) -> jax.Array:  # fmt: skip
    """`jax.lax.conv_general_dilated`; a bias of one axis is added along the channels."""
    numbers = jax.lax.conv_dimension_numbers(jnp.shape(x), jnp.shape(kernel), dimension_numbers)

    def run(a: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            a, _through(kernel_fn, k), tuple(strides), padding, lhs_dilation, rhs_dilation, numbers,
            feature_group_count, batch_group_count,
        )  # fmt: skip

    value, unit = _product(run, x, kernel)

    def along_channels(b: jax.Array) -> jax.Array:
        b = _through(bias_fn, b)
        axes = [i for i in range(value.ndim) if i != numbers.out_spec[1]]  # out_spec is (batch, channels, space...)
        return jnp.expand_dims(b, axes) if b.ndim == 1 else b

    return _finish(value, unit, bias, along_channels)


def sparse_matmul(
    x: ArrayLike, weight: ArrayLike, *, sparse_mat: object, bias: ArrayLike | None = None, weight_fn: WeightFn = None,
    bias_fn: WeightFn = None,
) -> jax.Array:  # fmt: skip
    """`x @ M + bias`, where M has the pattern of `sparse_mat` (of brainevent) and `weight_fn(weight)` for its data."""
    import brainevent

    if not isinstance(sparse_mat, brainevent.DataRepresentation):
        raise ArgumentTypeError(
            f"`sparse_mat` is a {type(sparse_mat).__name__}; expected a sparse matrix of brainevent "
            "(brainevent.DataRepresentation, which has `with_data`, `dt2t` and `dt2t_transposed`)."
        )
    run = lambda a, w: a @ sparse_mat.with_data(_through(weight_fn, w))  # noqa: E731  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return _finish(*_product(run, x, weight), bias, bias_fn)


def lora_matmul(
    x: ArrayLike, B: ArrayLike, A: ArrayLike, *, alpha: float = 1.0, bias: ArrayLike | None = None,
    b_fn: WeightFn = None, a_fn: WeightFn = None, bias_fn: WeightFn = None,
) -> jax.Array:  # fmt: skip
    """`alpha x @ B @ A + bias`, a product of low rank."""
    _check_rank("lora_matmul", x, (1, 2), "shape (in,) or (batch, in)")
    run = lambda a, b, c: alpha * (a @ _through(b_fn, b) @ _through(a_fn, c))  # noqa: E731
    return _finish(*_product(run, x, B, A), bias, bias_fn)
