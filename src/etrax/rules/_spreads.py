"""Which copies of coarse states are worth carrying at fine positions: see `runtime/traces/_spread.py`."""

from __future__ import annotations

import jax

from ..compiler.analysis import Facts, FanOut, memoised, possible_spreads, reached_elements
from ..compiler.ir import Role
from ..runtime.traces import SpreadOut, spread_out
from ._verdicts import lost_paths


@memoised
def chosen_spreads(facts: Facts, fan_out: FanOut) -> SpreadOut | None:
    """The copies by which some parameter becomes exact; None if there are none."""
    waiting = [p for p in range(len(facts.step.select(Role.PARAM))) if lost_paths(facts, p, fan_out)]
    spreads = possible_spreads(facts) if waiting else ()
    if not spreads or not _can_push(spread_out(facts, spreads)):
        return None
    wider = spread_out(facts, spreads).wider
    gained = [p for p in waiting if not lost_paths(wider, p, fan_out)]
    reached = {i for p in gained for i in reached_elements(facts, tuple(facts.live_sites_of(p)))}
    used = tuple(s for s in spreads if not reached.isdisjoint(s.coarse.leaves))
    return spread_out(facts, used) if used else None


def _can_push(spread: SpreadOut) -> bool:
    """Whether the way back can be transposed; a `while_loop` in a derivative rule cannot."""
    facts = spread.facts
    sites = {j: site.y_struct for j, site in enumerate(facts.sites)}
    leaves = [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in facts.step.ins]
    try:
        jax.eval_shape(lambda leaves, ys: spread.rates(leaves, None, ys), leaves, sites)
    except (ValueError, NotImplementedError):
        return False
    return True
