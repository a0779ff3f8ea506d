"""A window of any length in the memory of a short one: checkpoints of the states inside it, and one more forward pass.

    forwards     h_0 ──► h_c ──► h_2c ──► … ──► h_K      states at the beginning of every piece are stored, all else not
    backwards    each piece, the last first, is run again and pulled back: ∂L/∂h at its end comes from the next piece

The gradient of the window is that of reverse mode over all K steps. A trace is moved piece by piece on the way forwards
and meets ∂L/∂h_0 at the first piece, so that K/c states and the buffers of one piece are all that is in memory.

Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..compiler.analysis import Facts
from ..runtime import FusedCredit, Trace, Transport, WindowResult, WindowRun, evolve, run_window, unread_states

# (the first step, how many) -> inputs, data of the loss, resets of so many steps
StepsReader: TypeAlias = Callable[[Any, int], tuple[list[Array], Any, Array | None]]


class Pieces(NamedTuple):
    """A window of `steps` steps in pieces of `size`, the last of which may be shorter; `read` gives their data."""

    read: StepsReader
    steps: int
    size: int

    @property
    def before_last(self) -> int:
        """How many pieces stand before the last one, all of them of full length."""
        return (self.steps - 1) // self.size


def run_in_pieces(facts: Facts, transport: Transport[Trace], run: WindowRun, pieces: Pieces) -> WindowResult:
    """`run_window` over `pieces`; of `run`, inputs, data of the loss and resets are not read.

    The transport must move over a window piece by piece as it does at once (`Transport.in_pieces`).
    """
    n, size = pieces.before_last, pieces.size
    (states, trace), entries = lax.scan(
        lambda carry, i: _forwards(facts, transport, run, pieces, carry, i),
        (list(run.states), run.trace),
        jnp.arange(n),
    )
    last = _of_steps(run._replace(states=states, trace=trace), pieces, n * size, pieces.steps - n * size)
    end = run_window(facts, replace(transport, credit=lambda *_: {}, fused=FusedCredit()), last)
    # A trace meets the credit of the first piece alone, which therefore stands outside the loop if there is one.
    first = 1 if jax.tree.leaves(run.trace) else 0
    still: Transport[tuple[()]] = Transport(
        tuple, lambda *_: {}, lambda trace, _: trace, without_gradient=transport.without_gradient
    )

    def backwards(later: _Later, xs: tuple[Array, list[Array]]) -> tuple[_Later, Any]:
        i, entry = xs
        window = _of_steps(run._replace(states=entry, trace=()), pieces, i * size, size)
        return _pulled(facts, still, window, later)

    later = _Later(end.loss, dict(end.entry_bar), end.grads)
    rest = jax.tree.map(lambda a: a[first:], (jnp.arange(n), entries))
    later, extras = lax.scan(backwards, later, rest, reverse=True)
    listed = [jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), extras), end.extras]
    if first:
        credited = replace(transport, move=lambda trace, window: trace)
        later, of_first = _pulled(facts, credited, _of_steps(run, pieces, 0, size), later)
        listed = [of_first, *listed]
    extras = jax.tree.map(lambda *a: jnp.concatenate(a), *listed)
    return WindowResult(later.loss, later.grads, end.states, end.trace, extras, later.bar)


class _Later(NamedTuple):
    """What the pieces from some place on have given: loss, cotangents of the states where they begin, gradients."""

    loss: Array
    bar: Mapping[int, Array]
    grads: dict[int, Array]


def _forwards(
    facts: Facts,
    transport: Transport[Trace],
    run: WindowRun,
    pieces: Pieces,
    carry: tuple[list[Array], Trace],
    i: Array,
) -> tuple[tuple[list[Array], Trace], list[Array]]:
    states, trace = carry
    inputs, _, resets = pieces.read(i * pieces.size, pieces.size)
    end, trace, _ = evolve(facts, transport, run.params, run.weights, states, trace, inputs, resets, run.initial)
    return (end, trace), states


def _of_steps(run: WindowRun, pieces: Pieces, start: Any, steps: int) -> WindowRun:
    inputs, step_data, resets = pieces.read(start, steps)
    return run._replace(inputs=inputs, step_data=step_data, resets=resets)


def _pulled(facts: Facts, transport: Transport[Any], run: WindowRun, later: _Later) -> tuple[_Later, Any]:
    """One piece more, and its extras."""
    unread = unread_states(facts)
    bar = {i: a for i, a in later.bar.items() if i not in unread}
    window = run._replace(exit_cotangents=bar, grads_before=later.grads)
    out = run_window(facts, transport, window)
    return _Later(later.loss + out.loss, dict(out.entry_bar), out.grads), out.extras
