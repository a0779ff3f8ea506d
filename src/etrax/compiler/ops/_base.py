"""One signature for every family of weight ops, and the table that finds a family by primitive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import JaxprEqn, run_equation
from ..._errors import ArgumentTypeError
from ..._machine import machine

# Values of an op's operands; constants of a model may be numpy's.
Operands: TypeAlias = Sequence[Array | np.ndarray]
# One row of a product of blocks D, with an array per state scalar; None is an entry that is always zero.
BlockRow: TypeAlias = Sequence[Array | None]
# u → y of an op whose weight is chosen, and w → that.
Product: TypeAlias = Callable[..., Array]
WithWeight: TypeAlias = Callable[[Array], Product]


@dataclass(frozen=True)
class OpCall:
    """One use of a weight op: y = op(…, w at operand `weight`, …). `run` computes y for other operands."""

    primitive: str
    params: Mapping[str, Any] = field(compare=False, repr=False)
    weight: int
    operands: tuple[jax.ShapeDtypeStruct, ...]
    out: jax.ShapeDtypeStruct
    run: Callable[[Operands], Array] | None = field(default=None, compare=False, repr=False)

    @property
    def w(self) -> jax.ShapeDtypeStruct:
        return self.operands[self.weight]


@dataclass(frozen=True)
class Columns:
    """The axis of y along which each element reads weights that no other reads: `out` of y, `weight` of w.

    Both are counted from the end. `new` says that neither has such an axis yet (one number a sample, `x @ w` with a
    vector w): it is put there.
    """

    out: int
    weight: int
    new: bool = False


@dataclass(frozen=True)
class Kernels:
    """What a family can do faster. Each kernel is optional, and gives the numbers that the `OpRule` defines.

    They serve ops outside inner loops. `*y` and `*trace` are the axes of y and of the trace, k is the axis of steps, n
    that of the state scalars.

    | kernel | computes |
    |---|---|
    | `product(call, fixed)` | w → (u → y): another program for the op itself, or None |
    | `move(call, fixed, block, traces, u, c)` | Σ_t spread(block[s][t]) · traces[t] + outer(u, c[s]), for all s in one go |
    | `move_by_sample(call, row, traces, s, u, c)` | one such row, spread already, in place of trace s, one sample at a time; None where one pass over all samples is as good |
    | `move_leaks(call, row, traces, s, u, c)` | `move_by_sample` of traces with a first axis of leaks, c (k, leaks, *y) |
    | `stacks(call, n)` | whether n traces are best held as one array (n, *trace), for the next two |
    | `move_stack(call, block, stack, u, c)` | `move` of one array, block (n, n, *y) and c (n, k, *y) |
    | `apply_stack(call, stack, g)` | Σ_s apply(stack[s], g[s]), g (n, *y) |
    | `rows_last` | whether y, and all of its shape, is kept with the first axis of the op's result as its last |
    """  # noqa: E501

    product: Callable[[OpCall, Operands], WithWeight | None] = lambda call, fixed: None
    move: (
        Callable[
            [OpCall, Operands, Sequence[BlockRow], Sequence[Array], Sequence[Array], Sequence[Array]],
            tuple[Array, ...],
        ]
        | None
    ) = None
    move_by_sample: Callable[[OpCall, BlockRow, Sequence[Array], int, Sequence[Array], Array], Array | None] | None = (
        None
    )
    move_leaks: Callable[[OpCall, BlockRow, Sequence[Array], int, Sequence[Array], Array], Array | None] | None = None
    stacks: Callable[[OpCall, int], bool] = lambda call, n: False
    move_stack: Callable[[OpCall, Array, Array, Sequence[Array], Array], Array] | None = None
    apply_stack: Callable[[OpCall, Array, Array], Array] | None = None
    rows_last: bool = False


@dataclass(frozen=True)
class OpRule:
    """A family of weight ops y = op(u, w), linear in w, by its mathematics; `kernels` are for speed alone.

    `fixed` are the values of the operands numbered in `fixed_operands` (indices of a sparse matrix: constants of the
    model), `u` those of the other data operands with a leading axis k over the steps of a window. The trace has one
    entry for every pair (element of y, element of w that it reads).

    | piece | computes |
    |---|---|
    | `accepts(call)` | whether this family serves the call |
    | `trace_shape(call)` | shape of the trace, per state scalar |
    | `outer(call, fixed, u, c)` | Σ_k ∂y_k/∂w · c_k, of trace shape |
    | `spread(call, fixed, p)` | values per element of y, broadcastable to trace shape |
    | `apply(call, fixed, trace, g)` | Σ over elements of y of trace · g, of w's shape |
    | `grad(call, fixed, u, g)` | Σ_k (∂y_k/∂w)ᵀ g_k, of w's shape |

    Those six are a family. The others open more rules and smaller traces to it:

    | piece | computes |
    |---|---|
    | `mixes` | whether an element of y reads several elements of u: such an op is cut from the recurrence |
    | `features(call, fixed, u)` | the data as one array of numbers (k, …) that a factored trace can average |
    | `own_feature_grad(call, fixed, x, g)` | `grad` for data given as features, if these are not the data |
    | `columns(call)` | the axis along which outputs can be repeated with their weights, if there is one |
    | `narrow` | whether `outer`, `spread` and `apply` take arrays with axes of one where all along them is equal |
    | `as_data(call, trace)` | a trace that is equal for all outputs, in the form of the op's data: ∂y/∂w · 1 is that |
    | `data_bar(call, w, g, columns)` | (∂y/∂u)ᵀ g of one step, by column of y, for an op linear in its data as well |

    `examples/fft_convolution.py` makes and registers one. That of products:

    >>> import jax, jax.numpy as jnp
    >>> call = call_of(jax.make_jaxpr(jnp.matmul)(jnp.ones((2, 3)), jnp.ones((3, 4))).eqns[0], 1)
    >>> rule_for(call).mixes, rule_for(call).trace_shape(call)
    (True, (2, 3, 4))
    """

    name: str
    mixes: bool
    accepts: Callable[[OpCall], bool]
    trace_shape: Callable[[OpCall], tuple[int, ...]]
    outer: Callable[[OpCall, Operands, Sequence[Array], Array], Array]
    spread: Callable[[OpCall, Operands, Array], Array]
    apply: Callable[[OpCall, Operands, Array, Array], Array]
    grad: Callable[[OpCall, Operands, Sequence[Array], Array], Array]
    fixed_operands: tuple[int, ...] = ()
    features: Callable[[OpCall, Operands, Sequence[Array]], Array] = lambda call, fixed, u: u[0]
    own_feature_grad: Callable[[OpCall, Operands, Array, Array], Array] | None = None
    narrow: bool = False
    as_data: Callable[[OpCall, Array], Array] | None = None
    columns: Callable[[OpCall], Columns | None] = lambda call: None
    data_bar: Callable[[OpCall, Array, Array, Sequence[int]], Array] | None = None
    kernels: Kernels = Kernels()

    def feature_grad(self, call: OpCall, fixed: Operands, x: Array, g: Array) -> Array:
        """`grad` for data given as features, x (k, …) and g (k, *y)."""
        return self.own_feature_grad(call, fixed, x, g) if self.own_feature_grad else self.grad(call, fixed, (x,), g)

    def with_rows_last(self, call: OpCall) -> OpCall:
        """The call with the rows of y as its last axis, if the family keeps them there (`Kernels.rows_last`)."""
        shape = call.out.shape
        out = jax.ShapeDtypeStruct((*shape[1:], *shape[:1]), call.out.dtype)
        return replace(call, out=out) if self.kernels.rows_last else call

    def rows_moved_last(self, y: Array) -> Array:
        """The op's result, as `with_rows_last` describes it."""
        return jnp.moveaxis(y, 0, -1) if self.kernels.rows_last and jnp.ndim(y) > 1 else y

    def rows_moved_first(self, y: Array) -> Array:
        """y as the op gives it."""
        return jnp.moveaxis(y, -1, 0) if self.kernels.rows_last and jnp.ndim(y) > 1 else y

    def varying(self, call: OpCall) -> tuple[int, ...]:
        """Numbers of the data operands that change from step to step: `u`."""
        return tuple(i for i in range(len(call.operands)) if i != call.weight and i not in self.fixed_operands)


