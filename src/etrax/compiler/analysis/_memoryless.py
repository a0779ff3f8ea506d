"""States that hold nothing of the past but what other new states hold: h' = g(c', y, x), read by cut ops alone.

The h of an LSTM is one, h' = σ(o) tanh(c'), and all of a plain recurrent net, h' = tanh(y). No old state acts on h' but
by way of c', and h acts on no state but through weight ops, which are cut. Its trace is then that of c, and one step:

    ε_h = ∂g/∂c' ε_c + u_K ⊗ ∂g/∂y_K

Proved by the derivative of the step with c' held: no old state of the group reaches h', and c' reaches it position by
position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import Array

from ..._compat import is_complex
from ..dataflow import reach_through
from ..opened import OpenStep
from ..primitives import Dep
from ._derived import derived_states
from ._facts import Facts
from ._memo import memoised
from ._nodes import StateNode
from ._positions import Group, target_places
from ._tags import Tag


class _Asked(NamedTuple):
    """The leaves of a group that may be memoryless, and its others, whose new values are held."""

    group: Group
    leaves: list[int]
    held: list[int]


@memoised
def memoryless_states(facts: Facts) -> dict[int, frozenset[int]]:
    """Per memoryless leaf, the new states of its group that it is made of."""
    if facts.nonlinear:
        return {}
    carried = [g for g in facts.groups if facts.tags[g.index] in (Tag.DIAGONAL, Tag.BLOCK)]
    asked = [candidate for g in carried if (candidate := _asked(facts, g)).leaves]
    return _proved(facts, asked) if asked else {}


def _asked(facts: Facts, group: Group) -> _Asked:
    derived = derived_states(facts).get(group.index)
    follow = derived.sources if derived is not None else {}
    live = [i for i in group.leaves if StateNode(i) in facts.live and i not in follow]
    acting = {a.index for a, b, _ in facts.edges.between(StateNode, StateNode) if b.index in group.leaves}
    # A state that follows from others and acts on the group does so through them.
    acting |= {i for z, sources in follow.items() if z in acting for i in sources}
    leaves = [i for i in live if i not in acting and _is_plain(facts, group, i)]
    return _Asked(group, leaves, [i for i in live if i not in leaves])


def _proved(facts: Facts, parts: Sequence[_Asked]) -> dict[int, frozenset[int]]:
    """Find the memoryless states among some, by one derivative of the step for all groups.

    A group that another one's held states reach, or for which something on the way is not linear, is tried alone.
    """
    old, held = [i for p in parts for i in p.group.leaves], [i for p in parts for i in p.held]
    asked, opened = [i for p in parts for i in p.leaves], OpenStep(facts.step, facts.sites, facts.cut)

    def run(moving: list[Array], leaves: list[Array]) -> list[Array]:
        states, new = dict(zip(old, moving, strict=False)), dict(zip(held, moving[len(old) :], strict=True))
        outs, _ = opened(leaves, {}, held=new, states=states)
        return [outs[i] for i in asked]

    moving = [facts.states[i].aval for i in (*old, *held)]
    # Held states are inputs of the function, so that what they do to others is seen apart from what old states do.
    rows, problems = reach_through(run, moving, [leaf.aval for leaf in facts.step.ins], asked)
    reached = [{i: dep for i, dep in row.items() if any((m >= 0).any() for m in dep.maps)} for row in rows]
    by_old, by_new = dict(zip(old, reached, strict=False)), dict(zip(held, reached[len(old) :], strict=True))
    proved: dict[int, frozenset[int]] = {}
    for part in parts:
        # A problem without sources may stand on the way of any group.
        met = any(not problem.sources or problem.sources & set(part.leaves) for problem in problems)
        crossed = any(by_new[k].keys() & set(part.leaves) for k in held if k not in part.held)
        if len(parts) > 1 and (met or crossed):
            proved |= _proved(facts, [part])
        elif not met:
            proved |= _of_group(facts, part, by_old, by_new)
    return proved


def _of_group(
    facts: Facts, part: _Asked, by_old: Mapping[int, Mapping[int, Dep]], by_new: Mapping[int, Mapping[int, Dep]]
) -> dict[int, frozenset[int]]:
    """The asked leaves of a group that no old state reaches, and new ones position by position alone."""
    proved: dict[int, frozenset[int]] = {}
    for i in part.leaves:
        sources = {k: by_new[k][i] for k in part.held if i in by_new[k]}
        if not any(i in by_old[k] for k in part.group.leaves) and all(
            _is_plain(facts, part.group, k) and _stays(dep, part.group.place_of(i)) for k, dep in sources.items()
        ):
            proved[i] = frozenset(sources)
    return proved


def _stays(dep: Dep, place: np.ndarray) -> bool:
    """Whether elements in the order of positions reach nothing but their own."""
    reached = target_places(dep, place)
    return reached is not None and bool(
        ((reached == np.arange(reached.size).reshape(reached.shape)) | (reached < 0)).all()
    )


def _is_plain(facts: Facts, group: Group, leaf: int) -> bool:
    """Whether a leaf has one real number at every position, in their order."""
    aval, place = facts.states[leaf].aval, group.place_of(leaf).reshape(-1)
    return not is_complex(aval) and place.size == group.num_positions and bool((place == np.arange(place.size)).all())
