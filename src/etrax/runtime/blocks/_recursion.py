"""The one reverse recursion over a window, by which rows a are taken back through its steps.

    c_k = a F_k        a ← (a + s_k) D_k + r_k        k = K, …, 1

Where a lane starts again before step k, a is zero from there on: D_k and r_k are those of states that do not count.

With a = I at the exit, c_k = D_K ··· D_{k+1} F_k are the suffix products and what is left at the entry is the product P
of all blocks. With a = 0 and a row s_k for the loss of each step, it takes learning signals back to the entry; r_k is
what a step reads of the states before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ._unrolled import Unrolled

T = TypeVar("T")


class Step(NamedTuple):
    """D per group and F per relation, at one step."""

    blocks: Mapping[int, Any]
    rows: Mapping[int, Any]


def reverse(
    algebras: Mapping[int, Any], start: Mapping[int, T], steps: int, read: Callable[[Any], Step], records: Any = (),
    emit: Callable[[Mapping[int, T], Step], Any] = lambda a, step: (), new: Mapping[int, T] | None = None,
    old: Mapping[int, T] | None = None, resets: Mapping[int, Array] | None = None,
) -> tuple[dict[int, T], Any]:  # fmt: skip
    """a at the entry, and what `emit(a, step)` gave at each step, for rows a per group.

    `read` makes a step of its record. `new` and `old` are the s_k and r_k, stacked over steps, of some groups. `resets`
    are flags per group at its positions, stacked over steps.
    """

    def body(a: dict[int, T], xs: tuple[Any, dict[int, T], dict[int, T], dict]) -> tuple[dict[int, T], Any]:
        record, s, r, flags = xs
        step = read(record)
        before = {g: algebras[g].compose(_plus(value, s.get(g)), step.blocks[g]) for g, value in a.items()}
        before = {g: _plus(value, r.get(g)) for g, value in before.items()}
        if flags:
            # A reset before step k: what step k and later ones sent back does not pass it.
            before = {g: algebras[g].map(partial(_unless, flags[g]), value) for g, value in before.items()}
        return before, emit(a, step)

    xs = (records, dict(new or {}), dict(old or {}), dict(resets or {}))
    return lax.scan(body, dict(start), xs, steps, reverse=True)


def _unless(flags: Array, a: Array, *_: int) -> Array:
    """Zero where a flag is set. An entry without the axis of lanes is one that no block ever makes: it is zero."""
    cut = jnp.where(flags, jnp.zeros((), a.dtype), a)
    return cut if cut.shape == a.shape else a


def reverse_leak(
    signals: Mapping[int, Array], kappa: float, resets: Mapping[int, Array] | None = None
) -> tuple[dict[int, Array], dict[int, Array]]:
    """κ b̃_1, and b̃_k = b_k + κ b̃_{k+1} stacked over k: the recursion of one slot whose block is κ."""
    algebras = {g: Unrolled([[b.shape[1:]]]) for g, b in signals.items()}
    # A leak is a block of one slot, so that one recursion serves both.
    step = Step({g: [[jnp.asarray(kappa, b.dtype)]] for g, b in signals.items()}, {})
    start = {g: [[jnp.zeros_like(b[0])]] for g, b in signals.items()}
    new, steps = {g: [[b]] for g, b in signals.items()}, next(iter(signals.values())).shape[0]

    def later_ones(a: Mapping[int, list[list[Array]]], _: Step) -> dict[int, Array]:
        return {g: value[0][0] for g, value in a.items()}

    entry, later = reverse(algebras, start, steps, lambda _: step, emit=later_ones, new=new, resets=resets)
    return {g: a[0][0] for g, a in entry.items()}, {g: b + later[g] for g, b in signals.items()}


def _plus(a: T, more: T | None) -> T:
    """The sum, in the type of a; None, also for some of its entries, is zero."""

    def add(x: Array | None, y: Array | None) -> Array | None:
        return x if x is None or y is None else x + y.astype(x.dtype)

    return a if more is None else jax.tree.map(add, a, more, is_leaf=lambda x: x is None)


def power(links: np.ndarray, steps: int) -> np.ndarray:
    """The pattern of a block's power: which slots act on which in exactly so many steps."""
    # By squaring: windows may have thousands of steps.
    out, square = np.eye(links.shape[0], dtype=bool), links
    while steps:
        if steps & 1:
            out = (out.astype(np.int64) @ square) > 0
        square, steps = (square.astype(np.int64) @ square) > 0, steps >> 1
    return out
