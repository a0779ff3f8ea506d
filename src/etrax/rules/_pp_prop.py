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
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._arguments import check_decay
from .._machine import machine
from ..compiler.analysis import Facts, OpNode
from ..compiler.opened import WeightSite
from ..compiler.ops import ALIGNED
from ..compiler.primitives import ANY
from ..runtime import (
    AnyBlock,
    CreditElsewhere,
    EachStep,
    Entries,
    Plan,
    Rows,
    Sparse,
    Transport,
    WindowData,
    add_to,
    block_times,
    by_site,
    carried_relations,
    count_on,
    plan_of,
    plan_probes,
    site_math,
    stacked_times,
    times,
    total,
)
from ._rule import Rule
from ._verdicts import Kind, Verdict, by_position_verdict, with_traced_window


class FactoredTrace(NamedTuple):
    """x̂ by site, f̂ (one array per state scalar) of each relation that has its own, and the number of steps t."""

    data: dict[int, Array]
    back: list[Entries]
    steps: Array


@dataclass(frozen=True, eq=False)
class _Factors:
    """Which traces there are.

    The f̂ of relation k is that of `shared[k]`; `own` lists the relations that have one. `factored` sites have an x̂;
    that of a `plain` one is in form and type like the op's data, and is read by the window's own product.
    """

    plan: Plan
    decay: float
    shared: list[int]
    own: list[int]
    factored: frozenset[int]
    plain: frozenset[int]

    def init(self) -> FactoredTrace:
        plan, sites = self.plan, self.plan.facts.sites
        dtypes = {r.site: d for r, d in zip(plan.relations, plan.dtypes, strict=True) if r.site in self.factored}
        data = {j: site_math.feature_zeros(sites[j], d) for j, d in dtypes.items()}
        back = []
        for k in self.own:
            shape = site_math.output_shape(sites[plan.relations[k].site])
            layout = plan.layout(k)
            one = jnp.zeros(shape, plan.dtypes[k])
            back.append(jnp.zeros((layout.size, *shape), one.dtype) if layout.stacked else (one,) * layout.size)
        return FactoredTrace(data, back, jnp.zeros((), jnp.int32))

    def advance(
        self, back: list[Entries], leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
    ) -> list[Entries]:
        blocks, rows = self.plan.probes(leaves, weights, ys)
        pairs = zip(self.own, back, strict=True)
        return [self._moved(k, entries, blocks[self.plan.relations[k].group], rows[k]) for k, entries in pairs]

    def _moved(self, k: int, entries: Entries, block: AnyBlock, row: Rows) -> Entries:
        """f̂ ← α D f̂ + (1 − α) F; of an elementwise weight D f̂ + F."""
        r, gather = self.plan.relations[k], self.plan.gathers[k]
        fade, gain = (self.decay, 1 - self.decay) if r.site in self.factored else (1.0, 1.0)
        site = self.plan.facts.sites[r.site]
        if isinstance(block, Sparse):
            old = stacked_times(
                Sparse(jax.vmap(gather)(block.values), block.pattern), jnp.asarray(entries), self.plan.steep
            )
            fresh = gain * jax.vmap(lambda f: site_math.sum_loops(site, f[None])[0])(jnp.asarray(row))
            return (fade * old).at[self.plan.probes.drives(k)].add(fresh).astype(jnp.asarray(entries).dtype)
        at = [[None if d is None else gather(d) for d in line] for line in block]
        old = block_times(at, list(entries), self.plan.steep)
        fresh = [gain * site_math.sum_loops(site, f[None])[0] for f in row]
        found = zip(old, fresh, entries, strict=True)
        return tuple((f if e is None else fade * e + f).astype(entry.dtype) for e, f, entry in found)

    def signals(
        self, trace: FactoredTrace, g: Mapping[int, Array], window: WindowData, plain: bool
    ) -> dict[int, Array]:
        """Σ_s g_s f̂_s / (1 − α^t) of y's shape, per site that is plain or not."""
        plan = self.plan
        g = plan.probes.without_derived(g, window.entry_states)
        out: dict[int, Array] = {}
        sums: dict[int, Array] = {}
        for k, r in enumerate(plan.relations):
            if (r.site in self.plain) is not plain:
                continue
            if self.shared[k] not in sums:
                signal = plan.layout(k).read_rows({i: g[i] for i in plan.layout(k).group.leaves})
                sums[self.shared[k]] = self._seen(k, trace.back[self.own.index(self.shared[k])], signal)
            term = sums[self.shared[k]]
            if r.site in self.factored:
                kind = jnp.real(term).dtype
                term = term / (1 - jnp.asarray(self.decay, kind) ** jnp.maximum(trace.steps, 1).astype(kind))
            add_to(out, r.site, term)
        return out

    def _seen(self, k: int, entries: Entries, signal: Rows) -> Array:
        """Σ_s g_s f̂_s."""
        gather = self.plan.gathers[k]
        if not isinstance(entries, tuple):
            return times(entries, jax.vmap(gather)(jnp.asarray(signal)).astype(entries.dtype), self.plan.steep).sum(0)
        return total(times(e, gather(s).astype(e.dtype), self.plan.steep) for e, s in zip(entries, signal, strict=True))

    def in_product(
        self, trace: FactoredTrace, g: Mapping[int, Array], window: WindowData
    ) -> dict[int, tuple[Array, Array]]:
        found = self.signals(trace, g, window, plain=True)
        return {j: (trace.data[j][None], term[None]) for j, term in found.items()}

    def credit(self, trace: FactoredTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        found, sites = self.signals(trace, g, window, plain=False), self.plan.facts.sites
        return {
            j: site_math.feature_grad(sites[j], window.fixed[j], trace.data[j], term) if j in self.factored else term
            for j, term in found.items()
        }

    def move(self, trace: FactoredTrace, window: WindowData) -> FactoredTrace:
        if not self.plan.relations:
            return trace
        n, data = window.steps, {}
        for j, old in trace.data.items():
            features = site_math.features(self.plan.facts.sites[j], window.fixed[j], window.data(j))
            data[j] = self.decay**n * old + _decayed_sum(features, self.decay, old.dtype)
        return FactoredTrace(data, window.carry, count_on(trace.steps, n))

    def parts(self, trace: FactoredTrace) -> dict[int, list[Array]]:
        entries = [trace.back[self.own.index(k)] for k in self.shared]
        return by_site([*trace.data, *(r.site for r in self.plan.relations)], [*trace.data.values(), *entries])


def factored_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, decay: float
) -> Transport[FactoredTrace]:
    """pp_prop: a trace of the data per site, S traces of the output per way to act, and the number of steps."""
    plan = plan_of(facts, plan_probes(facts, carried_relations(facts, sites), reduced=True), trace_dtype)
    shared = _shared(plan)
    factored = {
        r.site: d for r, d in zip(plan.relations, plan.dtypes, strict=True) if facts.sites[r.site].rule is not ALIGNED
    }
    plain = frozenset(j for j, dtype in factored.items() if _is_data(facts.sites[j], dtype))
    f = _Factors(plan, decay, shared, sorted(set(shared)), frozenset(factored), plain)
    return Transport(
        f.init,
        f.credit,
        f.move,
        EachStep(begin=lambda trace: trace.back, advance=f.advance) if plan.relations else EachStep(),
        elsewhere=CreditElsewhere(f.in_product) if plain else CreditElsewhere(),
        parts=f.parts,
    )


