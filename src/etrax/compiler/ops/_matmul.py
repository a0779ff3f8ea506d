"""`dot_general` in every layout: batch axes, either operand order, several contracted axes.

With axes b (batch), f (free in the data), c (contracted), o (free in the weight):

    y[b, f, o] = Σ_c u[b, f, c] w[b, c, o]        trace[b, f, c, o]
"""

from __future__ import annotations

import string
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..._machine import machine
from ._base import Columns, OpCall, OpRule, is_written_out, register_weight_op, size, sum_unrolled

_WINDOW, _STACKED = "Z", "Y"


class _Letters(NamedTuple):
    u: str
    w: str
    y: str
    trace: str


def _letters(call: OpCall) -> _Letters:
    (lhs_c, rhs_c), (lhs_b, rhs_b) = call.params["dimension_numbers"]
    fresh = iter(string.ascii_letters.replace(_WINDOW, "").replace(_STACKED, ""))
    lhs = [""] * len(call.operands[0].shape)
    rhs = [""] * len(call.operands[1].shape)
    batch, contracted = [], []
    for group, pairs in ((batch, zip(lhs_b, rhs_b, strict=True)), (contracted, zip(lhs_c, rhs_c, strict=True))):
        for i, j in pairs:
            lhs[i] = rhs[j] = next(fresh)
            group.append(lhs[i])
    free = {0: [], 1: []}
    for number, side in ((0, lhs), (1, rhs)):
        for i, letter in enumerate(side):
            if not letter:
                side[i] = next(fresh)
                free[number].append(side[i])
    y = "".join(batch + free[0] + free[1])
    w_free = free[call.weight]
    trace = "".join(batch + free[1 - call.weight] + contracted + w_free)
    sides = ("".join(lhs), "".join(rhs))
    return _Letters(sides[1 - call.weight], sides[call.weight], y, trace)


def _trace_shape(call: OpCall) -> tuple[int, ...]:
    s = _letters(call)
    sizes = dict(zip(s.u, call.operands[1 - call.weight].shape, strict=True)) | dict(
        zip(s.w, call.w.shape, strict=True)
    )
    return tuple(sizes[letter] for letter in s.trace)


def _outer(call, fixed, u, c):
    s = _letters(call)
    if c.shape[0] == 1:  # one step: a product of broadcasts, which fuses with whatever reads it
        return _expand(u[0][0], s.u, s.trace) * _expand(c[0], s.y, s.trace)
    if c.shape[1:] == call.out.shape:
        large = is_written_out(c.dtype.itemsize * size(_trace_shape(call)))
        if large and c.shape[0] <= machine().fused_steps:
            pairs = zip(u[0], c, strict=True)
            return sum_unrolled([_expand(v, s.u, s.trace) * _expand(a, s.y, s.trace) for v, a in pairs])
        return jnp.einsum(f"{_WINDOW}{s.u},{_WINDOW}{s.y}->{s.trace}", u[0], c)
    y, wide = _without_ones(_WINDOW + s.y, c, _WINDOW)
    large = is_written_out(u[0][0].nbytes)
    if (
        large and set(y[1:]) <= set(s.u) and c.shape[0] <= machine().unrolled_terms
    ):  # equal for all outputs: data summed, in one pass
        return sum(_expand(v, s.u, s.trace) * _expand(a, s.y, s.trace) for v, a in zip(u[0], c, strict=True))
    found = "".join(letter for letter in s.trace if letter in s.u + y)
    return _expand(jnp.einsum(f"{_WINDOW}{s.u},{y}->{found}", u[0], wide), found, s.trace)


def _without_ones(own: str, a, keep: str):
    """An array without its axes of length one, but for some, and the letters of the others."""
    left = [i for i, n in enumerate(a.shape) if n > 1 or own[i] in keep]
    return "".join(own[i] for i in left), a.reshape([a.shape[i] for i in left])


def _expand(a, own: str, full: str):
    """Axes in the order of `full`, with axes of length one where `own` has none."""
    kept = "".join(letter for letter in full if letter in own)
    return jnp.expand_dims(jnp.einsum(f"{own}->{kept}", a), tuple(i for i, x in enumerate(full) if x not in own))


