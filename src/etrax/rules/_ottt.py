"""Online training through time: a trace of presynaptic data only.

    x̂_t = λ x̂_{t-1} + u_t        ε ≈ F ⊗ x̂

The hidden Jacobian is replaced by the leak λ of the membrane, and the postsynaptic factor F is that of the present:
for LIF neurons whose reset passes no gradient nothing but F's change over time is lost. One trace per weight op
serves all of its outputs: B·I.

F is that of the first step of the window in which the trace is used. Over a window x̂_K = λ^K x̂_0 + Σ_k λ^{K−k} u_k. An
elementwise weight meets no data: its u is 1, and one number serves all (docs/mathematics.md, 7).

Xiao, Meng, Zhang, He and Lin, "Online training through time for spiking neural networks", NeurIPS, 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from .._compat import common_dtype
from ..compiler.analysis import NO_FAN_OUT, Facts
from ..compiler.ops import ALIGNED
from ..runtime import (
    EachStep,
    FusedCredit,
    LaneMap,
    Plan,
    Transport,
    WindowData,
    add_to,
    at_lanes,
    by_site,
    carried_relations,
    plan_of,
    plan_probes,
    remaining,
    site_math,
    times,
    whole_view,
)
from ..runtime.blocks import Vector
from ._leak import leak_rule, with_leak
from ._reached import Flags, Reached
from ._rule import Rule


class PresynapticTrace(NamedTuple):
    """x̂ by site, and that of a constant 1 for all elementwise weights, if there are any; what the ops have reached.

    Where lanes may start again on their own, each has a number for the constant.
    """

    data: dict[int, Array]
    one: Array | tuple[()]
    reached: Flags


@dataclass(frozen=True, eq=False)
class _Presynaptic:
    """x̂ of every op that a plan has a relation of, and the credit that is taken of it.

    By site, `dtypes` are the types of the traces of data, `lanes` the lanes of these; elementwise weights have no data.
    A trace of a `plain` site is in form and type like the op's data, and is read by the window's own product.
    """

    plan: Plan
    decay: float
    dtypes: Mapping[int, np.dtype]
    lanes: Mapping[int, LaneMap]
    plain: frozenset[int]

    @cached_property
    def reached(self) -> Reached:
        return Reached(self.plan)

    def init(self) -> PresynapticTrace:
        facts, dtypes = self.plan.facts, self.dtypes
        data = {j: site_math.feature_zeros(facts.sites[j], dtype) for j, dtype in dtypes.items()}
        shape = () if facts.lanes is None else (facts.lanes,)
        elementwise = len(dtypes) < len({r.site for r in self.plan.relations})
        one = jnp.zeros(shape, jnp.finfo(common_dtype(*self.plan.dtypes)).dtype) if elementwise else ()
        return PresynapticTrace(data, one, self.reached.init())

    def begin(self, trace: PresynapticTrace) -> Flags:
        return trace.reached

    def record(self, leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]) -> list[Vector]:
        return self.plan.reader(leaves, weights, ys)[1]

    def credit(self, trace: PresynapticTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        plan, facts = self.plan, self.plan.facts
        out: dict[int, Array] = {}
        for k, r in enumerate(plan.relations):
            if r.site in self.plain:
                continue
            term = self._signal_at_y(k, trace, g, window)
            if r.site not in self.dtypes and facts.lanes is not None:
                term = term * jnp.asarray(trace.one, jnp.real(term).dtype)[plan.lanes_at(k)]
            term = plan.of_output(k, term)
            if r.site in self.dtypes:
                data, fixed = trace.data[r.site], window.fixed[r.site]
                term = site_math.feature_grad(facts.sites[r.site], fixed, data, term)
            elif facts.lanes is None:
                term = term * jnp.asarray(trace.one, jnp.real(term).dtype)
            add_to(out, r.site, term)
        return out

    def in_product(
        self, trace: PresynapticTrace, g: Mapping[int, Array], window: WindowData
    ) -> dict[int, tuple[Array, Array]]:
        signals: dict[int, Array] = {}
        for k, r in enumerate(self.plan.relations):
            if r.site in self.plain:
                add_to(signals, r.site, self.plan.of_output(k, self._signal_at_y(k, trace, g, window)))
        return {j: (trace.data[j][None], signal[None]) for j, signal in signals.items()}

    def _signal_at_y(
        self, k: int, trace: PresynapticTrace, g: Mapping[int, Array], window: WindowData
    ) -> Array:  # fmt: skip
        """Σ_s F_s ∂L/∂h_s at the elements of relation k's y, with F of the first step of the window."""
        plan, first = self.plan, jax.tree.map(lambda f: f[0], window.records[k])
        signal = self.reached.met(k, trace.reached, plan.signals(k, g), range(plan.layout(k).size))
        term = jnp.zeros((), plan.dtypes[k])
        for s, f in plan.algebra(k).driven(first, plan.drives[k]):
            f = site_math.sum_loops(plan.site(k), f[None])[0].astype(plan.dtypes[k])
            term = term + times(f, signal[s], plan.steep)
        return term

    def move(self, trace: PresynapticTrace, window: WindowData) -> PresynapticTrace:
        facts, data = self.plan.facts, {}
        for j, old in trace.data.items():
            features = site_math.features(facts.sites[j], window.fixed[j], window.data(j))
            data[j] = self._moved(old, features, self.lanes[j], window)
        one = trace.one
        if isinstance(one, Array):
            each = None if facts.lanes is None else np.arange(facts.lanes)
            one = self._moved(one, jnp.ones((window.steps, *one.shape)), each, window)
        return PresynapticTrace(data, one, window.carry)

    def _moved(self, old: Array, u: Array, lanes: LaneMap, window: WindowData) -> Array:
        """λ^K x̂_0 + Σ_k λ^{K−k} u_k, where nothing passes a reset."""
        if window.resets is not None:
            stays = at_lanes(remaining(window.resets), lanes, old.ndim, 1)
            old, u = jnp.where(stays[0], old, 0), jnp.where(stays[1:], u, 0)
        return self.decay**window.steps * old + with_leak(u, self.decay, old.dtype).sum(0)


