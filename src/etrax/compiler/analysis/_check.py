"""The invariants of facts and of the opened step that they are about. A broken one is a fault of a pass of ours.

Tests call it on all facts that are made. It computes no numbers: it looks at shapes, addresses and index maps.
"""

from __future__ import annotations

import jax
import numpy as np

from ..._compat import is_inexact
from ..._errors import EtraxError
from ..ir import Role, check_step
from ..opened import OpenStep
from ..primitives import Dep
from ._facts import Facts
from ._nodes import Node, OpNode, OutputNode, StateNode


def check_facts(facts: Facts) -> Facts:
    """Return the facts, or raise if they break what README.md in this folder promises."""
    check_step(facts.step)
    _check_sites(facts)
    _check_opened(OpenStep(facts.step, facts.sites, facts.cut))
    _check_edges(facts)
    _check_groups(facts)
    _check_relations(facts)
    return facts


def _check_sites(facts: Facts) -> None:
    """Sites stand in program order, at operands made of parameters."""
    step, sites = facts.step, facts.sites
    addresses = [site.at for site in sites]
    _require(addresses == sorted(addresses), "weight ops are not in program order")
    ends = len(step.jaxpr.eqns) + len(step.outs)
    params = range(len(step.select(Role.PARAM)))
    for j, site in enumerate(sites):
        _require(0 <= site.at[0] < ends, f"weight op {j} has no equation")
        _require(bool(site.params) and all(p in params for p in site.params), f"weight op {j} has no parameter")
        _require(len(site.sliced) == len(site.loops), f"weight op {j} lies in more loops than it says")
        _require(all(site.at[: len(loop)] == loop for loop, _ in site.loops), f"a loop is not around weight op {j}")
    _require(facts.cut <= set(range(len(sites))), "something is cut that is no weight op")


def _check_opened(opened: OpenStep) -> None:
    """The step with its weight ops open gives what the step gives, and shows every op at its own shape."""
    leaves = [leaf.aval for leaf in opened.step.ins]
    deltas = {j: site.y_struct for j, site in enumerate(opened.sites)}
    outs, observed = jax.eval_shape(opened, leaves, deltas)
    for out, leaf in zip(outs, opened.step.outs, strict=True):
        _require((out.shape, out.dtype) == (leaf.aval.shape, leaf.aval.dtype), f"{leaf.path} changes when ops are open")
    _require(observed.keys() == deltas.keys(), "not every weight op is run")
    for j, site in enumerate(opened.sites):
        _require(observed[j].perturbed.shape == site.y_shape or not site.rule.mixes, f"weight op {j} has another shape")


def _check_edges(facts: Facts) -> None:
    """Edges lead from states and ops to states, outputs and cut ops, and map elements of the one to the other's."""
    outputs = facts.step.select(Role.OUTPUT)
    shapes: dict[Node, tuple[int, ...]] = {StateNode(i): leaf.aval.shape for i, leaf in enumerate(facts.states)}
    shapes |= {OpNode(j): site.y_shape for j, site in enumerate(facts.sites)}
    shapes |= {OutputNode(k): leaf.aval.shape for k, leaf in enumerate(outputs)}
    for (source, target), dep in facts.edges.dep.items():
        _require(not isinstance(source, OutputNode), f"{source} acts on {target}")
        _require(not isinstance(target, OpNode) or target.index in facts.cut, f"{target} is reached and not cut")
        _check_dep(dep, shapes[source], int(np.prod(shapes[target], dtype=np.int64)), f"{source} → {target}")


def _check_dep(dep: Dep, shape: tuple[int, ...], size: int, name: str) -> None:
    _require(all(m.shape == shape for m in dep.maps), f"{name} has another shape than its source")
    _require(dep.part.size == size, f"{name} has another size than its target")
    blocks = int(dep.part.all_labels().max(initial=-1)) + 1
    _require(all(((m >= -1) & (m < blocks)).all() for m in dep.maps), f"{name} leads out of its target")
    _require(any((m >= 0).any() for m in dep.maps), f"{name} is empty")


def _check_groups(facts: Facts) -> None:
    """Each element of a hidden leaf is one state scalar at one position of one group."""
    leaves = [i for g in facts.groups for i in g.leaves]
    _require(len(leaves) == len(set(leaves)), "a state is in two groups")
    for n, g in enumerate(facts.groups):
        _require(g.index == n, f"group {n} has the number {g.index}")
        numbers = []
        for i, place, slot in zip(g.leaves, g.place, g.slot, strict=True):
            leaf = facts.states[i]
            _require(leaf.role is Role.HIDDEN and is_inexact(leaf.aval), f"{leaf.path} cannot be in a group")
            _require(place.shape == slot.shape == leaf.aval.shape, f"positions of {leaf.path} have another shape")
            _require(((place >= 0) & (place < g.num_positions)).all(), f"a position of {leaf.path} is not in group {n}")
            _require(((slot >= 0) & (slot < g.num_state)).all(), f"a slot of {leaf.path} is not in group {n}")
            # One number for the pair of position and slot.
            numbers.append((place.astype(np.int64) * g.num_state + slot).reshape(-1))
        pairs = np.concatenate(numbers)
        _require(np.unique(pairs).size == pairs.size, f"two elements of group {n} are one state")


def _check_relations(facts: Facts) -> None:
    """There is a relation for every op that acts on a group, and its places are positions of that group."""
    acting = {
        (op.index, facts.group_of_leaf[state.index])
        for op, state, _ in facts.edges.between(OpNode, StateNode)
        if state.index in facts.group_of_leaf
    }
    related = {(r.site, r.group) for r in facts.relations}
    # `ostl` keeps the relations of the cut step beside the edges of the whole one, through which ops reach more.
    uncut = any(site.rule.mixes and j not in facts.cut for j, site in enumerate(facts.sites))
    _require(related == acting or (uncut and related < acting), "relations are not those of the edges")
    for r in facts.relations:
        if r.place is not None:
            site, positions = facts.sites[r.site], facts.groups[r.group].num_positions
            shape = (*site.slices, *site.call.out.shape)
            _require(r.place.shape == shape, f"places of weight op {r.site} have another shape than its output")
            _require(((r.place >= -1) & (r.place < positions)).all(), f"weight op {r.site} reaches no position")


def _require(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise EtraxError(f"facts are malformed: {what}. Please report this model.")
