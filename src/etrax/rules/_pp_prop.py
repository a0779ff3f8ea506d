"""pp-prop: D-RTRL with its trace factored into one trace of the op's input and one of its output.

    x̂ ← α x̂ + u        f̂ ← α D f̂ + (1 − α) F        ε ≈ f̂ / (1 − α^t) ⊗ x̂

Memory B·(I + O·S) instead of B·I·O·S. The factorisation is justified for inputs of constant sign (spikes, rates);
elementwise weights (biases, leaks) are carried unfactored, at the same memory.

t counts steps. f̂ is as small as y, and moves step by step inside the window's loop; x̂ moves once per window,

    x̂_K = α^K x̂_0 + Σ_k α^{K−k} u_k

Ops whose outputs are summed before anything else happens to them have the same f̂, held once. Where x̂ is
of the form of the op's data, its credit is one step more in the window's own product (docs/mathematics.md, 4).

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_decay
from .._machine import machine
from ..compiler.analysis import Facts, OpNode, traced_elements
from ..compiler.ops import ALIGNED
from ..compiler.primitives import ANY
from ..runtime import (
    EachStep,
    FusedCredit,
    LaneMap,
    Plan,
    Probes,
    Transport,
    WindowData,
    add_to,
    at_lanes,
    by_site,
    carried_relations,
    cleared,
    count_on,
    in_view,
    plan_of,
    plan_probes,
    reduced_view,
    remaining,
    site_math,
)
from ..runtime.blocks import Block, Vector, total
from ._kinds import CHEAP_FAN_OUT
from ._rule import Rule
from ._series import in_series
from ._state_credit import check_credit, state_credit, state_rule
from ._verdicts import Kind, Verdict, by_position_verdict, relations_of, replaced, with_traced_window


class FactoredTrace(NamedTuple):
    """x̂ by site, f̂ (one array per state scalar) of each relation that has its own, and the number of steps t.

    Where lanes may start again on their own, each has a t.
    """

    data: dict[int, Array]
    back: list[Vector]
    steps: Array


@dataclass(frozen=True, eq=False)
class _Factors:
    """Which traces there are.

    The f̂ of relation k is that of `shared[k]`; `own` lists the relations that have one. `factored` sites have an x̂;
    that of a `plain` one is in form and type like the op's data, and is read by the window's own product.
    `lanes_of_data`, by site, are the lanes of the numbers of x̂.
    """

    plan: Plan
    decay: float
    shared: list[int]
    own: list[int]
    factored: frozenset[int]
    plain: frozenset[int]
    lanes_of_data: Mapping[int, LaneMap]

    def init(self) -> FactoredTrace:
        plan, sites = self.plan, self.plan.facts.sites
        dtypes = {r.site: d for r, d in zip(plan.relations, plan.dtypes, strict=True) if r.site in self.factored}
        data = {j: site_math.feature_zeros(sites[j], d) for j, d in dtypes.items()}
        shapes = {k: site_math.output_shape(plan.site(k)) for k in self.own}
        back = [plan.algebra(k).zeros(plan.layout(k).size, shape, plan.dtypes[k]) for k, shape in shapes.items()]
        lanes = plan.facts.lanes
        return FactoredTrace(data, back, jnp.zeros(() if lanes is None else lanes, jnp.int32))

    def restart(self, back: list[Vector], flags: Array) -> list[Vector]:
        """f̂ before a step, with zero where something starts again."""
        ranks = {k: len(site_math.output_shape(self.plan.site(k))) for k in self.own}

        def one(k: int, entries: Vector) -> Vector:
            return jax.tree.map(lambda a: cleared(flags, self.plan.lanes_at(k), a, ranks[k]), entries)

        return [one(k, entries) for k, entries in zip(self.own, back, strict=True)]

    def advance(
        self, back: list[Vector], leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> list[Vector]:
        blocks, rows = self.plan.reader(leaves, weights, ys)
        pairs = zip(self.own, back, strict=True)
        return [self._moved(k, entries, blocks[self.plan.relations[k].group], rows[k]) for k, entries in pairs]

    def _moved(self, k: int, entries: Vector, block: Block, row: Vector) -> Vector:
        """f̂ ← α D f̂ + (1 − α) F; of an elementwise weight D f̂ + F."""
        plan, algebra = self.plan, self.plan.algebra(k)
        fade, gain = (self.decay, 1 - self.decay) if plan.relations[k].site in self.factored else (1.0, 1.0)
        old = algebra.map_vector(lambda e: fade * e, algebra.times(plan.at_op(k, block), entries))
        fresh = algebra.map_vector(lambda f: gain * site_math.sum_loops(plan.site(k), f[None])[0], row)
        return algebra.add_driven(old, fresh, plan.drives[k], entries)

    def signals(
        self, trace: FactoredTrace, g: Mapping[int, Array], window: WindowData, plain: bool
    ) -> dict[int, Array]:
        """Σ_s g_s f̂_s / (1 − α^t) of y's shape, per site that is plain or not."""
        plan, g = self.plan, self.plan.vectors(g)
        out: dict[int, Array] = {}
        sums: dict[int, Array] = {}
        for k, r in enumerate(plan.relations):
            if (r.site in self.plain) is not plain:
                continue
            if self.shared[k] not in sums:
                entries = trace.back[self.own.index(self.shared[k])]
                signal = self._seen(k, entries, g[r.group])
                # With lanes, samples have begun at different times: each signal is divided before copies are summed at
                # y.
                if trace.steps.ndim and r.site in self.factored:
                    signal = signal / self._begun(trace.steps[plan.lanes_at(k)], signal)
                sums[self.shared[k]] = plan.of_output(k, signal)
            term = sums[self.shared[k]]
            if r.site in self.factored and not trace.steps.ndim:
                term = term / self._begun(trace.steps, term)
            add_to(out, r.site, term)
        return out

    def _begun(self, steps: Array, like: Array) -> Array:
        """1 − α^t: how much of f̂ there is after so many steps."""
        kind = jnp.real(like).dtype
        return 1 - jnp.asarray(self.decay, kind) ** jnp.maximum(steps, 1).astype(kind)

    def _seen(self, k: int, entries: Vector, signal: Vector) -> Array:
        """Σ_s g_s f̂_s."""
        algebra, dtype = self.plan.algebra(k), self.plan.dtypes[k]
        at = algebra.map_vector(lambda s: self.plan.gathers[k](s).astype(dtype), signal)
        return algebra.dot(entries, at, np.ones(self.plan.layout(k).size, bool))

    def in_product(
        self, trace: FactoredTrace, g: Mapping[int, Array], window: WindowData
    ) -> dict[int, tuple[Array, Array]]:
        signals = self.signals(trace, g, window, plain=True)
        return {j: (trace.data[j][None], term[None]) for j, term in signals.items()}

    def credit(self, trace: FactoredTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        signals, sites = self.signals(trace, g, window, plain=False), self.plan.facts.sites
        return {
            j: site_math.feature_grad(sites[j], window.fixed[j], trace.data[j], term) if j in self.factored else term
            for j, term in signals.items()
        }

    def move(self, trace: FactoredTrace, window: WindowData) -> FactoredTrace:
        if not self.plan.relations:
            return trace
        n, data, steps, taken = window.steps, {}, trace.steps, window.steps
        left = None if window.resets is None else remaining(window.resets)
        if left is not None:
            # A lane that started again counts the steps since its last reset.
            steps, taken = jnp.where(left[0], steps, 0), left[1:].sum(0, dtype=jnp.int32)
        for j, old in trace.data.items():
            features = site_math.features(self.plan.facts.sites[j], window.fixed[j], window.data(j))
            if left is not None:
                stays = at_lanes(left, self.lanes_of_data[j], old.ndim, 1)
                old, features = jnp.where(stays[0], old, 0), jnp.where(stays[1:], features, 0)
            data[j] = self.decay**n * old + _decayed_sum(features, self.decay, old.dtype)
        return FactoredTrace(data, window.carry, count_on(steps, taken))

    def parts(self, trace: FactoredTrace) -> dict[int, list[Array]]:
        entries = [trace.back[self.own.index(k)] for k in self.shared]
        return by_site([*trace.data, *(r.site for r in self.plan.relations)], [*trace.data.values(), *entries])


def factored_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, decay: float
) -> tuple[Plan, Transport[FactoredTrace]]:
    """The plan, and a trace of the data per site, S traces of the output per way to act, and the number of steps."""
    relations = carried_relations(facts, sites, CHEAP_FAN_OUT)
    probes = plan_probes(reduced_view(facts), relations)
    plan = plan_of(probes, trace_dtype)
    shared = _shared(plan, probes)
    factored = {
        r.site: d for r, d in zip(plan.relations, plan.dtypes, strict=True) if facts.sites[r.site].rule is not ALIGNED
    }
    plain = frozenset(j for j, dtype in factored.items() if site_math.features_are_data(facts.sites[j], dtype))
    f = _Factors(
        plan, decay, shared, sorted(set(shared)), frozenset(factored), plain, plan.lanes_of_data(factored)
    )  # fmt: skip
    transport = Transport(
        f.init,
        f.credit,
        f.move,
        EachStep(begin=lambda trace: trace.back, advance=f.advance, restart=f.restart)
        if plan.relations
        else EachStep(),
        fused=FusedCredit(f.in_product) if plain else FusedCredit(),
        parts=f.parts,
    )
    return plan, in_view(plan.reader.view, transport)


