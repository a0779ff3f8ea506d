"""Which weight ops the loss of a step sees through new states alone, by traces that hold all of their influence.

    ∂ℓ/∂y · u + ∂ℓ/∂h_0 · ε_0  =  (s F) u + (s D) ε_0  =  s (D ε_0 + F u)  =  s · ε_1        s = ∂ℓ/∂h_1

This holds for an op y if every way from y and from the old states of its group to the outputs passes the new states of
the group, none of which is made of another, and every way to these is in F or D. One pass over the trace then moves it
and takes its credit.

    ∂ℓ/∂y  =  s F        s is the loss in each new state, not by way of other new states of its group

asks less: of y alone, and of F. A loss taken in the states (`rules/_state_credit.py`) is then all that y owes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ..._compat import JaxprEqn, Literal, is_inexact, open_jaxpr
from ...compiler.analysis import Facts, FanOut, OpNode, is_steep, lost_from_op, lost_from_reached
from ...compiler.ir import Address, Detach, Role, detaching_vjp, interpret
from ...compiler.opened import OpenStep
from ...compiler.ops import ALIGNED
from .._plan import Plan
from .._site_math import wide_dtype
from .._transport import SeenThrough


def seen_through_states(plan: Plan, fan_out: FanOut) -> SeenThrough:
    """The sites of a plan that this holds for, and the states that they are seen through."""
    facts = plan.facts
    if plan.steep or facts.nonlinear or plan.reader.view.memoryless:
        return SeenThrough()
    sites: set[int] = set()
    states: set[int] = set()
    for g in plan.groups:
        relations = [k for k, r in enumerate(plan.relations) if r.group == g]
        complete = [plan.relations[k].site for k in relations if _is_whole(plan, k, fan_out)]
        slots = sorted({slot.leaf for slot in plan.layout(relations[0]).slots})
        if complete and _are_apart(facts, slots):
            # A way from an old state to an output that passes no new one is one for every op of the group.
            old, ops = _seen_beside(facts, facts.groups[g].leaves, slots, complete)
            if not old and set(complete) - ops:
                sites |= set(complete) - ops
                states |= set(slots)
    return SeenThrough(frozenset(sites), frozenset(states))


def accounted_by_states(plan: Plan, facts: Facts) -> frozenset[int]:
    """The sites of a plan whose output the loss of a step sees through F and new states alone: ∂ℓ/∂y = s · F.

    `facts` are those of the step with its ops cut, also of a plan that reads it with nothing cut: such an F has the
    share of its own position alone of what passes another op.
    """
    if plan.steep or facts.nonlinear:
        return frozenset()
    # Of an elementwise product that is cut, the output says nothing: what reaches its data is in the edges.
    products = {OpNode(j) for j in facts.cut if facts.sites[j].rule is ALIGNED}
    sites: set[int] = set()
    for g in plan.groups:
        driving = {r.site for r in plan.relations if r.group == g and _groups_reached(facts, r.site) == {g}}
        alone = sorted(j for j in driving if products.isdisjoint(facts.edges.out(OpNode(j))))
        slots = sorted({slot.leaf for slot in plan.reader.layouts[g].slots})
        sites |= set(alone) - _seen_beside(facts, (), slots, alone, facts.cut)[1]
    return frozenset(sites)


def shown_by_states(facts: Facts, held: Sequence[int], sites: Sequence[int]) -> frozenset[int]:
    """The sites whose output the loss of a step sees through these new states alone, whatever leads to the states."""
    if is_steep(facts) or facts.nonlinear:
        return frozenset()
    return frozenset(sites) - _seen_beside(facts, (), held, sites)[1]


def _groups_reached(facts: Facts, site: int) -> set[int]:
    """The groups that a site drives, without those that no output shows."""
    return {r.group for r in facts.relations_of.get(site, ()) if facts.matters(r.group)}


def _is_whole(plan: Plan, k: int, fan_out: FanOut) -> bool:
    """Whether the trace of relation k is all that its op does to states, in numbers as fine as a gradient's."""
    facts, r = plan.facts, plan.relations[k]
    fine = plan.dtypes[k] == wide_dtype(facts.sites[r.site].call.out.dtype)
    return (
        fine
        and _groups_reached(facts, r.site) == {r.group}
        and OpNode(r.site) in facts.live
        and not lost_from_op(facts, r.site, fan_out)
        and not lost_from_reached(facts, r.group, (r.site,))
    )


def _are_apart(facts: Facts, leaves: Sequence[int]) -> bool:
    """Whether each state has a new value of its own, which is computed from no new value of another.

    An old state, a constant or the value of two states cannot be nudged. Where a membrane reads the new value of its
    synapse, what the loss owes to the synapse by way of the membrane would be counted for both.
    """
    jaxpr = facts.step.jaxpr
    new = {jaxpr.outvars[i] for i in leaves if not isinstance(jaxpr.outvars[i], Literal)}
    read: set[object] = set()  # values that are computed from one of the new states
    computed: set[object] = set()
    for eqn in jaxpr.eqns:
        if any(v in new or v in read for v in eqn.invars if not isinstance(v, Literal)):
            read.update(eqn.outvars)
        computed.update(eqn.outvars)
    return len(new) == len(leaves) and new <= computed and not new & read


def _seen_beside(
    facts: Facts, old: Sequence[int], held: Sequence[int], sites: Sequence[int], ops: Collection[int] = ()
) -> tuple[set[int], set[int]]:
    """Old states, and sites, that an output of the step shows by a way that passes none of the new states `held`.

    The outputs of the weight ops `ops` count as outputs of the step.
    """
    opened, n = OpenStep(facts.step, facts.sites, frozenset()), len(facts.states)
    leaves = [i for i in sorted(old) if is_inexact(facts.states[i].aval)]
    output_leaves = facts.step.select(Role.OUTPUT)
    outputs = [k for k, leaf in enumerate(output_leaves) if is_inexact(leaf.aval)]

    def pulled(values: list[Array], errors: list[Array]) -> tuple[list[Array], dict[int, Array]]:
        states = facts.step.states_of(values)

        def run(detach: Detach, moving: list[Array], deltas: dict[int, Array]) -> list[Array]:
            zeros = {i: jnp.zeros(states[i].shape, states[i].dtype) for i in held}
            given = dict(zip(leaves, moving, strict=True))
            outs, seen = opened(values, deltas, held=zeros, states=given, detach=detach)
            return [*(outs[n + k] for k in outputs), *(seen[j].y for j in sorted(ops))]

        _, pull = detaching_vjp(run, [states[i] for i in leaves], opened.no_deltas(sites))
        return pull(errors)

    error = object()

    def made_of(_: Address, eqn: JaxprEqn, values: list[object]) -> list[object]:
        return [error if any(v is error for v in values) else None] * len(eqn.outvars)

    ends = [*(output_leaves[k].aval for k in outputs), *(facts.sites[j].y_struct for j in sorted(ops))]
    args = [leaf.aval for leaf in facts.step.ins], ends
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pulled)(*args))
    marks: list[object] = [None] * len(args[0]) + [error] * len(ends)
    arrives = [v is error for v in interpret(jaxpr, [None] * len(consts), marks, made_of)]
    # The old states come first, then the sites in the order of their numbers.
    shown = {i for i, hit in zip(leaves, arrives[: len(leaves)], strict=True) if hit}
    return shown, {j for j, hit in zip(sorted(sites), arrives[len(leaves) :], strict=True) if hit}
