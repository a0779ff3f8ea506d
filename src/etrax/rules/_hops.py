"""Which states are worth adding to a step, so that more is exact: filtered data (hops), copies of coarse states.

`runtime/traces/_hop.py` and `runtime/traces/_spread.py` have the mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import jax
import numpy as np

from ..compiler.analysis import (
    Facts,
    FanOut,
    LostKind,
    LostPath,
    OpNode,
    Relation,
    SharedLeaks,
    fewest_shared_leaks,
    memoised,
    possible_spreads,
    reached_elements,
    shared_leaks,
    traced_elements,
)
from ..compiler.ir import Role
from ..runtime.traces import Hopped, SpreadOut, hopped_with, possible_hops, spread_out
from ._verdicts import (
    Kind,
    Verdict,
    by_position_verdict,
    carried_groups,
    lost_paths,
    relations_of,
    with_least_window,
    worded,
)
from ._words import in_brief, in_words, listed

# A layer above with a leak per unit takes a state more for each of them at every position below. So many are carried by
# default, and so many if hops are asked for. This decides what is exact, so that it is the same on every device.
FEW_LEAKS, MANY_LEAKS = 20, 64
# Where there are more, and they are constants, as few leaks stand for them as keep λ^t within this error at every t.
SHARED_ERROR = 1e-3
# A number of shared leaks that was asked for is not carried if its error is greater than this.
MOST_ERROR = 0.25


@memoised
def chosen_hops(facts: Facts, fan_out: FanOut, partly: bool = False, shared: int | None = None) -> Hopped | None:
    """The hops by which some parameter becomes exact, or so but for the error of shared leaks; None if there are none.

    If `partly`, hops by which one loses fewer paths. `shared` is how many leaks stand for more than that; 0 has each.
    """
    lost = {p: lost_paths(facts, p, fan_out) for p in range(len(facts.step.select(Role.PARAM)))}
    if not any(lost.values()):
        return None
    possible = _hops_within(facts, MANY_LEAKS if partly else FEW_LEAKS, shared)
    ops = {r.site for r in possible}
    waiting = [p for p, paths in lost.items() if paths and _without(paths, ops) != paths]
    if not waiting:
        return None
    gained = waiting
    if not partly:
        wider = hopped_with(facts, possible).wider
        gained = [p for p in waiting if not _without(lost_paths(wider, p, fan_out), ops)]
    used = {j for p in gained for path in lost[p] for j in _ops_of(path)}
    chosen = {r: leaks for r, leaks in possible.items() if r.site in used}
    return hopped_with(facts, chosen) if chosen else None


@memoised
def _hops_within(facts: Facts, most: int, shared: int | None) -> dict[Relation, SharedLeaks | None]:
    """Ops that feed a leaky layer of so many leaks at most, and others with leaks that stand for theirs."""
    possible = possible_hops(facts)
    if possible is None:
        return {}
    out: dict[Relation, SharedLeaks | None] = {}
    for k, (relation, columns) in enumerate(zip(possible.relations, possible.columns, strict=True)):
        ask = shared != 0 and columns > (shared or most)
        units = possible.constant_leaks[k] if ask else None
        leaks = None if units is None else _shared(units, most, shared)
        if leaks is not None or columns <= most:
            out[relation] = leaks
    return out


def _shared(units: np.ndarray, most: int, count: int | None) -> SharedLeaks | None:
    if count is None:
        return fewest_shared_leaks(units, most, SHARED_ERROR)
    leaks = shared_leaks(units, count)
    return leaks if leaks is not None and leaks.error <= MOST_ERROR else None


def unshared_notes(facts: Facts, count: int) -> list[str]:
    """Why leaks of units that are more than this are not shared, though that was asked for."""
    possible, out = possible_hops(facts), []
    if possible is None:
        return out
    for k, columns in enumerate(possible.columns):
        if columns <= count:
            continue
        units, names = possible.constant_leaks[k], ", ".join(facts.params_of(possible.relations[k].site))
        leaks = None if units is None else shared_leaks(units, count)
        if leaks is None:
            why = "only constant leaks between 0 and 1, of one state a unit, can be shared"
        elif leaks.error > MOST_ERROR:
            why = f"{count} of them would follow λ^t within {_rounded_up(leaks.error)} only"
        else:
            continue
        out.append(f"the leaks of the units behind {names} are not shared: {why}")
    return out


def hop_verdict(facts: Facts, param: int, fan_out: FanOut, hopped: Hopped) -> Verdict:
    """D-RTRL's verdict where hops are carried."""
    plain = _carried_by_hops(facts, param, fan_out, hopped)
    if plain.kind in (Kind.EXACT, Kind.UNUSED):
        return plain
    return with_least_window(facts, param, plain, _traced(facts, param, fan_out, hopped))


