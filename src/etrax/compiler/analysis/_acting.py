"""Columns of an op that act on no state with a trace: what is left of a relation without them.

A fused product makes several things at once: [i, f, g, o] of an LSTM, of which o acts on h alone, whose trace is that
of c; a layer and the gate of its output, which no state sees. Columns read weights of their own (`Columns`), so that
the others are the same op with fewer, and their trace is smaller:

    y     [i  f  g  o]        ŷ     [i  f  g]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from ..ops import with_columns
from ._facts import Facts, Relation
from ._fan_out import Copies

# Columns that stand in more runs than these are not worth being picked out. The shape of a trace depends on it, so that
# it is the same on every device: a state that is saved on one is restored on another.
_MAX_RUNS = 8


def with_acting_columns(facts: Facts, relation: Relation, leaves: Collection[int]) -> Relation:
    """The relation with those columns of y alone that act on one of these states; itself if all do, or none."""
    site = facts.sites[relation.site]
    columns = site.rule.columns(site.call)
    if relation.copies is not None or relation.place is None or site.loops or columns is None or columns.new:
        return relation
    axis = len(site.y_shape) + columns.out
    acts = np.zeros(site.y_shape, bool)
    for leaf, dep in facts.edges.states_from(relation.site).items():
        if leaf in leaves:
            acts |= np.any([m.reshape(site.y_shape) >= 0 for m in dep.maps], axis=0)
    of = np.flatnonzero(acts.any(tuple(i for i in range(acts.ndim) if i != axis)))
    count = site.y_shape[axis]
    if of.size in (0, count) or (np.diff(of) > 1).sum() >= _MAX_RUNS:
        return relation
    fewer = replace(site, call=with_columns(site.call, columns, of.size))
    copies = Copies(fewer, columns, of, count, of.size * (acts.size // count), source=relation)
    return replace(relation, place=np.take(relation.place, of, axis), copies=copies)