def presynaptic_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, decay: float
) -> tuple[Plan, Transport[PresynapticTrace]]:
    """Traces of data, and the plan of the relations that they serve."""
    plan = plan_of(plan_probes(whole_view(facts), carried_relations(facts, sites)), trace_dtype)
    pairs = zip(plan.relations, plan.dtypes, strict=True)
    dtypes = {r.site: dtype for r, dtype in pairs if facts.sites[r.site].rule is not ALIGNED}
    # Now, not on use: data that lanes share are refused before anything runs.
    plain = frozenset(j for j, dtype in dtypes.items() if site_math.features_are_data(facts.sites[j], dtype))
    traces = _Presynaptic(plan, decay, dtypes, plan.lanes_of_data(dtypes), plain)
    reached = traces.reached
    each = EachStep(traces.record, traces.begin, reached.advance, reached.restart)
    return plan, Transport(
        traces.init,
        traces.credit,
        traces.move,
        each if plan.relations else EachStep(),
        fused=FusedCredit(traces.in_product),
        parts=lambda trace: by_site(trace.data, trace.data.values()),
    )


def ottt(decay: float, *, credit: str = "step") -> Rule:
    """OTTT: the data of each weight op, remembered with the leak of the membrane.

    - `decay`: the factor by which the remembered data shrink in a step (that of the membrane).
    - `credit`: "state" is the published definition for an update at every step; see `d_rtrl`.

    >>> print(ottt(0.5))
    ottt(decay=0.5)
    """
    what = "only the data of its weight op are remembered, with a leak of {:g}"
    how = f"{what}, and not what its outputs did to the states"
    # An output reaches several positions by a product with data (a key, a gate), and the F of the present is then not
    # that of the past: in linear attention such a trace points the wrong way.
    return leak_rule("ottt", presynaptic_transport, decay, how, credit, NO_FAN_OUT)