def _shared(plan: Plan, probes: Probes) -> list[int]:
    """Per relation, the one whose output trace is also its own: that of ops that act in the same way."""
    sites = [plan.facts.sites[r.site] for r in plan.relations]
    alike = probes.alike() if len(sites) > 1 else range(len(sites))
    copied = [None if r.copies is None else k for k, r in enumerate(plan.relations)]
    keys = [
        (first, d, s.rule is ALIGNED, site_math.output_shape(s), s.loops, copies)
        for first, d, s, copies in zip(alike, plan.dtypes, sites, copied, strict=True)
    ]
    return [keys.index(key) for key in keys]


def _decayed_sum(a: Array, decay: float, dtype: np.dtype) -> Array:
    """Σ_k decay^(K−k) a_k, written out: one pass over a."""
    n = a.shape[0]
    if n > machine().unrolled_terms:
        first, rest = (_decayed_sum(part, decay, dtype) for part in (a[: n // 2], a[n // 2 :]))
        return decay ** (n - n // 2) * first + rest
    return total(decay ** (n - 1 - k) * a[k].astype(dtype) for k in range(n))


def pp_prop(decay: float = 0.9, *, credit: str = "step") -> Rule:
    """Factored diagonal traces: the cheapest rule with a trace. Approximate for weights that are multiplied with data.

    - `decay`: the factor by which the remembered inputs shrink in a step.
    - `credit`: "state" is the published definition for an update at every step; see `d_rtrl`.

    >>> print(pp_prop(0.95))
    pp_prop(decay=0.95)
    """
    decay, on_state = check_decay("pp_prop", "decay", decay), check_credit("pp_prop", credit)

    def transport(facts: Facts, sites: frozenset[int] | None, trace_dtype: DTypeLike | None) -> Transport[Any]:
        plan, whole_step = factored_transport(facts, sites, trace_dtype, decay=decay)
        return state_credit(plan, whole_step) if on_state else whole_step

    if on_state:
        return state_rule(
            "pp_prop",
            {"decay": decay},
            transport,
            _verdict,
            lambda facts, param: traced_elements(facts, relations_of(facts, param, CHEAP_FAN_OUT)),
            warns=_warns,
            facts_for=in_series,
        )

    def verdict(facts: Facts, param: int) -> Verdict:
        return with_traced_window(facts, param, _verdict(facts, param), CHEAP_FAN_OUT)

    return Rule("pp_prop", transport, verdict, {"decay": decay}, warns=_warns, facts_for=in_series)


def _verdict(facts: Facts, param: int) -> Verdict:
    plain = by_position_verdict(facts, param, CHEAP_FAN_OUT)
    products = [j for j in facts.sites_of(param) if _factored(facts, j)]
    if plain.kind in (Kind.UNUSED, Kind.TRUNCATED) or not products:
        return plain
    names = ", ".join(facts.sites[j].label for j in products)
    assumes, signs = "which assumes inputs of constant sign", _signs(facts, products)
    text = f"the trace of {names} is factored into input and output, {assumes} ({signs})"
    return replaced(plain, text, f"its trace is factored, {assumes} ({signs})", f"its trace is factored, {assumes}")


def _factored(facts: Facts, site: int) -> bool:
    return facts.sites[site].rule is not ALIGNED and facts.remembers(OpNode(site))


def _signs(facts: Facts, sites: Sequence[int]) -> str:
    if all(j in facts.ranges and facts.ranges[j].one_sign for j in sites):
        return "they are"
    if all(j in facts.ranges_of_positive and facts.ranges_of_positive[j].one_sign for j in sites):
        return "they are if the inputs of the step are never negative"
    return "these can change sign"


def _warns(facts: Facts, inputs: Sequence[Array] | None) -> list[str]:
    """Sites whose data can change sign, by the model itself or by the inputs that came."""
    sites = [j for j in range(len(facts.sites)) if OpNode(j) in facts.live and _factored(facts, j)]
    loose = {j for j in sites if not facts.ranges_of_positive.get(j, ANY).one_sign}
    why = "which the model does not rule out"
    if inputs is not None:
        real = [np.asarray(a) for a in inputs if jnp.issubdtype(a.dtype, jnp.floating)]
        if not any((a < 0).any() and (a > 0).any() for a in real):
            return []
        loose = {j for j in sites if not facts.ranges.get(j, ANY).one_sign} - loose
        why = "as the inputs do"
    if not loose:
        return []
    names = ", ".join(dict.fromkeys(facts.sites[j].label for j in sorted(loose)))
    return [
        f"`pp_prop` factors the trace of {names}, but what these weights are multiplied with can change sign, {why}: "
        "the gradient may be far off. Check with `etrax.testing.compare`, or use `d_rtrl`."
    ]
