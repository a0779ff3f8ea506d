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

from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

from jax.typing import DTypeLike

from .._arguments import check_whole, format_bytes, parse_bytes, short
from .._errors import ArgumentError
from ..compiler.analysis import NO_FAN_OUT, Facts, FanOut, memoised, traced_elements
from ..runtime import Plan, SeenThrough, Transport, carried_relations, reduced_view
from ..runtime.traces import (
    Hopped,
    SpreadOut,
    by_position_transport,
    chosen_plan,
    memoryless_transport,
    seen_through_states,
    wider_transport,
)
from ._depth import Depth, chosen_depth, depth_notes, depth_verdict, reached_transport
from ._hops import MANY_LEAKS, chosen_hops, chosen_spreads, hop_verdict, unshared_notes
from ._kinds import CHEAP_BYTES, CHEAP_FAN_OUT, fan_out_limit, structure_notes
from ._partition import combined_transport
from ._rule import Rule
from ._series import in_series
from ._state_credit import check_credit, state_credit, state_rule
from ._verdicts import Kind, Verdict, by_position_verdict, relations_of, with_traced_window


@memoised
def _plan(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None, fan_out: FanOut) -> Plan:
    return chosen_plan(facts, sites, trace_dtype, fan_out, subgroups=True)


def diagonal_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None,
    fan_out: FanOut = NO_FAN_OUT,
) -> Transport[Any]:  # fmt: skip
    """D-RTRL, with a trace as small as what is known of D and F allows."""
    plan = _plan(facts, sites, trace_dtype, fan_out)
    relations = carried_relations(facts, sites, fan_out)
    by_position = by_position_transport(plan, through_states=lambda: _seen_through(facts, sites, trace_dtype, fan_out))
    return memoryless_transport(facts, by_position, plan.reader.view.memoryless, relations, trace_dtype)


@memoised
def _seen_through(
    facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None, fan_out: FanOut
) -> SeenThrough:
    return seen_through_states(_plan(facts, sites, trace_dtype, fan_out), fan_out)