def _spread(call, fixed, p):
    s = _letters(call)
    return _expand(p, s.y, s.trace)


def _apply(call, fixed, trace, g):
    s = _letters(call)
    if trace.shape != _trace_shape(call):
        own, trace = _without_ones(s.trace, trace, s.u)
        return jnp.einsum(f"{own},{s.y}->{s.w}", trace, g)
    summed = [letter for letter in s.trace if letter not in s.w]
    n = size([trace.shape[s.trace.index(letter)] for letter in summed])
    large = is_written_out(trace.nbytes) and 1 < n <= machine().unrolled_terms
    if not _starts(s.trace, summed) or not large:
        return jnp.einsum(f"{s.trace},{s.y}->{s.w}", trace, g)
    # On CPU a sum over samples, written out, runs at memory speed; the contraction it stands for does not.
    rest, wide = s.trace[len(summed) :], _expand(g, s.y, s.trace)
    flat, signal = (a.reshape(n, *a.shape[len(summed) :]) for a in (trace, wide))
    total = flat[0] * signal[0]
    for b in range(1, n):
        total = total + flat[b] * signal[b]
    return jnp.einsum(f"{rest}->{s.w}", total)


def _has_samples(s: _Letters, shape: tuple[int, ...]) -> bool:
    """Whether the first axis of a trace is one of data and outputs, with more than one element."""
    return bool(shape) and s.trace[0] in s.u and s.trace[0] in s.y and shape[0] > 1


def _stacks(call: OpCall, n: int) -> bool:
    s, shape = _letters(call), _trace_shape(call)
    large = n > 1 and 4 * n * size(shape) >= machine().stack_bytes
    return large and _has_samples(s, shape)


def _moved_stack(call, block, stack, u, c):
    """Sample by sample and in its place: what is read of the stack is still in the cache when it is written.

    The product is made within the loop; made before, it would be as large as the stack. The block of the next sample is
    carried along: sliced where it is read, it would be looked up for each element anew, which takes twice as long.
    """
    s = _letters(call)
    sample, trace = s.trace[0], s.trace[1:]
    own_u, own_y, y = s.u.replace(sample, ""), s.y.replace(sample, ""), s.y.index(sample)

    def at(a, b, axis):
        return lax.dynamic_index_in_dim(a, b, axis, keepdims=False)

    def one(b, carry):
        stack, p = carry
        old, data, late = at(stack, b, 1), at(u[0], b, 1 + s.u.index(sample)), at(c, b, 2 + y)
        spread = jax.vmap(jax.vmap(lambda q: _expand(q, own_y, trace)))(p)
        new = jnp.stack([jnp.einsum(f"{_WINDOW}{own_u},{_WINDOW}{own_y}->{trace}", data, row) for row in late])
        new = new + sum_unrolled([spread[:, t] * old[t] for t in range(old.shape[0])])
        return lax.dynamic_update_index_in_dim(stack, new.astype(stack.dtype), b, 1), at(block, b + 1, 2 + y)

    return lax.fori_loop(0, stack.shape[1], one, (stack, at(block, 0, 2 + y)))[0]


