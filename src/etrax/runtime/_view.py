"""The view in which a trace sees the states of a step: which of them have numbers of their own in it.

A trace lives in other coordinates h̃ than the step's states, h = V h̃. Credit takes cotangents there, g̃ = Vᵀ g, and D̃
and F̃ are the blocks of the step in these coordinates.

- *Derived*: a state that is a function of other new states of its group (a spike of its membrane) follows from them.
- *Unread* or *unreached*: a state that no output sees, or that no parameter reaches, has no influence to carry.
- *Memoryless*: a state of which no old value is read by position; its trace is the last step (`traces/_memoryless.py`).
- *Added*: a leaky sum of what a layer gives (`traces/_hop.py`), or a low-pass copy of a slot (`_readers.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
from jax import Array

from ..compiler.analysis import Derived, Facts, StateNode, derived_states
from ._transport import Trace, Transport, WindowData


@dataclass(frozen=True, eq=False)
class View:
    """States in `gone` have no slot; those of `derived`, by group, count as what they are made of, and act on nothing.

    `memoryless` are those of `gone` whose trace is their last step.
    """

    facts: Facts
    derived: Mapping[int, Derived] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    memoryless: frozenset[int] = frozenset()

    def pull(self, g: Mapping[int, Array], states: Sequence[Array]) -> dict[int, Array]:
        """g̃: cotangents of states, with those of derived states taken to the states that they are made of."""
        out = dict(g)
        for d in self.derived.values():
            if not all(i in g for i in (*d.kept, *d.gone)):
                continue
            _, pull = jax.vjp(d, {i: states[i] for i in d.kept})
            for i, value in pull({i: g[i] for i in d.gone})[0].items():
                out[i] = out[i] + value
        return out


def whole_view(facts: Facts) -> View:
    """Every state that a parameter reaches."""
    return View(facts, gone=frozenset(facts.unreached))


def following_view(facts: Facts) -> View:
    """Every state that a parameter reaches; those that follow from others have a trace, but act on nothing."""
    return View(facts, derived_states(facts), frozenset(facts.unreached))


def reduced_view(facts: Facts, memoryless: Collection[int] = ()) -> View:
    """The states that need a trace of their own."""
    derived = derived_states(facts)
    follow = (i for d in derived.values() for i in d.gone)
    unread = (i for g in facts.groups for i in g.leaves if StateNode(i) not in facts.live)
    return View(facts, derived, frozenset({*follow, *unread, *facts.unreached, *memoryless}), frozenset(memoryless))


def in_view(view: View, transport: Transport[Trace]) -> Transport[Trace]:
    """A transport whose trace lives in a view: cotangents of states are taken there before it meets them."""

    def credit(trace: Trace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        return transport.credit(trace, view.pull(g, window.entry_states), window)

    def in_product(trace: Trace, g: Mapping[int, Array], window: WindowData) -> dict[int, tuple[Array, Array]]:
        return transport.fused.in_product(trace, view.pull(g, window.entry_states), window)

    return replace(transport, credit=credit, fused=replace(transport.fused, in_product=in_product))
