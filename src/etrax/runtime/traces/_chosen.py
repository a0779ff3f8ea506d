"""Which kinds of trace the relations of a model get: chosen once, for every rule by position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jax.typing import DTypeLike

from ...compiler.analysis import Facts, FanOut, Relation, at_subgroup, is_steep, with_acting_columns
from .._plan import Plan, carried_relations, plan_of
from .._probes import Probes, plan_probes
from .._readers import OfLeaks, Reader
from .._view import View, reduced_view
from ._by_position import Traces
from ._memoryless import memoryless_leaves, on_other_states


def chosen_plan(
    facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None, fan_out: FanOut,
    view: View | None = None, reader: Callable[[Probes], Reader] | None = None, subgroups: bool = False,
) -> Plan:  # fmt: skip
    """The plan of the relations of some sites, with every kind of trace that is valid for them.

    By default in the view without memoryless states. A `reader` may put other blocks in place of those of the step.
    With `subgroups`, a relation whose trace is smaller at the finer positions of a subgroup has it there.
    """
    read = reader if reader is not None else partial(_plain_reader, facts)
    relations = carried_relations(facts, sites, fan_out)
    view = view if view is not None else reduced_view(facts, memoryless_leaves(facts, relations))
    probes = plan_probes(view, on_other_states(facts, relations, view.memoryless))
    # In a steep step a rule may mask what each relation meets: none is another's then.
    structured = reader is None or not is_steep(facts)
    plan = plan_of(read(probes), trace_dtype, structured)
    if subgroups and facts.subgroups:
        finer = [_at_subgroup(view, r, fan_out) for r in probes.relations]
        chosen = _smaller(plan, plan_of(read(probes.of(finer)), trace_dtype, structured))
        if chosen != list(probes.relations):
            probes = probes.of(chosen)
            plan = plan_of(read(probes), trace_dtype, structured)
    if plan.structure.even_blocks:
        probes = probes.packed(plan.packs)
        plan = replace(plan, reader=read(probes))
    # Columns of y that act on no state with a trace need none; a trace that is equal along them has nothing to gain.
    slots = [{slot.leaf for slot in probes.layouts[r.group].slots} for r in probes.relations]
    acting = [
        r if plan.is_narrow(k) or plan.even_along(k) is not None else with_acting_columns(facts, r, slots[k])
        for k, r in enumerate(probes.relations)
    ]
    if acting == list(probes.relations):
        return plan
    return replace(plan_of(read(probes.of(acting)), trace_dtype), structure=plan.structure)


def _plain_reader(facts: Facts, probes: Probes) -> Reader:
    return OfLeaks(probes) if facts.leaky else probes


def _at_subgroup(view: View, relation: Relation, fan_out: FanOut) -> Relation:
    """A relation to a subgroup, if there is one of which every state has numbers of its own in a trace."""
    leaves = set(view.facts.groups[relation.group].leaves)
    if relation.group in view.derived or view.memoryless & leaves:
        return relation
    return at_subgroup(view.facts, relation, fan_out) or relation


def _smaller(plan: Plan, finer: Plan) -> list[Relation]:
    """Of two plans, each relation as it takes fewer bytes, the finer if both take as many.

    A relation whose trace serves another one too, or that is served by another's, stays as it is.
    """
    shared = {n for k, s in plan.structure.shared.items() for n in (k, s.source)}
    bytes_of, finer_bytes = Traces(plan).nbytes, Traces(finer).nbytes
    pairs = enumerate(zip(plan.relations, finer.relations, strict=True))
    return [two if two is not one and k not in shared and finer_bytes(k) <= bytes_of(k) else one
            for k, (one, two) in pairs]  # fmt: skip