def _traced(facts: Facts, param: int, fan_out: FanOut, hopped: Hopped) -> dict[int, np.ndarray]:
    """Elements of states that have a trace: those of the layer below, and of leaky layers that a hop leads to."""
    traced = traced_elements(hopped.wider, relations_of(hopped.wider, param, fan_out))
    elements = {i: mask for i, mask in traced.items() if i < len(facts.step.select(Role.HIDDEN))}
    for hop, relation in zip(hopped.hops, hopped.relations, strict=True):
        if any(traced[i].any() for i in hop.states if i in traced):
            for i, mask in traced_elements(facts, [relation]).items():
                elements[i] = elements[i] | mask if i in elements else mask
    return elements


def _carried_by_hops(facts: Facts, param: int, fan_out: FanOut, hopped: Hopped) -> Verdict:
    plain = by_position_verdict(facts, param, fan_out)
    if plain.kind not in (Kind.APPROXIMATE, Kind.TRUNCATED):
        return plain
    ops, lost = {hop.site for hop in hopped.hops}, lost_paths(facts, param, fan_out)
    met = {j for path in lost for j in _ops_of(path)} & ops
    if not met:
        return plain
    above = ", ".join(
        facts.state_name(i) for hop in hopped.hops if hop.site in met for i in facts.groups[hop.group].leaves
    )
    through = [name for j in sorted(met) for name in facts.params_of(j)]
    names, some_names = ", ".join(through), listed(through, 2)
    places = listed([str(facts.sites[j].source or facts.sites[j].label) for j in sorted(met)], 1)
    left = _without(lost_paths(hopped.wider, param, fan_out), ops)
    shared = _shared_in_words(hopped, met)
    if left and carried_groups(hopped.wider, param, fan_out):
        paths = _without(lost, ops)
        missing, of = (paths, facts) if paths else (left, hopped.wider)
        texts = [in_words(of, missing), *(in_brief(of, missing, most) for most in (3, 1))]
        how = f" {shared}" if shared else ""
        return worded(
            Kind.APPROXIMATE,
            *(f"its influence on {above} through {names} is carried in part{how}; not carried: {t}" for t in texts),
            f"what passes through {some_names} is carried in part{how}; not carried: {texts[-1]}",
        )
    if left:
        return plain
    if shared:
        return worded(
            Kind.APPROXIMATE,
            f"its influence is carried position by position, and that on {above} through {names} ({places}) {shared}",
            f"its influence is carried position by position, and what passes through {some_names} ({places}) {shared}",
        )
    count = max(n for hop, n in zip(hopped.hops, hopped.counts, strict=True) if hop.site in met)
    more = "one leaky sum more" if count == 1 else f"{count} leaky sums more, one for each leak,"
    return worded(
        Kind.EXACT,
        f"its influence is carried position by position, also that on {above} through {names}, which is {more} "
        f"at each position; what came before is weighed with {names} as it is now",
        f"its influence is carried position by position, also what passes through {some_names}, which is {more} "
        "at each position; what came before is weighed with the weights of now",
    )


def _shared_in_words(hopped: Hopped, met: set[int]) -> str:
    """How leaks that are met are shared, if that leaves an error."""
    leaks = [s for hop, s in zip(hopped.hops, hopped.shared, strict=True) if hop.site in met and s is not None]
    inexact = [s for s in leaks if s.error]
    if not inexact:
        return ""
    worst = max(inexact, key=lambda s: s.error)
    return (
        f"by {len(worst.leaks)} shared leaks in place of {worst.different}, which follow the decay λ^t of each within "
        f"{_rounded_up(worst.error)}"
    )


def _rounded_up(error: float) -> str:
    """A bound in two digits, no less than the number.

    >>> _rounded_up(0.000123), _rounded_up(0.25), _rounded_up(0.5e-11)
    ('0.00013', '0.25', '5e-12')
    """
    digits = 1 - math.floor(math.log10(error))
    return f"{math.ceil(round(error * 10**digits, 6)) / 10**digits:.2g}"


def _ops_of(path: LostPath) -> list[int]:
    """The ops through which a path is lost."""
    through = path.kind in (LostKind.THROUGH_OP, LostKind.RECURRENT_OP)
    return [node.index for node in path.targets if isinstance(node, OpNode)] if through else []


def _without(paths: Iterable[LostPath], ops: set[int]) -> list[LostPath]:
    """Paths but for what leads through some ops."""
    remaining = []
    for path in paths:
        met = _ops_of(path)
        targets = tuple(n for n in path.targets if not (isinstance(n, OpNode) and n.index in ops))
        if not met or targets:
            remaining.append(replace(path, targets=targets) if met else path)
    return remaining


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
