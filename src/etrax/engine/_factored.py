"""Factored transport (MATH.md §4): one trace of the op's data and one of its output stand for their product.

    x̂ ← α x̂ + u        f̂ ← α D f̂ + (1 − α) F        ε ≈ f̂ / (1 − α^t) ⊗ x̂

t counts steps. f̂ is as small as y, and moves step by step inside the window's loop; x̂ moves once per window,

    x̂_K = α^K x̂_0 + Σ_k α^{K−k} u_k

An elementwise weight has no data of its own: its trace is as large as f̂ already, so it is carried unfactored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..analysis import Facts
from ..ops import ALIGNED
from . import _site_math as site_math
from ._blocks import act
from ._diagonal import carried_relations, derived_leaves, trace_dtype_of, wide_dtype
from ._layout import gather_of, slot_count
from ._probes import plan_probes
from ._transport import Transport, WindowData, by_site


def factored_transport(
    facts: Facts, decay: float, sites: frozenset[int] | None = None, trace_dtype: Any = None
) -> Transport:
    """pp_prop: a trace of the data per site, S traces of the output per relation, and the number of steps."""
    relations = carried_relations(facts, sites)
    probes = plan_probes(facts, relations, reduced=True)
    gathers = [
        gather_of(r.places, facts.groups[r.group].varshape, facts.groups[r.group].num_positions) for r in relations
    ]
    dtypes = [trace_dtype_of(facts, r, trace_dtype) for r in relations]
    factored = {r.site: d for r, d in zip(relations, dtypes, strict=True) if facts.sites[r.site].rule is not ALIGNED}

    def init() -> Any:
        data = {j: site_math.feature_zeros(facts.sites[j], d) for j, d in factored.items()}
        back = []
        for r, d in zip(relations, dtypes, strict=True):
            shape = site_math.output_shape(facts.sites[r.site])
            back.append(tuple(jnp.zeros(shape, d) for _ in range(probes.layouts[r.group].size)))
        return data, back, jnp.zeros((), jnp.int32)

    def advance(back: Any, leaves: Sequence[Any], weights: Sequence[Any], ys: Mapping[int, Any]) -> Any:
        blocks, rows = probes(leaves, weights, ys)
        moved = []
        for r, gather, entries, row in zip(relations, gathers, back, rows, strict=True):
            fade, gain = (decay, 1 - decay) if r.site in factored else (1.0, 1.0)
            kept = act([[None if d is None else gather(d) for d in line] for line in blocks[r.group]], entries)
            fresh = [gain * site_math.sum_loops(facts.sites[r.site], f[None])[0] for f in row]
            pairs = zip(kept, fresh, entries, strict=True)
            moved.append(tuple((f if k is None else fade * k + f).astype(e.dtype) for k, f, e in pairs))
        return moved

    def credit(trace: Any, g: Mapping[int, Any], window: WindowData) -> dict[int, Any]:
        data, back, steps = trace
        g = probes.fold(g, window.ends[0])
        out: dict[int, Any] = {}
        for r, gather, entries in zip(relations, gathers, back, strict=True):
            site = facts.sites[r.site]
            signal = probes.layouts[r.group].read({i: g[i] for i in facts.groups[r.group].leaves})
            term = sum(entry * gather(s).astype(entry.dtype) for entry, s in zip(entries, signal, strict=True))
            if r.site in factored:
                kind = jnp.real(term).dtype
                seen = 1 - jnp.asarray(decay, kind) ** jnp.maximum(steps, 1).astype(kind)
                term = site_math.feature_grad(site, window.fixed[r.site], data[r.site], term / seen)
            out[r.site] = out[r.site] + term if r.site in out else term
        return out

    def move(trace: Any, window: WindowData) -> Any:
        if not relations:
            return trace
        data, _, steps = trace
        n = window.steps
        new_data = {}
        for j in factored:
            features = site_math.features(facts.sites[j], window.fixed[j], window.data(j))
            new_data[j] = jax.tree.map(lambda old, u: decay**n * old + _faded(u, decay, old.dtype), data[j], features)
        return new_data, window.carry, steps + n

    return Transport(
        init,
        None,
        credit,
        move,
        bytes_of(init),
        begin=lambda trace: trace[1],
        advance=advance if relations else None,
        parts=lambda trace: by_site([*trace[0], *(r.site for r in relations)], [*trace[0].values(), *trace[1]]),
    )


# Steps of a window that are summed in one expression.
UNROLLED = 64


def factored_bytes(facts: Facts) -> int:
    """Size of the traces that pp_prop would keep."""
    relations, total = carried_relations(facts), 4
    for j in {r.site for r in relations if facts.sites[r.site].rule is not ALIGNED}:
        site = facts.sites[j]
        total += bytes_of(lambda site=site: site_math.feature_zeros(site, wide_dtype(site.call.out.dtype)))
    for r in relations:
        size = int(np.prod(site_math.output_shape(facts.sites[r.site]), dtype=np.int64))
        total += (
            size
            * trace_dtype_of(facts, r, None).itemsize
            * slot_count(facts, facts.groups[r.group], derived_leaves(facts, r.group))
        )
    return total if relations else 4


def bytes_of(init: Any) -> int:
    """Bytes of what a function would allocate."""
    found = jax.tree.leaves(jax.eval_shape(init))
    return sum(int(np.prod(a.shape, dtype=np.int64)) * a.dtype.itemsize for a in found)


def _faded(a: Any, decay: float, dtype: Any) -> Any:
    """Σ_k decay^(K−k) a_k, written out: one pass over a."""
    n = a.shape[0]
    if n > UNROLLED:
        first, rest = (_faded(part, decay, dtype) for part in (a[: n // 2], a[n // 2 :]))
        return decay ** (n - n // 2) * first + rest
    return sum(decay ** (n - 1 - k) * a[k].astype(dtype) for k in range(n))
