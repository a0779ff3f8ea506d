"""pp-prop: D-RTRL with its trace factored into one trace of the op's input and one of its output.

    x̂ ← α x̂ + u        f̂ ← α D f̂ + (1 − α) F        ε ≈ f̂ / (1 − α^t) ⊗ x̂

Memory B·(I + O·S) instead of B·I·O·S. The factorisation is justified for inputs of constant sign (spikes, rates);
elementwise weights (biases, leaks) are carried unfactored, at the same memory.

t counts steps. f̂ is as small as y, and moves step by step inside the window's loop; x̂ moves once per window,

    x̂_K = α^K x̂_0 + Σ_k α^{K−k} u_k

Ops whose outputs are summed before anything else happens to them have the same f̂, which is kept once. Where x̂ is of the
form of the op's data, its credit is one step more in the window's own product (docs/mathematics.md, 4).

Wang, Dong, Ji and Wu, "BrainScale: enabling scalable online learning in spiking neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import check_decay
from ..analysis import Facts, OpNode, Relation, WeightSite
from ..analysis._ranges import ANY
from ..engine import (
    Probes,
    Transport,
    WindowData,
    act,
    add_to,
    by_site,
    bytes_of,
    carried_relations,
    gather_of,
    plan_probes,
    site_math,
    trace_dtype_of,
)
from ..ops import ALIGNED
from ._rule import Rule
from ._verdicts import Kind, Verdict, diagonal

MANY_STEPS = 2**30  # far below the largest int32, far above what any decay remembers


def factored_transport(
    facts: Facts, decay: float, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """pp_prop: a trace of the data per site, S traces of the output per way to act, and the number of steps."""
    relations = carried_relations(facts, sites)
    probes = plan_probes(facts, relations, reduced=True)
    gathers = [
        gather_of(r.places, facts.groups[r.group].varshape, facts.groups[r.group].num_positions) for r in relations
    ]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in relations]
    shared = _shared(facts, relations, dtypes, probes)
    own = sorted(set(shared))
    factored = {r.site: d for r, d in zip(relations, dtypes, strict=True) if facts.sites[r.site].rule is not ALIGNED}

    def init() -> Any:
        data = {j: site_math.feature_zeros(facts.sites[j], d) for j, d in factored.items()}
        back = []
        for k in own:
            shape, n = site_math.output_shape(facts.sites[relations[k].site]), probes.layouts[relations[k].group].size
            back.append(tuple(jnp.zeros(shape, dtypes[k]) for _ in range(n)))
        return data, back, jnp.zeros((), jnp.int32)

    def advance(back: Any, leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> Any:
        blocks, rows = probes(leaves, weights, ys)
        moved = []
        for k, entries in zip(own, back, strict=True):
            r = relations[k]
            fade, gain = (decay, 1 - decay) if r.site in factored else (1.0, 1.0)
            kept = act([[None if d is None else gathers[k](d) for d in line] for line in blocks[r.group]], entries)
            fresh = [gain * site_math.sum_loops(facts.sites[r.site], f[None])[0] for f in rows[k]]
            pairs = zip(kept, fresh, entries, strict=True)
            moved.append(tuple((f if k is None else fade * k + f).astype(e.dtype) for k, f, e in pairs))
        return moved

    # Sites whose trace is data like that of any step: they are read by the window's own product.
    plain = {j for j, dtype in factored.items() if _is_data(facts.sites[j], dtype)}

    def signals(trace: Any, g: Mapping[int, Any], window: WindowData, chosen: Callable[[int], bool]) -> dict[int, Any]:
        """Σ_s g_s f̂_s per site, of y's shape."""
        back, steps = trace[1:]
        g = probes.fold(g, window.ends[0])
        out: dict[int, Any] = {}
        sums: dict[int, Any] = {}
        for k, r in enumerate(relations):
            if not chosen(r.site):
                continue
            if shared[k] not in sums:
                signal = probes.layouts[r.group].read({i: g[i] for i in facts.groups[r.group].leaves})
                pairs = zip(back[own.index(shared[k])], signal, strict=True)
                sums[shared[k]] = sum(entry * gathers[k](s).astype(entry.dtype) for entry, s in pairs)
            term = sums[shared[k]]
            if r.site in factored:
                kind = jnp.real(term).dtype
                term = term / (1 - jnp.asarray(decay, kind) ** jnp.maximum(steps, 1).astype(kind))
            add_to(out, r.site, term)
        return out

    def joined(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, tuple[Any, Any]]:
        found = signals(trace, g, window, plain.__contains__)
        return {j: (trace[0][j][None], term[None]) for j, term in found.items()}

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        found = signals(trace, g, window, lambda j: j not in plain)
        return {
            j: site_math.feature_grad(facts.sites[j], window.fixed[j], trace[0][j], term) if j in factored else term
            for j, term in found.items()
        }

    def move(trace: Any, window: WindowData) -> Any:
        if not relations:
            return trace
        data, _, steps = trace
        n = window.steps
        new_data = {}
        for j in factored:
            features = site_math.features(facts.sites[j], window.fixed[j], window.data(j))
            new_data[j] = jax.tree.map(lambda old, u: decay**n * old + _faded(u, decay, old.dtype), data[j], features)
        # A stream may be longer than an int32 can count; decay ** count has long been zero by then.
        return new_data, window.carry, jnp.where(steps < MANY_STEPS, steps + n, steps)

    def parts(trace: Any) -> dict[int, list[Any]]:
        entries = [trace[1][own.index(k)] for k in shared]
        return by_site([*trace[0], *(r.site for r in relations)], [*trace[0].values(), *entries])

    return Transport(
        init,
        None,
        credit,
        move,
        bytes_of(init),
        begin=lambda trace: trace[1],
        advance=advance if relations else None,
        joined=joined if plain else None,
        parts=parts,
    )


