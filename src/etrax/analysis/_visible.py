"""What the rest of a step can see of its new states: the activity on which a learning signal acts.

A group's activity is what weight ops read of its new state: the spike of a membrane, the h of an LSTM, a rate. It is
found by running the step with its new states as independent inputs: readouts are asked first, then the ops of other
layers, then the outputs themselves. A position that nothing reads one to one is *bare*: a signal then acts on its
states as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .._compat import JaxprEqn, Literal, bind, is_inexact, open_jaxpr
from ..ir import Role, Site
from ._facts import Facts
from ._positions import Group
from .pattern import Dep, propagate


@dataclass(frozen=True)
class Reader:
    """An operand of a weight op, or (site is None) an output leaf."""

    site: int | None
    index: int


@dataclass(frozen=True, eq=False)
class Visible:
    """Per group: for each reader the position that each of its elements shows (-1: none), and the bare positions."""

    facts: Facts
    readers: tuple[Reader, ...]
    place: tuple[dict[int, np.ndarray], ...]
    bare: tuple[np.ndarray, ...]

    def read(self, leaves: Sequence[Any], new: Mapping[int, Any]) -> list[Any]:
        """What each reader sees, given the step's input leaves and its new states (by number)."""
        return read_states(self.facts, self.readers, leaves, new)


def read_states(facts: Facts, readers: Sequence[Reader], leaves: Sequence[Any], new: Mapping[int, Any]) -> list[Any]:
    """Run the step with its new states replaced by `new`."""
    states = _state_vars(facts)
    at = {facts.sites[r.site].at: [] for r in readers if r.site is not None}
    seen: dict[tuple[Site, int], Any] = {}

    def handle(site: Site, eqn: JaxprEqn, values: list[Any]) -> list[Any] | None:
        if site in at:
            seen.update({(site, i): v for i, v in enumerate(values)})
        if len(site) > 1 or not any(v in states for v in eqn.outvars):
            return None
        return [new.get(states.get(v, -1), out) for v, out in zip(eqn.outvars, bind(eqn, values), strict=True)]

    outs = facts.step.run(leaves, handle)[len(facts.states) :]
    return [outs[r.index] if r.site is None else seen[facts.sites[r.site].at, r.index] for r in readers]


def _state_vars(facts: Facts) -> dict[Any, int]:
    """Variables that hold new states; where two states share one, the first has it."""
    found: dict[Any, int] = {}
    computed = {v for eqn in facts.step.jaxpr.eqns for v in eqn.outvars}
    for i, var in enumerate(facts.step.jaxpr.outvars[: len(facts.states)]):
        if not isinstance(var, Literal) and var in computed and i in facts.group_of_leaf:
            found.setdefault(var, i)
    return found


def find_visible(facts: Facts) -> Visible:
    readers = tuple(_readers(facts))
    moving = sorted(set(_state_vars(facts).values()))
    deps = _reach(facts, readers, moving) if readers and moving else {}
    place, bare = [], []
    for group in facts.groups:
        free = np.ones(group.num_positions, bool)
        found: dict[int, np.ndarray] = {}
        for k, reader in enumerate(readers):
            own = _places(facts, group, reader, {i: deps[i, k] for i in group.leaves if (i, k) in deps})
            if own is None:
                continue
            own = np.where((own >= 0) & free[np.maximum(own, 0)], own, -1)
            if (own >= 0).any():
                found[k] = own
                free[own[own >= 0]] = False
        place.append(found)
        bare.append(free)
    return Visible(facts, readers, tuple(place), tuple(bare))


def _readers(facts: Facts) -> list[Reader]:
    """Readouts, then other weight ops, then outputs."""
    ops = [j for j, s in enumerate(facts.sites) if s.rule.mixes and len(s.at) == 1 and ("y", j) in facts.live]
    ops.sort(key=lambda j: facts.remembers(("y", j)))
    found = [
        Reader(j, i)
        for j in ops
        for i in facts.sites[j].rule.varying(facts.sites[j].call)
        if is_inexact(facts.sites[j].call.operands[i])
    ]
    outputs = facts.step.select(Role.OUTPUT)
    return found + [Reader(None, k) for k, leaf in enumerate(outputs) if is_inexact(leaf.aval)]


def _shape(facts: Facts, reader: Reader) -> tuple[int, ...]:
    if reader.site is None:
        return facts.step.select(Role.OUTPUT)[reader.index].aval.shape
    return facts.sites[reader.site].call.operands[reader.index].shape


def _reach(facts: Facts, readers: Sequence[Reader], moving: Sequence[int]) -> dict[tuple[int, int], Dep]:
    """How elements of each new state reach elements of each reader."""
    leaves = [leaf.aval for leaf in facts.step.ins]
    new = [facts.states[i].aval for i in moving]

    def run(new: list[Any], leaves: list[Any]) -> list[Any]:
        return read_states(facts, readers, leaves, dict(zip(moving, new, strict=True)))

    def pull(new: list[Any], leaves: list[Any], cotangents: list[Any]) -> Any:
        return jax.vjp(lambda n: run(n, leaves), new)[1](cotangents)

    shapes = jax.eval_shape(run, new, leaves)
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pull)(new, leaves, shapes))
    sources = {len(new) + len(leaves) + k: k for k in range(len(readers))}
    rows, _ = propagate(jaxpr, consts, sources, {})
    return {(i, k): dep for i, found in zip(moving, rows, strict=True) for k, dep in found.items()}


def _places(facts: Facts, group: Group, reader: Reader, deps: Mapping[int, Dep]) -> np.ndarray | None:
    """The position that each element of a reader shows, or None if one of them shows several."""
    shape = _shape(facts, reader)
    own = np.full(int(np.prod(shape, dtype=np.int64)), -1, np.int32)
    for leaf, dep in deps.items():
        if dep.part.labels is not None:
            return None
        source = group.place_of(leaf).reshape(-1)
        for m in (m.reshape(-1) for m in dep.maps):
            at = np.flatnonzero(m >= 0)
            clash = (own[m[at]] >= 0) & (own[m[at]] != source[at])
            if clash.any():
                return None
            own[m[at]] = source[at]
            if (own[m[at]] != source[at]).any():  # two positions in one map
                return None
    return own.reshape(shape) if deps else None
