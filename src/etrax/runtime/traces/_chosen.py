"""Which kinds of trace the relations of a model get: chosen once, for every rule by position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jax.typing import DTypeLike

from ...compiler.analysis import Facts, FanOut, is_steep, with_acting_columns
from .._plan import Plan, carried_relations, plan_of
from .._probes import Probes, plan_probes
from .._readers import Reader
from .._view import View, reduced_view
from ._memoryless import memoryless_leaves, on_other_states


def chosen_plan(
    facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None, fan_out: FanOut,
    view: View | None = None, reader: Callable[[Probes], Reader] | None = None,
) -> Plan:  # fmt: skip
    """The plan of the relations of some sites, with every kind of trace that is valid for them.

    By default in the view without memoryless states. A `reader` may put other blocks in place of those of the step.
    """
    read = reader if reader is not None else lambda probes: probes
    relations = carried_relations(facts, sites, fan_out)
    view = view if view is not None else reduced_view(facts, memoryless_leaves(facts, relations))
    probes = plan_probes(view, on_other_states(facts, relations, view.memoryless))
    # In a steep step a rule may mask what each relation meets: none is another's then.
    plan = plan_of(read(probes), trace_dtype, structured=reader is None or not is_steep(facts))
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
