"""A step with copies of coarse states at the fine positions that they act on.

A group of few positions may act on one of many: a running maximum on the matrix of an mLSTM head, a short convolution
on a state of several numbers a channel. Each fine position p sees few coarse positions q, each in states m of its own:

    c'[p] = … + Σ_r ∂c'[p]/∂m[q_r(p)] m̃_r[p]        m̃_r'[p] = m'[q_r(p)] + ∂m'[q]/∂m[q] m̃_r[p]

m̃ lives at fine positions, so that blocks by position carry what m does to c. It is a copy: what m does to anything else
is carried by m itself. The derivatives come as inputs, and m̃ itself is zero, since nothing but derivatives count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..._compat import Literal, Var, is_complex, is_inexact, new_variable, open_jaxpr, renamed
from ..ir import Leaf, Role, Step, without_calls
from ._facts import Facts
from ._fan_out import colours_of_pairs, pairs_of
from ._filtered import widened
from ._memo import memoised
from ._nodes import Node, StateNode
from ._positions import Group
from ._slots import slot_links

# A fine position sees at most so many coarse ones, by states that are copied for each of them.
MAX_SEEN = 4


@dataclass(frozen=True, eq=False)
class Spread:
    """A coarse group that acts on a fine one; `seen[r, p]` is the r-th coarse position that position p sees, or -1.

    `acts[i, j]` says whether state scalar j of the coarse group acts on state scalar i: of the fine group, and behind
    those, of the coarse group itself. `shape` is that of a copy: fine positions, behind the axis of lanes.
    """

    coarse: Group
    fine: Group
    seen: np.ndarray
    acts: np.ndarray
    shape: tuple[int, ...]

    @property
    def copies(self) -> list[tuple[int, int]]:
        """Number of the coarse position and state scalar of each copy."""
        return list(product(range(len(self.seen)), range(self.coarse.num_state)))


@memoised
def possible_spreads(facts: Facts) -> tuple[Spread, ...]:
    """Groups of which each position sees few of another, which acts on them, not they on it, and is carried itself."""
    if facts.nonlinear:
        return ()
    groups = facts.group_of_leaf
    lost: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for s, t, _ in facts.edges.between(StateNode, StateNode):
        pair = groups.get(s.index), groups.get(t.index)
        if None not in pair and pair[0] != pair[1] and t in facts.live and s.index not in facts.unreached:
            lost.setdefault(pair, set()).add((s.index, t.index))  # type: ignore[arg-type]
    spreads = (_spread(facts, facts.groups[a], facts.groups[b], edges) for (a, b), edges in lost.items())
    return tuple(s for s in spreads if s is not None)


def _spread(facts: Facts, coarse: Group, fine: Group, edges: Iterable[tuple[int, int]]) -> Spread | None:
    dep = facts.edges.dep
    if any((StateNode(b), StateNode(a)) in dep for a in coarse.leaves for b in fine.leaves):
        return None
    avals = [facts.states[i].aval for i in (*coarse.leaves, *fine.leaves)]
    if any(is_complex(a) or not is_inexact(a) for a in avals) or len({a.dtype for a in avals}) > 1:
        return None
    if not all(facts.carries(a, b) for a in coarse.leaves for b in coarse.leaves):
        return None
    reach = [(a, ((dep[StateNode(a), StateNode(b)], fine.place_of(b)),)) for a, b in edges]
    width, numbers = fine.num_positions, []
    for a, edge in reach:
        pairs = pairs_of(edge, MAX_SEEN * coarse.num_state * max(width, coarse.num_positions))
        if pairs is None:
            return None
        numbers.append(coarse.place_of(a).reshape(-1)[pairs[0]].astype(np.int64) * width + pairs[1])
    q, p = np.divmod(np.unique(np.concatenate(numbers)), width)
    if np.bincount(p).max() > MAX_SEEN:
        return None
    colour = colours_of_pairs(q, p, (coarse.num_positions,))
    if colour is None or int(colour.max()) >= MAX_SEEN:
        return None
    copies = np.full((int(colour.max()) + 1, width), -1, np.int64)
    copies[colour[q], p] = q
    return Spread(coarse, fine, copies, _acts(facts, coarse, fine, edges), _shape_of_copies(facts, fine))


def _shape_of_copies(facts: Facts, fine: Group) -> tuple[int, ...]:
    """The shape of the fine positions, with the first axis of their states where they lie along it."""
    first, count = facts.states[fine.leaves[0]].aval.shape[:1], fine.num_positions
    if not first or fine.varshape[:1] == first or count % first[0]:
        return fine.varshape
    lane = fine.place[0].reshape(first[0], -1) // (count // first[0])
    return (first[0], count // first[0]) if (lane == np.arange(first[0])[:, None]).all() else fine.varshape


def _acts(facts: Facts, coarse: Group, fine: Group, edges: Iterable[tuple[int, int]]) -> np.ndarray:
    acts = np.zeros((fine.num_state, coarse.num_state), bool)
    for a, b in edges:
        rows, columns = fine.slot[fine.leaves.index(b)], coarse.slot[coarse.leaves.index(a)]
        acts[np.ix_(np.unique(rows), np.unique(columns))] = True
    return np.concatenate([acts, slot_links(facts.edges, coarse)])


def slot_elements(group: Group) -> list[tuple[int, np.ndarray]]:
    """Of each state scalar of a group, its leaf and the elements of that, in the order of positions."""
    elements: dict[int, tuple[int, np.ndarray]] = {}
    for leaf, place, slot in zip(group.leaves, group.place, group.slot, strict=True):
        for k in np.unique(slot):
            at = np.flatnonzero(slot.reshape(-1) == k)
            index = np.empty(group.num_positions, np.int64)
            index[place.reshape(-1)[at]] = at
            elements[int(k)] = leaf, index
    return [elements[k] for k in range(group.num_state)]


def with_spreads(facts: Facts, spreads: Sequence[Spread]) -> tuple[Step, frozenset[tuple[Node, Node]]]:
    """The step with copies of coarse states as hidden states behind its own, and the edges that these carry instead.

    Its last inputs are the derivatives, one array (R, states acted on, coarse states, *fine positions) per spread.
    """
    step = facts.step
    eqns, results = list(step.jaxpr.eqns), list(step.jaxpr.outvars)
    states: list[tuple[Var, Leaf]] = []
    inputs: list[tuple[Var, Leaf]] = []
    new: list[Var] = []
    carried: set[tuple[Node, Node]] = set()
    for n, spread in enumerate(spreads):
        coarse, fine, of = spread.coarse, spread.fine, slot_elements(spread.coarse)
        leaves = (*coarse.leaves, *fine.leaves)
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (facts.states[i].aval for i in leaves)]
        copy = jax.ShapeDtypeStruct(spread.shape, structs[0].dtype)
        rates = jax.ShapeDtypeStruct((len(spread.seen), *spread.acts.shape, *spread.shape), copy.dtype)
        traced = jax.make_jaxpr(_moved(spread))(structs, [copy] * len(spread.copies), rates)
        body, consts = without_calls(*open_jaxpr(traced))
        # A body that stands in the step twice has variables of its own each time.
        names: dict[Any, Any] = {v: new_variable(v.aval) for v in body.invars}
        names |= {v: new_variable(v.aval) for eqn in body.eqns for v in eqn.outvars}
        names |= {v: Literal(c, v.aval) for v, c in zip(body.invars, consts, strict=False)}
        names |= dict(zip(body.invars[len(consts) :], [results[i] for i in leaves], strict=False))
        eqns += [renamed(eqn, names) for eqn in body.eqns]
        *old, rate = (names[v] for v in body.invars[len(consts) + len(leaves) :])
        values = [names.get(v, v) for v in body.outvars]
        for i, v in zip(fine.leaves, values, strict=False):
            results[i] = v
        first = len(step.select(Role.HIDDEN)) + len(states)
        new += values[len(fine.leaves) :]
        paths = [facts.states[of[j][0]].path for _, j in spread.copies]
        states += [(v, Leaf(Role.HIDDEN, path, copy)) for v, path in zip(old, paths, strict=True)]
        inputs.append((rate, Leaf(Role.INPUT, ("derivatives", n), rates)))
        ends = (*fine.leaves, *range(first, first + len(old)))
        carried |= {(StateNode(a), StateNode(b)) for a in coarse.leaves for b in ends}
    return widened(step, eqns, results, states, new, inputs), frozenset(carried)


def _moved(spread: Spread) -> Callable[[list[Array], list[Array], Array], list[Array]]:
    """New states of both groups, copies and derivatives → new states of the fine group, and new copies."""
    coarse, fine = spread.coarse, spread.fine
    elements, count = slot_elements(coarse), fine.num_state

    def run(states: list[Array], copies: list[Array], rates: Array) -> list[Array]:
        old = dict(zip(spread.copies, copies, strict=True))
        leaves = dict(zip((*coarse.leaves, *fine.leaves), states, strict=True))

        def moved(r: int, i: int) -> list[Array]:
            return [rates[r, i, j] * old[r, j] for j in np.flatnonzero(spread.acts[i]).tolist()]

        terms = [[t for r in range(len(spread.seen)) for t in moved(r, i)] for i in range(count)]
        sums = [sum(t[1:], t[0]) if t else None for t in terms]
        new = [_at_leaf(fine, i, leaves[i], sums) for i in fine.leaves]
        for r, j in spread.copies:
            leaf, index = elements[j]
            at = spread.seen[r]
            value = leaves[leaf].reshape(-1)[index[np.maximum(at, 0)]]
            value = value if (at >= 0).all() else jnp.where(at >= 0, value, 0)
            new.append(sum(moved(r, count + j), value.reshape(spread.shape)))
        return new

    return run


def _at_leaf(fine: Group, leaf: int, value: Array, sums: Sequence[Array | None]) -> Array:
    """A new state, and what copies do to its elements."""
    number = fine.leaves.index(leaf)
    place, slot = fine.place[number].reshape(-1), fine.slot[number].reshape(-1)
    for k in np.unique(slot):
        term = sums[k]
        if term is None:
            continue
        if np.array_equal(place, np.arange(place.size)):
            value = value + term.reshape(value.shape)
        else:
            at = term.reshape(-1)[place]
            value = value + (at if (slot == k).all() else jnp.where(slot == k, at, 0)).reshape(value.shape)
    return value