def with_columns(call: OpCall, columns: Columns, count: int) -> OpCall:
    """A call with `count` columns: its outputs, and their weights, stand there several times or not at all."""

    def wide(a: jax.ShapeDtypeStruct, axis: int) -> jax.ShapeDtypeStruct:
        shape, at = list(a.shape), len(a.shape) + axis
        # An axis that is there is replaced; a new one is inserted, so that it is number `axis` from the end.
        shape[at + 1 if columns.new else at : at + 1] = [count]
        return jax.ShapeDtypeStruct(tuple(shape), a.dtype)

    operands = list(call.operands)
    operands[call.weight] = wide(call.w, columns.weight)
    return replace(call, operands=tuple(operands), out=wide(call.out, columns.out))


_RULES: dict[str, list[OpRule]] = {}


def register_weight_op(primitive: str, rule: OpRule) -> None:
    """Serve equations of a primitive by a rule; the last one registered is asked first.

    Etrax's own families are registered by this function, see `etrax/compiler/ops/_conv.py` for one.
    An op that no rule accepts is still served where each element of its weight reaches one position only.

    >>> from etrax.compiler.ops import rule_for, OpCall
    >>> import jax, jax.numpy as jnp
    >>> x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, 3), (3, 4)))
    >>> eqn = jax.make_jaxpr(jnp.matmul)(x, w).eqns[0]
    >>> rule_for(call_of(eqn, 1)).name
    'matmul'
    """
    if not isinstance(rule, OpRule):
        raise ArgumentTypeError(
            f"`register_weight_op` takes an `OpRule`, got {type(rule).__name__}: `etrax.OpRule(name, mixes, ...)`."
        )
    if not isinstance(primitive, str):
        raise ArgumentTypeError(
            f"`register_weight_op` takes the name of a primitive, got {type(primitive).__name__}: `primitive.name`."
        )
    _RULES.setdefault(primitive, []).insert(0, rule)


