"""D-RTRL: real-time recurrent learning with the per-position blocks of the cut step.

    ε_t[i, o, :] = D_t[pos(o)] ε_{t-1}[i, o, :] + u_t[i] F_t[o, :]

D = ∂h'[p]/∂h[p] with the weight ops that mix positions cut, F = ∂h'/∂y. Exact where the cut recurrence is the whole
recurrence: diagonal state-space models, LIF and ALIF layers without recurrent weights, leaky readouts.

Over a window of K steps nothing is moved step by step. With P the product of all blocks and c_k the suffix products,

    P = D_K ··· D_1        c_k = D_K ··· D_{k+1} F_k        ε_K = P ε_0 + Σ_k u_k ⊗ c_k

the trace is read and written once, and the sum is one product per weight op (docs/mathematics.md, 3).

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

from jax import Array
from jax.typing import DTypeLike

from .._arguments import format_bytes, parse_bytes, short
from .._errors import ArgumentError
from ..compiler.analysis import NO_FAN_OUT, Facts, FanOut, memoised, with_acting_columns
from ..runtime import (
    EachStep,
    Entries,
    Hopped,
    NarrowTraces,
    Probes,
    Transport,
    WindowData,
    add_to,
    by_site,
    carried_relations,
    find_narrow,
    hop_transport,
    momentary_leaves,
    momentary_transport,
    moved_trace,
    narrow_transport,
    plan_of,
    plan_probes,
    suffix_products,
    trace_credit,
    trace_zeros,
    without_momentary,
)
from ._hops import chosen_hops, hop_verdict
from ._partition import combined_transport
from ._rule import Rule
from ._verdicts import Verdict, by_position_verdict, with_traced_window


class DiagonalTrace(NamedTuple):
    """Per relation, one array of its op family's trace shape for each of the S state scalars of a position.

    Where S is large, the S arrays are one.
    """

    entries: list[Entries]


def diagonal_transport(
    facts: Facts,
    sites: frozenset[int] | None = None,
    trace_dtype: DTypeLike | None = None,
    probes: Probes | None = None,
    fan_out: FanOut = NO_FAN_OUT,
) -> Transport[DiagonalTrace]:
    """D-RTRL. `probes` may read other blocks.

    By default S leaves out states that follow from others; `probes` decide for themselves.
    """
    if probes is None:
        probes = plan_probes(facts, carried_relations(facts, sites, fan_out), reduced=True)
    plan = plan_of(facts, probes, trace_dtype)
    relations = plan.relations

    def init() -> DiagonalTrace:
        return DiagonalTrace([trace_zeros(plan, k, by_sample=True) for k in range(len(relations))])

    def credit(trace: DiagonalTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        g = probes.without_derived(g, window.entry_states)
        for k, (r, entries) in enumerate(zip(relations, trace.entries, strict=True)):
            signal = plan.layout(k).read_rows({i: g[i] for i in facts.groups[r.group].leaves})
            add_to(out, r.site, trace_credit(plan, k, entries, signal, window))
        return out

    def move(trace: DiagonalTrace, window: WindowData) -> DiagonalTrace:
        if not relations:
            return trace
        whole, suffixes = suffix_products(plan, window)
        return DiagonalTrace(
            [
                moved_trace(plan, k, entries, whole[r.group], suffixes[k], window)
                for k, (r, entries) in enumerate(zip(relations, trace.entries, strict=True))
            ]
        )

    return Transport(
        init,
        credit,
        move,
        EachStep(probes) if relations else EachStep(),
        parts=lambda trace: by_site([r.site for r in relations], trace.entries),
    )


def structured_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None,
    fan_out: FanOut = NO_FAN_OUT,
) -> Transport[Any]:  # fmt: skip
    """D-RTRL with a trace as small as what is known of D and F allows: narrow where it can be, else whole."""
    kinds = _kinds(facts, sites, trace_dtype, fan_out)
    parts: list[Transport[Any]] = []
    if kinds.whole.relations or kinds.narrow is None:
        parts.append(diagonal_transport(facts, sites, trace_dtype, kinds.whole))
    if kinds.narrow is not None:
        parts.append(narrow_transport(kinds.narrow))
    inner = parts[0] if len(parts) == 1 else combined_transport(parts)
    relations = carried_relations(facts, sites, fan_out)
    return momentary_transport(facts, inner, kinds.whole.without, relations, trace_dtype)


class _Kinds(NamedTuple):
    """Relations whose traces are narrow, and probes of the others: no momentary states, no columns that act on none."""

    narrow: NarrowTraces | None
    whole: Probes


@memoised
def _kinds(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None, fan_out: FanOut) -> _Kinds:
    relations = carried_relations(facts, sites, fan_out)
    without = momentary_leaves(facts, relations)
    probes = plan_probes(facts, without_momentary(facts, relations, without), reduced=True, without=without)
    narrow, whole = find_narrow(facts, probes, trace_dtype)
    carried = [{slot.leaf for slot in probes.layouts[r.group].slots} for r in whole]
    acting = [with_acting_columns(facts, r, leaves) for r, leaves in zip(whole, carried, strict=True)]
    return _Kinds(narrow, probes if acting == list(probes.relations) else probes.of(acting))


def structure_notes(facts: Facts, fan_out: FanOut, hopped: Hopped | None) -> list[str]:
    """What was found that makes the trace smaller or carries more, in words, with the bytes that it saves or takes."""
    facts = facts if hopped is None else hopped.wider
    narrow, probes = _kinds(facts, None, None, fan_out)
    found = []
    for k, r in enumerate(narrow.plan.relations if narrow is not None else ()):
        assert narrow is not None
        own, whole = narrow.sizes(k)
        label = facts.sites[r.site].label
        if k in narrow.known.shared:
            other = facts.sites[narrow.plan.relations[narrow.known.shared[k].source].site].label
            found.append(f"the trace of {label} is that of {other}: it takes nothing, not {format_bytes(whole)}")
        elif own < whole:
            even = f"many outputs of {label} have one leak and one gain"
            found.append(f"{even}: its trace takes {format_bytes(own)}, not {format_bytes(whole)}")
        elif narrow.known.is_known(k, r.group):
            found.append(
                f"leak and gain of {label} do not change in time: their products are not recorded step by step"
            )
    found += _momentary_notes(facts, probes)
    found += _column_notes(facts, probes)
    if hopped is not None:
        plain = structured_transport(hopped.facts, fan_out=fan_out).nbytes
        more = structured_transport(hopped.wider, fan_out=fan_out).nbytes - plain
        names = ", ".join(dict.fromkeys(n for hop in hopped.hops for n in hopped.facts.params_of(hop.site)))
        found.append(f"what reaches the leaky states behind {names} is carried for {format_bytes(more)} (`hops=1`)")
    return found


def _momentary_notes(facts: Facts, probes: Probes) -> list[str]:
    names = ", ".join(facts.state_name(i) for i in sorted(probes.without))
    return [f"no trace is kept for {names}: what it holds is that of other states, and the last step"] if names else []


def _column_notes(facts: Facts, probes: Probes) -> list[str]:
    fewer = [(r, r.copies) for r in probes.relations if r.copies is not None and r.copies.source is not None]
    return [
        f"{c.count - c.of.size} of the {c.count} outputs of {facts.sites[r.site].label} act on no state that needs a "
        "trace, and have none"
        for r, c in fewer
    ]


# By default pairs are carried where they are cheap: a trace of this size per op and group, that many pushes a step.
# These bounds decide what is exact, so they are the same on every device.
_CHEAP = FanOut(256e6, 8)
# By default a hop is carried where the whole trace stays within this many bytes.
_HOP_BYTES = 512e6


def d_rtrl(*, fan_out: float | str | None = "auto", hops: int | None = None) -> Rule:
    """Diagonal RTRL: traces of size B·|θ|·S, exact where no weight op takes a state across positions.

    An op whose outputs reach several positions (a shared gate, B and Δ of a selective state space, a key of linear
    attention) has a trace for every pair of an output and a position that it reaches. `fan_out` bounds the size of such
    a trace, for each op and group of states: bytes, or a text such as "200 MB"; None is no bound, 0 carries none. By
    default those are carried that take at most 256 MB, if at most eight outputs of an op meet at a position. The report
    says what is not carried, and what it would take.

    `hops=1` also carries what a layer does to a leaky layer above it, for as many state scalars more at each of its
    positions as the leaky layer has: LIF with a leaky readout becomes exact, a recurrent layer under one stays
    approximate, with fewer paths lost. `hops=0` does not. By default it is carried where it makes a parameter exact and
    the trace stays below 512 MB.

    >>> print(d_rtrl(), d_rtrl(fan_out="1 GB"), d_rtrl(hops=0))
    d_rtrl() d_rtrl(fan_out='1 GB') d_rtrl(hops=0)
    """
    limit = _limit(fan_out)
    if hops is not None and (not isinstance(hops, Integral) or isinstance(hops, bool) or hops not in (0, 1)):
        raise ArgumentError(f"`d_rtrl`: `hops` is {short(hops)}; expected 0, 1, or None for 1 where it is cheap.")

    def carried(facts: Facts) -> Hopped | None:
        return chosen_hops(facts, limit, partly=True) if hops == 1 else None if hops == 0 else _cheap_hops(facts, limit)

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
        hopped = carried(facts)
        if hopped is None:
            return structured_transport(facts, sites, trace_dtype, limit)
        return hop_transport(hopped, structured_transport(hopped.wider, sites, trace_dtype, limit))

    def verdict(facts: Facts, param: int) -> Verdict:
        hopped = carried(facts)
        if hopped is None:
            return with_traced_window(facts, param, by_position_verdict(facts, param, limit), limit)
        return hop_verdict(facts, param, limit, hopped)

    options: dict[str, object] = {} if limit == _CHEAP else {"fan_out": 0 if limit == NO_FAN_OUT else fan_out}
    return Rule(
        "d_rtrl",
        transport,
        verdict,
        options if hops is None else {**options, "hops": int(hops)},
        notes=lambda facts: (
            structure_notes(facts, limit, carried(facts)) + _not_hopped(facts, limit, carried(facts), hops)
        ),
    )


def _not_hopped(facts: Facts, fan_out: FanOut, hopped: Hopped | None, hops: int | None) -> list[str]:
    """The advice to ask for hops that are not carried by default."""
    more = chosen_hops(facts, fan_out, partly=True) if hops is None else None
    known = {r.site for r in hopped.relations} if hopped is not None else set()
    sites = [r.site for r in more.relations if r.site not in known] if more is not None else []
    names = ", ".join(dict.fromkeys(n for j in sites for n in facts.params_of(j)))
    return [f"what reaches the leaky states behind {names} is carried by `etrax.d_rtrl(hops=1)`"] if names else []


def _limit(fan_out: object) -> FanOut:
    if isinstance(fan_out, str) and fan_out == "auto":
        return _CHEAP
    if isinstance(fan_out, Real) and not isinstance(fan_out, bool) and fan_out == 0:
        return NO_FAN_OUT
    return FanOut(parse_bytes("fan_out", fan_out) or math.inf, math.inf)


@memoised
def _cheap_hops(facts: Facts, fan_out: FanOut) -> Hopped | None:
    """Hops that make a parameter exact, if the whole trace stays within a limit in bytes."""
    hopped = chosen_hops(facts, fan_out)
    if hopped is None or structured_transport(hopped.wider, fan_out=fan_out).nbytes <= _HOP_BYTES:
        return hopped
    return None
