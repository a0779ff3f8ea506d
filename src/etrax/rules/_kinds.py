"""Kinds of trace in words, and what rules by position carry by default."""

from __future__ import annotations

import math
from numbers import Real

from .._arguments import format_bytes, parse_bytes
from ..compiler.analysis import NO_FAN_OUT, Facts, FanOut
from ..runtime import Plan, site_math
from ..runtime.traces import Traces

# By default pairs are carried where they are cheap: a trace of this size per op and group, that many pushes a step.
# These bounds decide what is exact, so they are the same on every device.
CHEAP_FAN_OUT = FanOut(256e6, 8)
# By default hops, copies and maps in series are carried where the whole trace stays within this many bytes. This
# decides what is exact, so that it is the same on every device.
CHEAP_BYTES = 512e6


def fan_out_limit(fan_out: object) -> FanOut:
    """The bound on traces over pairs that a user gave: bytes, a text, None for no bound, or "auto"."""
    if isinstance(fan_out, str) and fan_out == "auto":
        return CHEAP_FAN_OUT
    if isinstance(fan_out, Real) and not isinstance(fan_out, bool) and fan_out == 0:
        return NO_FAN_OUT
    return FanOut(parse_bytes("fan_out", fan_out) or math.inf, math.inf)


def structure_notes(plan: Plan) -> list[str]:
    """Say in words what makes the traces of a plan smaller, and how many bytes it saves."""
    facts, traces, out = plan.facts, Traces(plan), []
    narrow = [*plan.structure.rows, *(k for k in plan.even_gathers if plan.even_along(k) is not None)]
    for k in narrow:
        label, taken = facts.sites[plan.relations[k].site].label, traces.nbytes(k)
        count = sum(math.prod(plan.layout(k).leads[s]) for s in plan.carried[k])
        plain = math.prod(site_math.trace_shape(plan.site(k))) * plan.dtypes[k].itemsize * count
        if plan.source(k) != k:
            other = facts.sites[plan.relations[plan.source(k)].site].label
            out.append(f"the trace of {label} is that of {other}: it takes nothing, not {format_bytes(plain)}")
        elif taken < plain:
            even = f"many outputs of {label} have one leak and one gain"
            out.append(f"{even}: its trace takes {format_bytes(taken)}, not {format_bytes(plain)}")
        elif plan.structure.is_known(k, plan.relations[k].group):
            out.append(f"leak and gain of {label} do not change in time: their products are not recorded step by step")
    return out + _series_notes(facts, plan) + _memoryless_notes(facts, plan) + _column_notes(facts, plan)


def _series_notes(facts: Facts, plan: Plan) -> list[str]:
    """What weights that are one weight op only since they act one after another share, and its size."""
    alone = {site.params for site in facts.as_written.sites}
    traces, sizes = Traces(plan), dict[int, int]()
    for k in plan.structure.rows:
        site = plan.relations[k].site
        if facts.sites[site].params not in alone and len(facts.sites[site].params) > 1:
            sizes[site] = sizes.get(site, 0) + traces.nbytes(k)
    return [
        f"{', '.join(facts.params_of(site))} act one after another: one trace of all, at {facts.sites[site].label}, "
        f"takes {format_bytes(nbytes)}"
        for site, nbytes in sizes.items()
    ]


def _memoryless_notes(facts: Facts, plan: Plan) -> list[str]:
    names = ", ".join(facts.state_name(i) for i in sorted(plan.reader.view.memoryless))
    text = f"no trace is stored for {names}: it follows from the traces of other states and the last step"
    return [text] if names else []


def _column_notes(facts: Facts, plan: Plan) -> list[str]:
    fewer = [(r, r.copies) for r in plan.relations if r.copies is not None and r.copies.source is not None]
    return [
        f"{c.count - c.of.size} of the {c.count} outputs of {facts.sites[r.site].label} act only on states that need "
        "no trace, so they have none"
        for r, c in fewer
    ]