def call_of(eqn: JaxprEqn, weight: int) -> OpCall:
    """The facts of an equation whose operand number `weight` is made of parameters only."""
    structs = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
    out = eqn.outvars[0].aval
    out = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return OpCall(eqn.primitive.name, eqn.params, weight, structs, out, lambda values: run_equation(eqn, values)[0])


def rule_for(call: OpCall) -> OpRule:
    """The family that serves a call; `ALIGNED` (traces kept per element of the weight) if no other does."""
    for rule in _RULES.get(call.primitive, ()):
        if rule.accepts(call):
            return rule
    from ._aligned import ALIGNED

    return ALIGNED


def size(shape: Sequence[int]) -> int:
    """How many numbers an array of this shape has; Python's, which does not overflow."""
    return int(np.prod(shape, dtype=np.int64))


def is_written_out(trace_bytes: int) -> bool:
    """Whether a sum of products over few steps or samples is written out.

    That runs faster and takes longer to compile: a model of many small weights would wait for nothing.
    """
    return trace_bytes >= machine().unrolled_product_bytes


def sum_unrolled(a: Array | list[Array]) -> Array:
    """The sum of a list, or over the first axis, written out where it is short: one pass at the speed of memory."""
    if isinstance(a, list):
        return sum((a[k] for k in range(1, len(a))), a[0])
    if not any(1 < a.shape[0] <= terms and a[0].nbytes >= least for least, terms in machine().unrolled_sums):
        return jnp.sum(a, 0)
    # The first half is added to the second, over and over: 64 rows of 12,288 numbers take a core 89 µs so, and 190 µs
    # one by one.
    odd = []
    while a.shape[0] > 1:
        half = a.shape[0] // 2
        odd += [a[-1]] if a.shape[0] % 2 else []
        a = a[:half] + a[half : 2 * half]
    return sum(odd, a[0])