def d_rtrl(
    *, fan_out: float | str | None = "auto", hops: int | None = None, depth: float | str | None = None,
    shared_leaks: int | None = None, credit: str = "step",
) -> Rule:  # fmt: skip
    """Diagonal RTRL: traces of size B·|θ|·S, exact where no weight op takes a state across positions.

    - `fan_out`: the largest trace of an op whose outputs reach several positions, for each group of states: bytes, or a
      text such as "200 MB". None is no bound, 0 carries none. By default 256 MB, if at most eight outputs of the op
      meet at a position.
    - `hops`: 1 also carries what a layer does to a leaky layer above it, 0 does not. By default it is carried where it
      makes a parameter exact, for up to 20 units with different leaks, if the trace stays below 512 MB.
    - `depth`: also carry what a layer, an encoder or an embedding does to the layers above it through their weights, in
      traces of at most so many bytes (or a text such as "200 MB").
    - `credit`: "state" is the published definition for an update at every step: the loss in the new states meets the
      trace of the same step, and neither hops nor `depth` are carried. By default the loss goes through the whole step,
      which is closer to BPTT where a trace leaves something out, and the same where it does not.

    Outputs that reach several positions are those of a shared gate, B and Δ of a selective state space, or a key of
    linear attention. They have a trace for every pair of an output and a position that it reaches.

    A hop takes as many additional state scalars at each position as the leaky layer above has. With it LIF with a leaky
    readout becomes exact, and a recurrent layer below a leaky readout stays approximate with fewer paths lost. If each
    unit above has a leak of its own, or spikes, it takes one for each of them, up to 64 units.

    With `depth`, a trace holds the whole influence on the states that a parameter ever reaches: n₂·|θ₁| numbers below a
    layer of n₂ units. The cheapest parameters come first.

    Beyond these bounds, units whose leaks are constants between 0 and 1 share a few leaks in place of their own: the
    decay λ^t of a unit is followed by a weighted sum of theirs, Σ_j w_j κ_j^t. By default there are as few as keep
    that within 0.001 at every t. `shared_leaks=4` takes four for every layer above that has more different leaks, which
    takes less memory and is less exact; up to four different leaks stay exact. The verdict is *approximate* and says
    how far λ^t is off. `shared_leaks=0` does without.

    Linear maps in series (`x @ A @ B`, a norm's scale before a projection) share the trace of their product where that
    makes a parameter exact, within the same limit. The report says what is not carried, and what it would take.

    >>> print(d_rtrl(), d_rtrl(fan_out="1 GB"), d_rtrl(hops=0), d_rtrl(depth="2 MB"), d_rtrl(shared_leaks=4))
    d_rtrl() d_rtrl(fan_out='1 GB') d_rtrl(hops=0) d_rtrl(depth='2 MB') d_rtrl(shared_leaks=4)
    """
    limit, on_state = fan_out_limit(fan_out), check_credit("d_rtrl", credit)
    budget = parse_bytes("depth", depth)
    if hops is not None and (not isinstance(hops, Integral) or isinstance(hops, bool) or hops not in (0, 1)):
        raise ArgumentError(f"`d_rtrl`: `hops` is {short(hops)}; expected 0, 1, or None for 1 where it is cheap.")
    options: dict[str, object] = {} if limit == CHEAP_FAN_OUT else {"fan_out": 0 if limit == NO_FAN_OUT else fan_out}
    options = options if hops is None else {**options, "hops": int(hops)}
    if shared_leaks is not None:
        shared_leaks = check_whole("shared_leaks", shared_leaks, "leaks", 0, MANY_LEAKS)
        options = {**options, "shared_leaks": shared_leaks}
    if shared_leaks and (hops == 0 or on_state):
        other = "`hops=0`" if hops == 0 else '`credit="state"`'
        raise ArgumentError(f"`d_rtrl` does not take `shared_leaks` together with {other}: leave one of them out.")
    if on_state:
        if hops == 1:
            raise ArgumentError('`d_rtrl`: hops are not carried with `credit="state"`; leave `hops` out.')
        if budget is not None:
            raise ArgumentError('`d_rtrl` does not take `depth` together with `credit="state"`: leave one of them out.')
        return _on_state(options, limit)

    def carried(facts: Facts) -> Hopped | None:
        if hops == 0:
            return None
        share = 0 if shared_leaks is None and _needs_copies(facts, limit, hops == 1) else shared_leaks
        return chosen_hops(facts, limit, True, share) if hops == 1 else _cheap_hops(facts, limit, share)

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
        more = carried(facts) or _cheap_spreads(facts, limit)
        if more is None:
            return diagonal_transport(facts, sites, trace_dtype, limit)
        return wider_transport(more, diagonal_transport(more.wider, sites, trace_dtype, limit))

    def verdict(facts: Facts, param: int) -> Verdict:
        hopped = carried(facts)
        if hopped is None:
            spread = _cheap_spreads(facts, limit)
            facts = facts if spread is None else spread.wider
            return with_traced_window(facts, param, by_position_verdict(facts, param, limit), limit)
        return hop_verdict(facts, param, limit, hopped)

    def notes(facts: Facts) -> list[str]:
        hopped = carried(facts)
        more = hopped or _cheap_spreads(facts, limit)
        plan = _plan(facts if more is None else more.wider, None, None, limit)
        unshared = unshared_notes(facts, shared_leaks) if shared_leaks else []
        return structure_notes(plan) + _hop_notes(facts, limit, hopped, hops, shared_leaks) + unshared

    plain = Rule("d_rtrl", transport, verdict, options, notes=notes, facts_for=in_series)
    return plain if budget is None else _in_depth(plain, depth, budget)


