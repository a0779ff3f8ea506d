"""Products whose traces are larger than the cache: these are moved and read one sample at a time.

A program that moves a trace in one pass makes all outer products of the window first, an array as large as the trace,
and reads it back. Sample by sample, products and trace meet in the cache. All loops write in place of the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..._machine import machine
from ._base import BlockRow, Kernels, OpCall, register_weight_op, size, sum_unrolled
from ._matmul import LEAKS, MATMUL, STEPS, Letters, expand, letters_of, trace_shape

# Of one sample: what its trace is multiplied by, and products with other traces; then the whole trace with that.
_Factors: TypeAlias = tuple[Array, list[tuple[Array, Array]]]
_Samples: TypeAlias = tuple[Array, _Factors]


def _has_samples(s: Letters, shape: tuple[int, ...]) -> bool:
    """Whether the first axis of a trace is one of data and outputs, with more than one element."""
    return bool(shape) and s.trace[0] in s.u and s.trace[0] in s.y and shape[0] > 1


def _stacks(call: OpCall, n: int) -> bool:
    shape = trace_shape(call)
    large = n > 1 and 4 * n * size(shape) >= machine().stack_bytes  # traces have at least four bytes a number
    return large and _has_samples(letters_of(call), shape)


def _move_stack(call: OpCall, block: Array, stack: Array, u: Sequence[Array], c: Array) -> Array:
    """block (n, n, *y), stack (n, *trace), u[0] (k, *u), c (n, k, *y), one sample after the other.

    The outer products are made within the loop: made before, they would be as large as the stack. The block of the next
    sample is carried along: sliced where it is read, it would be looked up for each element anew, which takes twice as
    long.
    """
    s = letters_of(call)
    sample, trace = s.trace[0], s.trace[1:]
    u_axes, y_axes = s.u.replace(sample, ""), s.y.replace(sample, "")
    # Where the axis of samples is: behind that of steps in the data, behind two axes in block and c.
    at_u, at_y = 1 + s.u.index(sample), 2 + s.y.index(sample)

    def of_sample(a: Array, b: Array | int, axis: int) -> Array:
        return lax.dynamic_index_in_dim(a, b, axis, keepdims=False)

    def move(b: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        stack, p = carry
        old, data, suffix_rows = of_sample(stack, b, 1), of_sample(u[0], b, at_u), of_sample(c, b, at_y)
        spread = jax.vmap(jax.vmap(lambda q: expand(q, y_axes, trace)))(p)
        new = jnp.stack([jnp.einsum(f"{STEPS}{u_axes},{STEPS}{y_axes}->{trace}", data, row) for row in suffix_rows])
        new = new + sum_unrolled([spread[:, t] * old[t] for t in range(old.shape[0])])
        # After the last sample the next block is clamped to the last one, and not used.
        return lax.dynamic_update_index_in_dim(stack, new.astype(stack.dtype), b, 1), of_sample(block, b + 1, at_y)

    return lax.fori_loop(0, stack.shape[1], move, (stack, of_sample(block, 0, at_y)))[0]


def _apply_stack(call: OpCall, stack: Array, g: Array) -> Array:
    """stack (n, *trace), g (n, *y). A large stack is read sample by sample: the sum stays in the cache."""
    s = letters_of(call)
    if s.trace[0] in s.w or stack.size * stack.dtype.itemsize < machine().long_stack_bytes:
        return sum_unrolled([MATMUL.apply(call, (), stack[t], g[t]) for t in range(stack.shape[0])])
    sample, trace = s.trace[0], s.trace[1:]
    y_axes, n = s.y.replace(sample, ""), stack.shape[0] * stack.shape[1]
    # State scalars and samples are one axis, over which is summed.
    traces, signals = stack.reshape(n, *stack.shape[2:]), jnp.moveaxis(g, 1 + s.y.index(sample), 1)
    signals = signals.reshape(n, *signals.shape[2:])

    def add(b: Array, total: Array) -> Array:
        old, signal = (lax.dynamic_index_in_dim(a, b, keepdims=False) for a in (traces, signals))
        return total + old * expand(signal, y_axes, trace)

    total = lax.fori_loop(0, n, add, jnp.zeros(stack.shape[2:], jnp.result_type(stack.dtype, g.dtype)))
    total = total.sum(tuple(i for i, letter in enumerate(trace) if letter not in s.w))
    rest = "".join(letter for letter in trace if letter in s.w)
    return jnp.einsum(f"{rest}->{s.w}", total)


def _move_by_sample(
    call: OpCall, row: BlockRow, traces: Sequence[Array], number: int, u: Sequence[Array], c: Array
) -> Array | None:
    """row[t] and traces[t] broadcastable to the trace, u[0] (k, *u), c (k, *y), for trace `number`.

    As for stacks, products stay in the cache, and what is read of the samples is carried along. The product of one
    sample is one of plain matrices, for which no operand is transposed; one of several samples at once needs that.
    """
    s, shape, entry, steps = letters_of(call), trace_shape(call), traces[number], c.shape[0]
    here = machine()
    factor = row[number]
    if factor is None or entry.shape != shape or c.shape[1:] != call.out.shape:
        return None
    others = [(p, e) for t, (p, e) in enumerate(zip(row, traces, strict=True)) if t != number and p is not None]
    small = all(e.size * here.by_sample_others <= entry.size for _, e in others)
    long = steps >= here.by_sample_steps and entry.nbytes >= here.by_sample_bytes
    if not (long and small and _has_samples(s, shape)):
        return None
    sample, trace = s.trace[0], s.trace[1:]
    u_axes, y_axes = s.u.replace(sample, ""), s.y.replace(sample, "")
    at_u, at_y = 1 + s.u.index(sample), 1 + s.y.index(sample)  # behind the axis of steps

    def of_sample(a: Array, b: Array | int, axis: int = 0) -> Array:
        # An axis of one stands for all samples. The axis is kept: a slice that is reshaped is not written in place.
        return a if a.shape[axis] == 1 else lax.dynamic_slice_in_dim(a, b, 1, axis)

    def factors(b: Array | int) -> _Factors:
        return of_sample(factor, b), [(of_sample(p, b), of_sample(e, b)) for p, e in others]

    def move(b: Array, carry: _Samples) -> _Samples:
        entry, (p, more) = carry
        data, suffix_rows = of_sample(u[0], b, at_u).squeeze(at_u), of_sample(c, b, at_y).squeeze(at_y)
        new = jnp.einsum(f"{STEPS}{u_axes},{STEPS}{y_axes}->{trace}", data, suffix_rows)[None]
        new = new + sum_unrolled([p * of_sample(entry, b), *(q * e for q, e in more)])
        return lax.dynamic_update_slice_in_dim(entry, new.astype(entry.dtype), b, 0), factors(b + 1)

    return lax.fori_loop(0, shape[0], move, (entry, factors(0)))[0]


def _move_leaks(
    call: OpCall, row: BlockRow, traces: Sequence[Array], number: int, u: Sequence[Array], c: Array
) -> Array | None:
    """row[t] (leaks, …) broadcastable to traces[t] (leaks, *trace), u[0] (k, *u), c (k, leaks, *y), by sample.

    Axes of leaks are one where all leaks have the same.
    """
    s, shape, entry = letters_of(call), trace_shape(call), traces[number]
    sample, trace = s.trace[:1], s.trace[1:]
    if entry.shape[1:] != shape or not sample or sample not in s.u or sample not in s.y:
        return None
    at_u, at_y = 1 + s.u.index(sample), 2 + s.y.index(sample)  # behind the axes of steps and of leaks
    if any(n != m for axis, (n, m) in enumerate(zip(c.shape[2:], call.out.shape, strict=True)) if axis + 2 != at_y):
        return None
    u_axes, y_axes = s.u.replace(sample, ""), s.y.replace(sample, "")

    def of_sample(a: Array, b: Array | int, axis: int = 1) -> Array:
        # An axis of one stands for all samples.
        return a if a.shape[axis] == 1 else lax.dynamic_slice_in_dim(a, b, 1, axis)

    def move(b: Array, entry: Array) -> Array:
        data, suffix_rows = of_sample(u[0], b, at_u).squeeze(at_u), of_sample(c, b, at_y).squeeze(at_y)
        # One product for all leaks is shared by several cores, but its axes are turned, which takes as long as it does.
        if shape[0] > 1:
            products = jnp.einsum(f"{STEPS}{u_axes},{STEPS}{LEAKS}{y_axes}->{LEAKS}{trace}", data, suffix_rows)
        else:
            one = f"{STEPS}{u_axes},{STEPS}{y_axes}->{trace}"
            products = jnp.stack([jnp.einsum(one, data, suffix_rows[:, j]) for j in range(c.shape[1])])
        pairs = zip(row, [*traces[:number], entry, *traces[number + 1 :]], strict=True)
        carried = [of_sample(p, b) * of_sample(e, b) for p, e in pairs if p is not None]
        new = sum_unrolled([products[:, None], *carried])
        new = jnp.broadcast_to(new, (entry.shape[0], 1, *shape[1:])).astype(entry.dtype)
        return lax.dynamic_update_slice_in_dim(entry, new, b, 1)

    return lax.fori_loop(0, shape[0], move, entry)


KERNELS = Kernels(
    stacks=_stacks, move_stack=_move_stack, apply_stack=_apply_stack, move_by_sample=_move_by_sample,
    move_leaks=_move_leaks,
)  # fmt: skip
register_weight_op("dot_general", replace(MATMUL, kernels=KERNELS))