def _moved_in_groups(call, row, traces, own, u, c):
    """Some samples at a time, in the place of one trace; None where one pass over all is as good.

    As for stacks: products stay in the cache, and what is read of the samples is carried along.
    """
    s, shape, entry = _letters(call), _trace_shape(call), traces[own]
    whole = entry.shape == shape and c.shape[1:] == call.out.shape and row[own] is not None
    most = machine().grouped_samples
    long = c.shape[0] >= machine().grouped_steps and entry.nbytes >= machine().grouped_trace_bytes
    others = [(p, e) for t, (p, e) in enumerate(zip(row, traces, strict=True)) if t != own and p is not None]
    narrow = all(e.size * machine().grouped_others <= entry.size for _, e in others)
    if not (whole and long and narrow and _has_samples(s, shape) and shape[0] > most):
        return None
    n = next(n for n in range(most, 0, -1) if shape[0] % n == 0)
    i, o = 1 + s.u.index(s.trace[0]), 1 + s.y.index(s.trace[0])

    def some(a, b, axis=0):
        return a if a.shape[axis] == 1 else lax.dynamic_slice_in_dim(a, b * n, n, axis)

    def one(b, carry):
        entry, (p, more) = carry
        new = jnp.einsum(f"{_WINDOW}{s.u},{_WINDOW}{s.y}->{s.trace}", some(u[0], b, i), some(c, b, o))
        new = new + sum_unrolled([p * some(entry, b), *(q * e for q, e in more)])
        entry = lax.dynamic_update_slice_in_dim(entry, new.astype(entry.dtype), b * n, 0)
        return entry, read(b + 1)

    def read(b):
        return some(row[own], b), [(some(p, b), some(e, b)) for p, e in others]

    return lax.fori_loop(0, shape[0] // n, one, (entry, read(0)))[0]


def _apply_stack(call, stack, g):
    """Of a large stack trace by trace and sample by sample: the sum stays in the cache."""
    s = _letters(call)
    if s.trace[0] in s.w or stack.size * stack.dtype.itemsize < machine().long_stack_bytes:
        return sum_unrolled([_apply(call, (), stack[t], g[t]) for t in range(stack.shape[0])])
    sample, trace = s.trace[0], s.trace[1:]
    own_y, n = s.y.replace(sample, ""), stack.shape[0] * stack.shape[1]
    traces, signals = stack.reshape(n, *stack.shape[2:]), jnp.moveaxis(g, 1 + s.y.index(sample), 1)
    signals = signals.reshape(n, *signals.shape[2:])

    def one(b, total):
        old, signal = (lax.dynamic_index_in_dim(a, b, keepdims=False) for a in (traces, signals))
        return total + old * _expand(signal, own_y, trace)

    start = jnp.zeros(stack.shape[2:], jnp.result_type(stack.dtype, g.dtype))
    rest = "".join(letter for letter in trace if letter in s.w)
    summed = lax.fori_loop(0, n, one, start)
    summed = summed.sum(tuple(i for i, letter in enumerate(trace) if letter not in s.w))
    return jnp.einsum(f"{rest}->{s.w}", summed)


def _grad(call, fixed, u, g):
    s = _letters(call)
    summed = [letter for letter in s.u if letter not in s.w]
    n = len(summed) + 1
    aligned = _starts(s.u, summed) and _starts(s.y, summed) and s.w == s.u[n - 1 :] + s.y[n - 1 :]
    if aligned and machine().merges_steps:
        # Steps and samples as one axis: a plain product, of which no operand is turned first.
        data, bar = (a.reshape(size(a.shape[:n]), *a.shape[n:]) for a in (u[0], g))
        return jnp.tensordot(data, bar, ((0,), (0,)))
    return jnp.einsum(f"{_WINDOW}{s.u},{_WINDOW}{s.y}->{s.w}", u[0], g)


def _as_data(call, trace):
    s = _letters(call)
    own = "".join(letter for letter in s.trace if letter in s.u)
    return jnp.einsum(
        f"{own}->{s.u}", trace.reshape([n for n, x in zip(trace.shape, s.trace, strict=True) if x in own])
    )


def _data_bar(call, w, g):
    s = _letters(call)
    return jnp.einsum(f"{s.y},{s.w}->{s.u}", g, w)


def _starts(own: str, letters) -> bool:
    return own[: len(letters)] == "".join(letters)


def _columns(call: OpCall) -> Columns:
    s = _letters(call)
    free = [letter for letter in s.w if letter in s.y and letter not in s.u]
    if free:
        return Columns(s.y.index(free[-1]) - len(s.y), s.w.index(free[-1]) - len(s.w))
    behind = [letter for letter in s.u if letter in s.y and letter not in s.w] if call.weight == 0 else []
    return Columns(-1 - len(behind), -1, new=True)


MATMUL = OpRule(
    "matmul", True, lambda call: True, _trace_shape, _outer, _spread, _apply, _grad, narrow=True, as_data=_as_data,
    columns=_columns, data_bar=_data_bar, stacks=_stacks, moved_stack=_moved_stack, apply_stack=_apply_stack,
    moved_in_groups=_moved_in_groups,
)  # fmt: skip
register_weight_op("dot_general", MATMUL)
