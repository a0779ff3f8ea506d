"""Which weight ops the loss of a step sees through new states alone, by traces that hold all of their influence.

    ∂ℓ/∂y · u + ∂ℓ/∂h_0 · ε_0  =  (s F) u + (s D) ε_0  =  s (D ε_0 + F u)  =  s · ε_1        s = ∂ℓ/∂h_1

This holds for an op y if every way from y and from the old states of its group to the outputs passes the new states of
the group, none of which is made of another, and every way to these is in F or D. One pass over the trace then moves it
and takes its credit.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ..._compat import JaxprEqn, Literal, is_inexact, open_jaxpr
from ...compiler.analysis import Facts, FanOut, OpNode, lost_from_op, lost_from_reached
from ...compiler.ir import Address, Detach, Role, detaching_vjp, interpret
from ...compiler.opened import OpenStep
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
            old, ops = _seen_beside(facts, g, slots, complete)
            if not old and set(complete) - ops:
                sites |= set(complete) - ops
                states |= set(slots)
    return SeenThrough(frozenset(sites), frozenset(states))


def _is_whole(plan: Plan, k: int, fan_out: FanOut) -> bool:
    """Whether the trace of relation k is all that its op does to states, in numbers as fine as a gradient's."""
    facts, r = plan.facts, plan.relations[k]
    groups = {other.group for other in facts.relations_of[r.site] if facts.matters(other.group)}
    fine = plan.dtypes[k] == wide_dtype(facts.sites[r.site].call.out.dtype)
    return (
        fine
        and groups == {r.group}
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


def _seen_beside(facts: Facts, group: int, slots: Sequence[int], sites: Sequence[int]) -> tuple[set[int], set[int]]:
    """Old states of a group, and ops, that an output shows by a way that passes none of the new states `slots`."""
    opened, n = OpenStep(facts.step, facts.sites, frozenset()), len(facts.states)
    leaves = [i for i in sorted(facts.groups[group].leaves) if is_inexact(facts.states[i].aval)]
    outputs = [k for k, leaf in enumerate(facts.step.select(Role.OUTPUT)) if is_inexact(leaf.aval)]

    def pulled(values: list[Array], errors: list[Array]) -> tuple[list[Array], dict[int, Array]]:
        states = facts.step.states_of(values)

        def run(detach: Detach, old: list[Array], deltas: dict[int, Array]) -> list[Array]:
            held = {i: jnp.zeros(states[i].shape, states[i].dtype) for i in slots}
            outs, _ = opened(values, deltas, held=held, states=dict(zip(leaves, old, strict=True)), detach=detach)
            return [outs[n + k] for k in outputs]

        _, pull = detaching_vjp(run, [states[i] for i in leaves], opened.no_deltas(sites))
        return pull(errors)

    error = object()

    def made_of(_: Address, eqn: JaxprEqn, values: list[object]) -> list[object]:
        return [error if any(v is error for v in values) else None] * len(eqn.outvars)

    output_leaves = facts.step.select(Role.OUTPUT)
    args = [leaf.aval for leaf in facts.step.ins], [output_leaves[k].aval for k in outputs]
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pulled)(*args))
    marks: list[object] = [None] * len(args[0]) + [error] * len(outputs)
    arrives = [v is error for v in interpret(jaxpr, [None] * len(consts), marks, made_of)]
    # The old states come first, then the ops in the order of their numbers.
    order = sorted(sites)
    old = {i for i, hit in zip(leaves, arrives[: len(leaves)], strict=True) if hit}
    return old, {j for j, hit in zip(order, arrives[len(leaves) :], strict=True) if hit}