def _is_data(site: WeightSite, dtype: Any) -> bool:
    """Whether a trace of the op's data could be its data, in form and type."""
    if site.rule.own_feature_grad is not None or site.loops:
        return False
    data = [site.call.operands[i].dtype for i in site.rule.varying(site.call)]
    return len(data) == 1 and data[0] == site.call.out.dtype == dtype


# Steps of a window that are summed in one expression.
UNROLLED = 64


def _shared(facts: Facts, relations: Sequence[Relation], dtypes: Sequence[Any], probes: Probes) -> list[int]:
    """Per relation, the one whose output trace is also its own: that of ops that act in the same way."""
    sites = [facts.sites[r.site] for r in relations]
    alike = probes.alike() if len(relations) > 1 else range(len(relations))
    keys = [
        (first, d, s.rule is ALIGNED, site_math.output_shape(s), s.loops)
        for first, d, s in zip(alike, dtypes, sites, strict=True)
    ]
    return [keys.index(key) for key in keys]


def factored_bytes(facts: Facts, trace_dtype: Any = None) -> int:
    """Size of the traces that pp_prop would keep."""
    return factored_transport(facts, 0.5, None, trace_dtype).nbytes


def _faded(a: Any, decay: float, dtype: Any) -> Any:
    """Σ_k decay^(K−k) a_k, written out: one pass over a."""
    n = a.shape[0]
    if n > UNROLLED:
        first, rest = (_faded(part, decay, dtype) for part in (a[: n // 2], a[n // 2 :]))
        return decay ** (n - n // 2) * first + rest
    return sum(decay ** (n - 1 - k) * a[k].astype(dtype) for k in range(n))


def pp_prop(decay: float = 0.9) -> Rule:
    """Factored diagonal traces: the cheapest rule with a trace; approximate for weights that meet data in a product.

    >>> print(pp_prop(0.95))
    pp_prop(decay=0.95)
    """
    decay = check_decay("pp_prop", "decay", decay)

    def verdict(facts: Facts, param: int) -> Verdict:
        plain = diagonal(facts, param)
        products = [j for j in facts.sites_of(param) if _factored(facts, j)]
        if plain.kind in (Kind.UNUSED, Kind.TRUNCATED) or not products:
            return plain
        names = ", ".join(facts.sites[j].label for j in products)
        text = f"the trace of {names} is factored into input and output, which assumes inputs of constant sign"
        text += f" ({_signs(facts, products)})"
        more = "" if plain.kind is Kind.EXACT else f"; moreover, {plain.reason}"
        return Verdict(Kind.APPROXIMATE, text + more)

    def transport(facts, sites=None, trace_dtype=None):
        return factored_transport(facts, decay, sites, trace_dtype)

    return Rule("pp_prop", transport, verdict, factored_bytes, {"decay": decay}, warns=_warns)


def _factored(facts: Facts, site: int) -> bool:
    return facts.sites[site].rule is not ALIGNED and facts.remembers(OpNode(site))


def _signs(facts: Facts, sites: Sequence[int]) -> str:
    if all(j in facts.ranges and facts.ranges[j].one_sign for j in sites):
        return "they are"
    if all(j in facts.ranges_of_positive and facts.ranges_of_positive[j].one_sign for j in sites):
        return "they are if the inputs of the step are never negative"
    return "these can change sign"


def _warns(facts: Facts, inputs: Sequence[Any] | None) -> list[str]:
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
