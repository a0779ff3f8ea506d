"""`dot_general` in every layout: batch axes, either operand order, several contracted axes.

With axes b (batch), f (free in the data), c (contracted), o (free in the weight):

    y[b, f, o] = Σ_c u[b, f, c] w[b, c, o]        trace[b, f, c, o]

c and o lie in a trace as they do in the weight: of W @ x, trace[f, o, c].
`_matmul_kernels.py` adds what is faster for large traces.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.lax import optimization_barrier

from ..._machine import machine
from ._base import Columns, OpCall, Operands, OpRule, is_written_out, size, sum_unrolled

# The letters of the axes of steps, and of leaks, in an einsum of arrays that have them.
STEPS, LEAKS = "Z", "Y"


class Letters(NamedTuple):
    """One letter for each axis of the data, the weight, y and the trace, so that equal letters are one axis."""

    u: str
    w: str
    y: str
    trace: str


def letters_of(call: OpCall) -> Letters:
    """Name the axes of a call: JAX gives y the batch axes first, then the free axes of the left and right operand."""
    (lhs_c, rhs_c), (lhs_b, rhs_b) = call.params["dimension_numbers"]
    fresh = iter(string.ascii_letters.removesuffix(LEAKS + STEPS))
    sides = [[""] * len(call.operands[0].shape), [""] * len(call.operands[1].shape)]
    batch, contracted = [], []
    for group, pairs in ((batch, zip(lhs_b, rhs_b, strict=True)), (contracted, zip(lhs_c, rhs_c, strict=True))):
        for i, j in pairs:
            sides[0][i] = sides[1][j] = next(fresh)
            group.append(sides[0][i])
    free: tuple[list[str], list[str]] = ([], [])
    for side, names in zip(sides, free, strict=True):
        for i, letter in enumerate(side):
            if not letter:
                side[i] = next(fresh)
                names.append(side[i])
    lhs, rhs = ("".join(side) for side in sides)
    u, w = (rhs, lhs) if call.weight == 0 else (lhs, rhs)
    # In the weight's own order: a gradient that is read off the trace then needs no transposing copy.
    trace = "".join([*batch, *free[1 - call.weight], *(letter for letter in w if letter not in batch)])
    return Letters(u, w, "".join(batch + free[0] + free[1]), trace)


def trace_shape(call: OpCall) -> tuple[int, ...]:
    """(b…, f…, c… and o… in the weight's order)."""
    s, data = letters_of(call), call.operands[1 - call.weight]
    lengths = dict(zip(s.u + s.w, (*data.shape, *call.w.shape), strict=True))
    return tuple(lengths[letter] for letter in s.trace)


def expand(a: Array, axes: str, full: str) -> Array:
    """Axes in the order of `full`, with an axis of length one for each letter that `axes` has not."""
    common = "".join(letter for letter in full if letter in axes)
    return jnp.expand_dims(jnp.einsum(f"{axes}->{common}", a), tuple(i for i, x in enumerate(full) if x not in axes))


def _without_ones(axes: str, a: Array, needed: str) -> tuple[str, Array]:
    """An array without its axes of length one, but for `needed` ones, and the letters of those that are left."""
    left = [i for i, n in enumerate(a.shape) if n > 1 or axes[i] in needed]
    return "".join(axes[i] for i in left), a.reshape([a.shape[i] for i in left])


def _starts(axes: str, letters: Sequence[str]) -> bool:
    return axes[: len(letters)] == "".join(letters)


def _outer(call: OpCall, fixed: Operands, u: Sequence[Array], c: Array) -> Array:
    """u[0] (k, *u) and c (k, *y), or c with axes of one where all along them is equal."""
    s, data, steps = letters_of(call), u[0], c.shape[0]

    def term(u: Array, c: Array) -> Array:
        """The outer product of one step, by broadcasting."""
        return expand(u, s.u, s.trace) * expand(c, s.y, s.trace)

    if steps == 1:  # a product of broadcasts, which fuses with whatever reads it
        return term(data[0], c[0])
    if c.shape[1:] == call.out.shape:
        large = is_written_out(c.dtype.itemsize * size(trace_shape(call)))
        if large and steps <= machine().fused_steps:
            return sum_unrolled([term(v, a) for v, a in zip(data, c, strict=True)])
        return jnp.einsum(f"{STEPS}{s.u},{STEPS}{s.y}->{s.trace}", data, c)
    y, short = _without_ones(STEPS + s.y, c, STEPS)
    # Equal for all outputs, the trace is a sum of data: written out, it is made in one pass.
    if is_written_out(data[0].nbytes) and set(y[1:]) <= set(s.u) and steps <= machine().unrolled_terms:
        return sum_unrolled([term(v, a) for v, a in zip(data, c, strict=True)])
    axes = "".join(letter for letter in s.trace if letter in s.u + y)
    return expand(jnp.einsum(f"{STEPS}{s.u},{y}->{axes}", data, short), axes, s.trace)


def _spread(call: OpCall, fixed: Operands, p: Array) -> Array:
    s = letters_of(call)
    return expand(p, s.y, s.trace)


def _apply(call: OpCall, fixed: Operands, trace: Array, g: Array) -> Array:
    """trace of `trace_shape`, or with axes of one; g (*y)."""
    s = letters_of(call)
    if trace.shape != trace_shape(call):
        axes, short = _without_ones(s.trace, trace, s.u)
        return jnp.einsum(f"{axes},{s.y}->{s.w}", short, g)
    summed = [letter for letter in s.trace if letter not in s.w]
    n = size([trace.shape[s.trace.index(letter)] for letter in summed])
    large = is_written_out(trace.nbytes) and 1 < n <= machine().unrolled_terms
    if not _starts(s.trace, summed) or not large:
        return jnp.einsum(f"{s.trace},{s.y}->{s.w}", trace, g)
    # On a CPU a sum over samples, written out, runs at memory speed; the contraction that it stands for does not.
    rest, signal = s.trace[len(summed) :], expand(g, s.y, s.trace)
    traces, signals = (a.reshape(n, *a.shape[len(summed) :]) for a in (trace, signal))
    total = traces[0] * signals[0]
    for b in range(1, n):
        total = total + traces[b] * signals[b]
    return jnp.einsum(f"{rest}->{s.w}", total)


def _grad(call: OpCall, fixed: Operands, u: Sequence[Array], g: Array) -> Array:
    """u[0] (k, *u), g (k, *y)."""
    s = letters_of(call)
    summed = [letter for letter in s.u if letter not in s.w]
    n = len(summed) + 1  # and the axis of steps
    aligned = _starts(s.u, summed) and _starts(s.y, summed) and s.w == s.u[n - 1 :] + s.y[n - 1 :]
    if aligned and machine().merges_steps:
        # Steps and samples as one axis: a plain product.
        data, bar = (a.reshape(size(a.shape[:n]), -1) for a in (u[0], g))
        if len(data) >= machine().turned_rows and data.shape[1] >= bar.shape[1]:
            # Turned and stored, the data are read by a faster product than one that turns them as it goes.
            return (optimization_barrier(data.T) @ bar).reshape(call.w.shape)
        return jnp.tensordot(data, bar, ((0,), (0,))).reshape(call.w.shape)
    return jnp.einsum(f"{STEPS}{s.u},{STEPS}{s.y}->{s.w}", u[0], g)


def _as_data(call: OpCall, trace: Array) -> Array:
    """The trace has an axis of one for each letter o; the axes of the data are left."""
    s = letters_of(call)
    axes = "".join(letter for letter in s.trace if letter in s.u)
    lengths = [n for n, letter in zip(trace.shape, s.trace, strict=True) if letter in axes]
    return jnp.einsum(f"{axes}->{s.u}", trace.reshape(lengths))


def column_axes(call: OpCall) -> tuple[int, ...]:
    """The axes of y that are the weight's and not the data's."""
    s = letters_of(call)
    return tuple(axis for axis, letter in enumerate(s.y) if letter in s.w and letter not in s.u)


def data_axes(call: OpCall) -> dict[int, int]:
    """The axes of y that are the data's, with their places there."""
    s = letters_of(call)
    return {axis: s.u.index(letter) for axis, letter in enumerate(s.y) if letter in s.u}


def _data_bar(call: OpCall, w: Array, g: Array, columns: Sequence[int]) -> Array:
    s = letters_of(call)
    letters = "".join(s.y[axis] for axis in columns)
    bars = jnp.einsum(f"{s.y},{s.w}->{letters}{s.u}", g, w)
    return bars.reshape(-1, *bars.shape[len(letters) :])


def _columns(call: OpCall) -> Columns:
    s = letters_of(call)
    free = [letter for letter in s.w if letter in s.y and letter not in s.u]
    if free:
        return Columns(s.y.index(free[-1]) - len(s.y), s.w.index(free[-1]) - len(s.w))
    # The weight has no free axis: a new one stands where JAX puts it, before the free axes of a right operand.
    behind = [letter for letter in s.u if letter in s.y and letter not in s.w] if call.weight == 0 else []
    return Columns(-1 - len(behind), -1, new=True)


MATMUL = OpRule(
    name="matmul",
    mixes=True,
    accepts=lambda call: True,
    trace_shape=trace_shape,
    outer=_outer,
    spread=_spread,
    apply=_apply,
    grad=_grad,
    narrow=True,
    as_data=_as_data,
    columns=_columns,
    data_bar=_data_bar,
)
