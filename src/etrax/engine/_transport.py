"""What a rule gives the engine: how a trace begins, what it reads at each step, how it is used, how it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

Array = Any
Trace = Any


class WindowData(NamedTuple):
    """What a window leaves for the trace to move over it.

    `records` are what `Transport.record` returned, stacked over steps; `data(j)` the varying operands of site j;
    `pull` takes cotangents of the hidden leaves at the exit to those at the entry and of every site's output;
    `signals` are what `Transport.signal` returned, stacked over steps, or () where there was no loss; `ends` are the
    states at the entry and at the exit; `entry_bar` the cotangents at the entry, of the loss and of what lies `ahead`,
    where a rule looks ahead; `after` is zero, and known only after `credit`: what a trace is moved by may be made of
    it, to be moved in its place; `carry` what `Transport.advance` has made of what `begin` gave.
    """

    steps: int
    records: Any
    data: Callable[[int], tuple[Array, ...]]
    fixed: Sequence[tuple[Array, ...]]
    pull: Callable[[Mapping[int, Array]], tuple[dict[int, Array], dict[int, Array]]]
    signals: Any = ()
    ends: tuple[Sequence[Array], Sequence[Array]] = ((), ())
    entry_bar: Mapping[int, Array] | None = None
    carry: Any = ()
    after: Any = 0.0


@dataclass(frozen=True)
class Transport:
    """ε_K = A ε_0 + C for one rule, and the credit (∂L/∂h_0) · ε_0.

    | piece | is |
    |---|---|
    | `init()` | the trace of a parameter that has not acted yet |
    | `record(leaves, weights, ys)` | facts of one step, given what its ops gave; read inside the window's loop |
    | `begin(trace)`, `advance(carry, leaves, weights, ys)` | what moves step by step, inside the window's loop |
    | `joined(trace, g, window)` | per site, data, cotangents (1, …) of one step more: credit by the window's product |
    | `credit(trace, g, window)` | per site, the gradient of its weight through the entry state, given g = ∂L/∂h_0 |
    | `move(trace, window)` | the trace at the window's exit |
    | `credit_at_exit(trace, window)` | what of the credit is read off the trace at the exit |
    | `nbytes` | size of the trace |
    | `learned(trace)` | what outlives a sequence: matrices that the rule trains, its random key; () if nothing does |
    | `renew(fresh, learned)` | a fresh trace with that in it |
    | `parts(trace)` | per site, the arrays of the trace that are its own: to look at, and to name |
    | `signal(trace, leaves, weights, along, loss_of, share)` | signals of one step in place of the loss gradient |
    | `replaces` | sites whose gradient is the credit and nothing else |
    | `ahead(trace, states)` | cotangents of the states at the exit: what later losses are thought to owe to them |
    | `hears` | sites whose gradient includes what lies ahead |
    """

    init: Callable[[], Trace]
    record: Callable[[Sequence[Array], Sequence[Array], Mapping[int, Array]], Any] | None
    credit: Callable[[Trace, Mapping[int, Array], WindowData], dict[int, Array]]
    move: Callable[[Trace, WindowData], Trace]
    nbytes: int
    signal: Callable[[Trace, Sequence[Array], Sequence[Array], Any, Callable[..., Any], Any], Any] | None = None
    replaces: frozenset[int] = frozenset()
    ahead: Callable[[Trace, Sequence[Array]], dict[int, Array]] | None = None
    hears: frozenset[int] = frozenset()
    begin: Callable[[Trace], Any] = lambda trace: ()
    advance: Callable[[Any, Sequence[Array], Sequence[Array], Mapping[int, Array]], Any] | None = None
    learned: Callable[[Trace], Any] = lambda trace: ()
    renew: Callable[[Trace, Any], Trace] = lambda fresh, learned: fresh
    parts: Callable[[Trace], dict[int, list[Array]]] = lambda trace: {}
    joined: Callable[[Trace, Mapping[int, Array], WindowData], dict[int, tuple[Array, Array]]] | None = None
    credit_at_exit: Callable[[Trace, WindowData], dict[int, Array]] | None = None


def by_site(sites: Iterable[int], entries: Iterable[Any]) -> dict[int, list[Array]]:
    """The arrays of entries that belong to sites, one entry each."""
    found: dict[int, list[Array]] = {}
    for j, entry in zip(sites, entries, strict=True):
        found.setdefault(j, []).extend(jax.tree.leaves(entry))
    return found


def add_to(out: dict[int, Any], site: int, term: Any) -> None:
    """Sum terms by site."""
    out[site] = out[site] + term if site in out else term


def bytes_of(init: Any) -> int:
    """Bytes of what a function would allocate."""
    found = jax.tree.leaves(jax.eval_shape(init))
    return sum(int(np.prod(a.shape, dtype=np.int64)) * a.dtype.itemsize for a in found)
