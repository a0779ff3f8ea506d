"""What a rule gives the engine: how a trace begins, what it reads at each step, how it is used, how it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Array = Any
Trace = Any


class WindowData(NamedTuple):
    """What a window leaves for the trace to move over it.

    `records` are what `Transport.record` returned, stacked over steps; `data(j)` the varying operands of site j;
    `pull` takes cotangents of the hidden leaves at the exit to those at the entry and of every site's output;
    `signals` are what `Transport.signal` returned, stacked over steps, or () where there was no loss.
    """

    steps: int
    records: Any
    data: Callable[[int], tuple[Array, ...]]
    fixed: Sequence[tuple[Array, ...]]
    pull: Callable[[Mapping[int, Array]], tuple[dict[int, Array], dict[int, Array]]]
    signals: Any = ()


@dataclass(frozen=True)
class Transport:
    """ε_K = A ε_0 + C for one rule, and the credit (∂L/∂h_0) · ε_0.

    | piece | is |
    |---|---|
    | `init()` | the trace of a parameter that has not acted yet |
    | `record(leaves, weights)` | facts of one step, read inside the window's loop; never differentiated |
    | `credit(trace, g, window)` | per site, the gradient of its weight through the entry state, given g = ∂L/∂h_0 |
    | `move(trace, window)` | the trace at the window's exit |
    | `nbytes` | size of the trace |
    | `signal(trace, leaves, weights, along, loss_of)` | signals of one step in place of the loss gradient |
    | `replaces` | sites whose gradient is what `credit` returns and nothing else |
    """

    init: Callable[[], Trace]
    record: Callable[[Sequence[Array], Sequence[Array]], Any] | None
    credit: Callable[[Trace, Mapping[int, Array], WindowData], dict[int, Array]]
    move: Callable[[Trace, WindowData], Trace]
    nbytes: int
    signal: Callable[[Trace, Sequence[Array], Sequence[Array], Any, Callable[..., Any]], Any] | None = None
    replaces: frozenset[int] = frozenset()