def _in_depth(plain: Rule, depth: object, budget: float) -> Rule:
    """D-RTRL, with the whole influence of those parameters that become exact by it within a budget in bytes."""

    @memoised
    def chosen(facts: Facts, trace_dtype: DTypeLike | None) -> Depth:
        exact = (Kind.EXACT, Kind.UNUSED)
        return chosen_depth(facts, budget, trace_dtype, lambda param: plain.verdict(facts, param).kind in exact)

    def rule_for(dtype: DTypeLike | None) -> Rule:
        def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
            every = frozenset(range(len(facts.sites))) if sites is None else sites
            carried = chosen(facts, dtype).sites & every
            rest = plain.transport(facts, every - carried, trace_dtype)
            return combined_transport([rest, reached_transport(facts, carried, trace_dtype)]) if carried else rest

        def verdict(facts: Facts, param: int) -> Verdict:
            carried = chosen(facts, dtype)
            return depth_verdict(facts, param, carried) if carried.carries(param) else plain.verdict(facts, param)

        def notes(facts: Facts) -> list[str]:
            return [*plain.notes(facts), *depth_notes(facts, chosen(facts, dtype), budget)]

        return replace(
            plain, transport=transport, verdict=verdict, notes=notes, options={**plain.options, "depth": depth}
        )

    # What fits into the budget depends on the type of the traces, which is settled when a model is compiled.
    return replace(rule_for(None), resolve=lambda facts, trace_dtype, cosines=None: rule_for(trace_dtype))


def _on_state(options: dict[str, object], limit: FanOut) -> Rule:
    def plan(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Plan:
        return chosen_plan(facts, sites, trace_dtype, limit, reduced_view(facts))

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
        state_plan = plan(facts, sites, trace_dtype)
        return state_credit(state_plan, by_position_transport(state_plan))

    return state_rule(
        "d_rtrl",
        options,
        transport,
        partial(by_position_verdict, fan_out=limit),
        lambda facts, param: traced_elements(facts, relations_of(facts, param, limit)),
        notes=lambda facts: structure_notes(plan(facts, None, None)),
        facts_for=in_series,
    )


def _hop_notes(facts: Facts, fan_out: FanOut, hopped: Hopped | None, hops: int | None, shared: int | None) -> list[str]:
    """What hops take, and the advice to ask for those that are not carried by default."""
    out, carried = [], set()
    if hopped is not None:
        carried = {r.site for r in hopped.relations}
        sizes = [diagonal_transport(f, fan_out=fan_out).nbytes for f in (hopped.wider, facts)]
        names = ", ".join(dict.fromkeys(n for hop in hopped.hops for n in facts.params_of(hop.site)))
        taken = format_bytes(sizes[0] - sizes[1])
        out = [f"what reaches the leaky states behind {names} is carried for {taken} (`hops=1`)"]
    more = chosen_hops(facts, fan_out, True, shared) if hops is None else None
    sites = [r.site for r in more.relations if r.site not in carried] if more is not None else []
    names = ", ".join(dict.fromkeys(n for j in sites for n in facts.params_of(j)))
    if names:
        out.append(f"what reaches the leaky states behind {names} is carried by `etrax.d_rtrl(hops=1)`")
    return out


@memoised
def _cheap_hops(facts: Facts, fan_out: FanOut, shared: int | None) -> Hopped | None:
    """Hops that make a parameter exact, or so but for the error of shared leaks, if they are cheap.

    Where those with shared leaks take too much, the others are carried alone.
    """
    for leaks in (shared, 0):
        hopped = chosen_hops(facts, fan_out, False, leaks)
        if hopped is not None and _is_cheap(hopped.wider, fan_out):
            return hopped
    return None


def _needs_copies(facts: Facts, fan_out: FanOut, partly: bool) -> bool:
    """Whether copies of coarse states make a parameter exact, which are not carried beside hops, and no hop does."""
    return chosen_hops(facts, fan_out, partly, 0) is None and _cheap_spreads(facts, fan_out) is not None


@memoised
def _cheap_spreads(facts: Facts, fan_out: FanOut) -> SpreadOut | None:
    """Copies of coarse states that make a parameter exact, if they are cheap."""
    spread = chosen_spreads(facts, fan_out)
    return spread if spread is not None and _is_cheap(spread.wider, fan_out) else None


def _is_cheap(wider: Facts, fan_out: FanOut) -> bool:
    """Whether the whole trace of a wider step stays within a limit in bytes."""
    return diagonal_transport(wider, fan_out=fan_out).nbytes <= CHEAP_BYTES