def _is_data(site: WeightSite, dtype: np.dtype) -> bool:
    """Whether a trace of the op's data could be its data, in form and type."""
    if site.rule.own_feature_grad is not None or site.loops:
        return False
    data = [site.call.operands[i].dtype for i in site.rule.varying(site.call)]
    return len(data) == 1 and data[0] == site.call.out.dtype == dtype


def _shared(plan: Plan) -> list[int]:
    """Per relation, the one whose output trace is also its own: that of ops that act in the same way."""
    sites = [plan.facts.sites[r.site] for r in plan.relations]
    alike = plan.probes.alike() if len(sites) > 1 else range(len(sites))
    keys = [
        (first, d, s.rule is ALIGNED, site_math.output_shape(s), s.loops)
        for first, d, s in zip(alike, plan.dtypes, sites, strict=True)
    ]
    return [keys.index(key) for key in keys]


def _decayed_sum(a: Array, decay: float, dtype: np.dtype) -> Array:
    """Σ_k decay^(K−k) a_k, written out: one pass over a."""
    n = a.shape[0]
    if n > machine().unrolled_terms:
        first, rest = (_decayed_sum(part, decay, dtype) for part in (a[: n // 2], a[n // 2 :]))
        return decay ** (n - n // 2) * first + rest
    return total(decay ** (n - 1 - k) * a[k].astype(dtype) for k in range(n))


def pp_prop(decay: float = 0.9) -> Rule:
    """Factored diagonal traces: the cheapest rule with a trace; approximate for weights that meet data in a product.

    >>> print(pp_prop(0.95))
    pp_prop(decay=0.95)
    """
    decay = check_decay("pp_prop", "decay", decay)

    def verdict(facts: Facts, param: int) -> Verdict:
        plain = by_position_verdict(facts, param)
        products = [j for j in facts.sites_of(param) if _factored(facts, j)]
        if plain.kind in (Kind.UNUSED, Kind.TRUNCATED) or not products:
            return with_traced_window(facts, param, plain)
        names = ", ".join(facts.sites[j].label for j in products)
        text = f"the trace of {names} is factored into input and output, which assumes inputs of constant sign"
        text += f" ({_signs(facts, products)})"
        more = "" if plain.kind is Kind.EXACT else f"; moreover, {plain.reason}"
        return with_traced_window(facts, param, Verdict(Kind.APPROXIMATE, text + more))

    return Rule("pp_prop", partial(factored_transport, decay=decay), verdict, {"decay": decay}, warns=_warns)


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
