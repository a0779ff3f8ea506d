"""States that hold nothing of the past but what other new states hold: h' = g(c', y, x), read by cut ops alone.

The h of an LSTM is one, h' = σ(o) tanh(c'), and all of a plain recurrent net, h' = tanh(y). No old state acts on h' but
by way of c', and h acts on no state but through weight ops, which are cut. Its trace is then that of c, and one step:

    ε_h = ∂g/∂c' ε_c + u_K ⊗ ∂g/∂y_K

Proved by the derivative of the step with c' held: no old state of the group reaches h', and c' reaches it position by
position.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jax import Array

from .._compat import is_complex
from ..primitives import Dep
from ._cut import OpenStep
from ._derived import derived_states
from ._facts import Facts, target_places
from ._nodes import StateNode
from ._positions import Group
from ._tags import Tag
from ._transpose import reach_through


@lru_cache(maxsize=32)
def momentary_states(facts: Facts) -> dict[int, frozenset[int]]:
    """Per momentary leaf, the new states of its group that it is made of."""
    if facts.nonlinear:
        return {}
    carried = [g for g in facts.groups if facts.tags[g.index] in (Tag.DIAGONAL, Tag.BLOCK)]
    return {i: sources for g in carried for i, sources in _of_group(facts, g).items()}


def _of_group(facts: Facts, group: Group) -> dict[int, frozenset[int]]:
    derived = derived_states(facts).get(group.index)
    follow = derived.sources if derived is not None else {}
    live = [i for i in group.leaves if StateNode(i) in facts.live and i not in follow]
    acting = {a.index for a, b, _ in facts.edges.between(StateNode, StateNode) if b.index in group.leaves}
    acting |= {i for z, sources in follow.items() if z in acting for i in sources}
    asked = [i for i in live if i not in acting and _is_plain(facts, group, i)]
    if not asked:
        return {}
    held, opened = [i for i in live if i not in asked], OpenStep(facts.step, facts.sites, facts.cut)

    def run(moving: list[Array], leaves: list[Array]) -> list[Array]:
        old, new = (dict(zip(names, moving[at:], strict=False)) for names, at in ((group.leaves, 0), (held, first)))
        outs, _ = opened(leaves, {}, held=new, states=old)
        return [outs[i] for i in asked]

    first, avals = len(group.leaves), [leaf.aval for leaf in facts.states]
    moving = [avals[i] for i in (*group.leaves, *held)]
    rows, problems = reach_through(run, moving, [leaf.aval for leaf in facts.step.ins], asked)
    if problems:
        return {}
    reached = [{i for i, dep in row.items() if any((m >= 0).any() for m in dep.maps)} for row in rows]
    found: dict[int, frozenset[int]] = {}
    for i in asked:
        by_new = {k: row[i] for k, row, ends in zip(held, rows[first:], reached[first:], strict=True) if i in ends}
        if not any(i in ends for ends in reached[:first]) and all(
            _is_plain(facts, group, k) and _stays(dep, group.place_of(i)) for k, dep in by_new.items()
        ):
            found[i] = frozenset(by_new)
    return found


def _stays(dep: Dep, place: np.ndarray) -> bool:
    """Whether elements in the order of positions reach nothing but their own."""
    found = target_places(dep, place)
    return found is not None and bool(((found == np.arange(found.size).reshape(found.shape)) | (found < 0)).all())


def _is_plain(facts: Facts, group: Group, leaf: int) -> bool:
    """Whether a leaf has one real number at every position, in their order."""
    aval, place = facts.states[leaf].aval, group.place_of(leaf).reshape(-1)
    return not is_complex(aval) and place.size == group.num_positions and bool((place == np.arange(place.size)).all())
