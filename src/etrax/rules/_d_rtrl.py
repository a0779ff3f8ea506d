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

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import Array
from jax.typing import DTypeLike

from ..analysis import Facts
from ..engine import (
    EachStep,
    Entries,
    Probes,
    Transport,
    WindowData,
    add_to,
    by_site,
    carried_relations,
    is_narrow,
    moved_trace,
    narrow_transport,
    plan_of,
    plan_probes,
    structure_of,
    suffix_products,
    trace_credit,
    trace_zeros,
)
from ._partition import combined_transport
from ._rule import Rule
from ._verdicts import by_position_verdict


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
) -> Transport[DiagonalTrace]:
    """D-RTRL. `probes` may read other blocks.

    By default S leaves out states that follow from others; `probes` decide for themselves.
    """
    if probes is None:
        probes = plan_probes(facts, carried_relations(facts, sites), reduced=True)
    plan = plan_of(facts, probes, trace_dtype)
    relations = plan.relations

    def init() -> DiagonalTrace:
        return DiagonalTrace([trace_zeros(plan, k) for k in range(len(relations))])

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
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
) -> Transport[Any]:
    """D-RTRL with a trace as small as what is known of D and F allows: narrow where it can be, else whole."""
    relations = carried_relations(facts, sites)
    layouts = plan_probes(facts, relations, reduced=True).layouts
    few = [r for r in relations if not layouts[r.group].stacked]  # what is known of many states is too much to ask
    plan = plan_of(facts, plan_probes(facts, few, reduced=True), trace_dtype)
    known = structure_of(plan) if few else None
    narrow = [r for k, r in enumerate(few) if known is not None and is_narrow(plan, known, k)]
    if not narrow:
        return diagonal_transport(facts, sites, trace_dtype)
    whole = [r for r in relations if r not in narrow]
    some = narrow_transport(facts, narrow, trace_dtype)
    if not whole:
        return some
    return combined_transport([diagonal_transport(facts, sites, trace_dtype, plan_probes(facts, whole, True)), some])


def d_rtrl() -> Rule:
    """Diagonal RTRL: traces of size B·|θ|·S, exact where no weight op feeds a state back across positions.

    >>> print(d_rtrl())
    d_rtrl()
    """
    return Rule("d_rtrl", structured_transport, by_position_verdict)
