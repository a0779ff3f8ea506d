"""e-prop: the trace of D-RTRL, low-pass filtered, and a choice of learning signal.

    ε_t = D_t ε_{t-1} + u_t ⊗ F_t        ε̄_t = κ ε̄_{t-1} + ε_t

The filter κ stands for a readout that leaks by κ and is not itself a state of the model: an error at time t is then
due to all that the readout has summed. The signals:

- `"symmetric"`: the gradient of the loss. With κ = 0 e-prop is then D-RTRL, exact inside a window. With a filter,
  g = Σ_t s_t · ε̄_t, ε̄_t including step t and s_t = ∂ℓ_t/∂h_t of the loss of that step alone, the same for every window.
  What the loss of a step reads of old states meets the trace of a step ago; what it reads of a weight op beside all
  states of its trace is differentiated as it is. The filter is on the traces of states, so a spike that is a state
  (z beside v) has its own eligibility filtered, as in the paper.
- `"random"`: s_t = B e_t, the output error e_t = ∂ℓ_t/∂o_t through fixed random matrices, one per output leaf and
  hidden group, of shape (outputs × positions of one sample); g = Σ_t s_t · ε̄_t, with ε̄_t including step t.
- `"adaptive"`: the same, and B follows the readout: B ← (1 − δ) B − η mean_t e_t ⊗ z_t after every window, z the
  activity of the group. With the readout trained by plain gradient descent of rate η and weight decay δ, both
  converge to each other.

The signal acts on a group's activity (what the step reads of its new state: its spikes, an LSTM's h) and goes on to
its states by the step's own derivative. Parameters that reach no state keep the gradient of the loss; so do states
that the output shows without a weight op in between (a leaky readout).

With the gradient of the loss and κ > 0, in closed form over a window (docs/mathematics.md, 5):
The filter is turned on the signals, σ̃_k = σ_k + κ σ̃_{k+1}, and one reverse
recursion a_k = σ̃_k + D_{k+1}ᵀ a_{k+1} takes them back to the entry,

    g = Σ_k u_k ⊗ (δ_k + F_k · (a_k − s_k))  +  (D_1ᵀ a_1) · ε_0  +  (r_1 + κ σ̃_1) · ε̄_0

δ_k is the loss of step k at the op's output, all of it; F_k · s_k is the part that the states of its trace account for,
so that what they do not (a skip path, a state that no trace reaches) counts as it is. r_k is what the loss of step k
reads of the states before it, σ_k = s_k + r_{k+1}. Over a window of one step, s_1 · ε̄_1 is read off the trace that has
moved.

The traces themselves move once per window. With Q_k = D_K ··· D_{k+1} as in D-RTRL, what a window adds to the filtered
trace is a second suffix recursion,

    R_K = I,   R_k = κ^{K−k} I + R_{k+1} D_{k+1}        ε̄_K = κ^K ε̄_0 + (R_1 D_1) ε_0 + Σ_k u_k ⊗ (R_k F_k)

which is the second half of D-RTRL's recursion for the blocks [[D, 0], [D, κ I]] and [F; F].

Bellec, Scherr, Subramoney, Hajek, Salaj, Legenstein and Maass, "A solution to the learning dilemma for recurrent
networks of spiking neurons", Nature Communications 11, 2020. Adaptive feedback: Kolen and Pollack, "Backpropagation
without weight transport", ICNN, 1994.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from .._arguments import check_decay, check_key, check_number, short
from .._errors import ArgumentError
from ..compiler.analysis import Facts, OpNode, traced_elements
from ..runtime import (
    AnyBlock,
    CreditElsewhere,
    EachStep,
    Entries,
    OwnLoss,
    Plan,
    RanStep,
    Rows,
    Signal,
    StepGradients,
    Transport,
    Whole,
    WindowData,
    add_to,
    by_site,
    carried_relations,
    driven_dot,
    late_rows,
    moved_trace,
    onward,
    outer_stack,
    plan_of,
    plan_own_loss,
    plan_probes,
    pulled_back,
    site_math,
    suffix_products,
    times_trace,
    trace_part,
    trace_zeros,
    unit,
)
from ._d_rtrl import d_rtrl
from ._feedback import feedback_source
from ._rule import Rule
from ._signals import GuidedTrace, guided_transport
from ._verdicts import Verdict, other_recurrence_verdict, other_signal_verdict, relations_of, with_least_window

T = TypeVar("T")
E = TypeVar("E", Entries, Rows)


class Filtered(NamedTuple):
    """ε and ε̄ of one relation, one array per state scalar each."""

    plain: Entries
    filtered: Entries


class FilteredTrace(NamedTuple):
    """Per relation, the trace and the filtered trace."""

    pairs: list[Filtered]


@dataclass(frozen=True, eq=False)
class _Filter:
    """e-prop with a filter and the gradient of the loss, in closed form over a window."""

    plan: Plan
    own_loss: OwnLoss
    kappa: float

    def stored(self, k: int) -> list[int]:
        """The slots of relation k that have a trace; those that follow from others act on nothing, and need none."""
        layout = self.plan.layout(k)
        derived = self.plan.probes.derived.get(layout.group.index)
        own = [s for s, slot in enumerate(layout.slots) if derived is None or slot.leaf not in derived.sources]
        return list(range(layout.size)) if layout.stacked else own

    def seen(self, k: int) -> list[int]:
        """The slots of relation k that have a filtered trace; what no loss of a step sees needs none."""
        layout = self.plan.layout(k)
        own = [s for s, slot in enumerate(layout.slots) if slot.leaf in self.own_loss.seen]
        return list(range(layout.size)) if layout.stacked else own

    def init(self) -> FilteredTrace:
        zeros = [trace_zeros(self.plan, k) for k in range(len(self.plan.relations))]
        return FilteredTrace(
            [Filtered(_chosen(z, self.stored(k)), _chosen(z, self.seen(k))) for k, z in enumerate(zeros)]
        )

    def signal(
        self, trace: FilteredTrace, leaves: Sequence[Array], weights: Sequence[Array], ran: RanStep, along: Any,
        loss_of: Any, share: Array | float,
    ) -> StepGradients:  # fmt: skip
        return self.own_loss(leaves, weights, ran, along, loss_of, share)

    def credit(self, trace: FilteredTrace, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        plan, found_loss = self.plan, window.signals
        if self.reads_exit(window):
            return {j: self.beside_traces(found_loss, j, window) for j in found_loss.ops}
        plain, filtered, late = _credit_signals(plan, self.kappa, window.records[0], found_loss)
        sites = plan.facts.sites
        out = {j: site_math.grad(sites[j], window.fixed[j], window.data(j), d) for j, d in found_loss.ops.items()}
        for k, (r, pair) in enumerate(zip(plan.relations, trace.pairs, strict=True)):
            parts = (pair.plain, plain, self.stored(k)), (pair.filtered, filtered, self.seen(k))
            for entries, signals, slots in parts:
                if len(slots):
                    signal = _chosen(signals[r.group], slots)
                    add_to(out, r.site, trace_part(plan, k, entries, signal, window.fixed))
            if window.steps > 1:
                add_to(out, r.site, plan.grad(k, driven_dot(plan, k, window.records[1][k], late[r.group]), window))
        return out

    def reads_exit(self, window: WindowData) -> bool:
        """Whether s_1 · ε̄_1 is read off the trace that has moved."""
        return window.steps == 1 and not self.own_loss.old

    def beside_traces(self, found_loss: StepGradients, j: int, window: WindowData) -> Array:
        """δ − F · s at one op of one step, as the gradient of its weight."""
        plan, bar = self.plan, found_loss.ops[j]
        for k in (k for k, r in enumerate(plan.relations) if r.site == j):
            new = found_loss.new[plan.relations[k].group]
            bar = bar - driven_dot(plan, k, window.records[1][k], new).astype(bar.dtype)
        return site_math.grad(plan.facts.sites[j], window.fixed[j], window.data(j), bar)

    def credit_at_exit(self, trace: FilteredTrace, window: WindowData) -> dict[int, Array]:
        out: dict[int, Array] = {}
        if not self.reads_exit(window):
            return out
        for k, (r, pair) in enumerate(zip(self.plan.relations, trace.pairs, strict=True)):
            if not self.seen(k):
                continue
            signal = _chosen(jax.tree.map(lambda s: s[0], window.signals.new[r.group]), self.seen(k))
            add_to(out, r.site, trace_part(self.plan, k, pair.filtered, signal, window.fixed))
        return out

    def move(self, trace: FilteredTrace, window: WindowData) -> FilteredTrace:
        moved = _moved_once if window.steps == 1 else _moved
        zeros = [trace_zeros(self.plan, k) for k in range(len(self.plan.relations))]
        whole = [
            Filtered(_put(z, p.plain, self.stored(k)), _put(z, p.filtered, self.seen(k)))
            for k, (z, p) in enumerate(zip(zeros, trace.pairs, strict=True))
        ]
        found = moved(self.plan, self.kappa, FilteredTrace(whole), window)
        return FilteredTrace(
            [
                Filtered(_chosen(p.plain, self.stored(k)), _chosen(p.filtered, self.seen(k)))
                for k, p in enumerate(found.pairs)
            ]
        )


def _chosen(of: E, slots: Sequence[int]) -> E:
    """Some slots of a list or a tuple; an array has all."""
    return of if isinstance(of, Array) else type(of)(of[s] for s in slots)


def _put(zeros: Entries, entries: Entries, slots: Sequence[int]) -> Entries:
    """All slots, of which some are nothing but zero: the compiler leaves out what is made of them alone."""
    if isinstance(entries, Array):
        return entries
    whole = list(zeros)
    for s, entry in zip(slots, entries, strict=True):
        whole[s] = entry
    return tuple(whole)


def filtered_transport(
    facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None, *, kappa: float
) -> Transport[FilteredTrace]:
    """e-prop with a filter: per relation and state scalar the trace, and the filtered trace."""
    plan = plan_of(facts, plan_probes(facts, carried_relations(facts, sites), follow=True), trace_dtype)
    f = _Filter(plan, plan_own_loss(plan), kappa)
    if not plan.relations:
        return Transport(f.init, lambda trace, g, window: {}, lambda trace, window: trace)
    return Transport(
        f.init,
        f.credit,
        f.move,
        EachStep(plan.probes),
        Signal(f.signal, frozenset(r.site for r in plan.relations)),
        elsewhere=CreditElsewhere(at_exit=f.credit_at_exit),
        parts=lambda trace: by_site([r.site for r in plan.relations], trace.pairs),
    )


Signals: TypeAlias = dict[int, Rows]


def _credit_signals(
    plan: Plan, kappa: float, blocks: Sequence[AnyBlock], found_loss: StepGradients
) -> tuple[Signals, Signals, Signals]:
    """D_1ᵀ a_1 and r_1 + κ σ̃_1 per group, at the entry; a_k − s_k, stacked over steps."""

    def body(
        carry: tuple[Signals, Signals], step: tuple[Signals, Signals, Sequence[AnyBlock]]
    ) -> tuple[tuple[Signals, Signals], Signals]:
        summed, back = carry  # r_{k+1} + κ σ̃_{k+1}, D_{k+1}ᵀ a_{k+1}
        new, old, d = step
        late = _sums(summed, back)
        before = jax.tree.map(lambda r, s, more: r + kappa * (s + more), old, new, summed)
        return (before, {g: pulled_back(d[g], a, plan.steep) for g, a in _sums(new, late).items()}), late

    zero = jax.tree.map(lambda s: jnp.zeros_like(s[0]), found_loss.new)
    (filtered, plain), late = lax.scan(body, (zero, zero), (found_loss.new, found_loss.old, blocks), reverse=True)
    return plain, filtered, late


def _sums(a: T, b: T) -> T:
    return jax.tree.map(jnp.add, a, b)


def _moved(plan: Plan, kappa: float, trace: FilteredTrace, window: WindowData) -> FilteredTrace:
    """Both traces at the window's exit."""
    (product, summed), fresh = _suffixes(plan, kappa, window.records)
    moved = []
    for k, (r, (plain, filtered)) in enumerate(zip(plan.relations, trace.pairs, strict=True)):
        new = outer_stack(plan, k, fresh.plain[k], window)
        new_filtered = outer_stack(plan, k, fresh.filtered[k], window)
        old = times_trace(plan, k, summed[r.group], plain, window)
        late, dtype = jax.tree.map(lambda e, more: kappa**window.steps * e + more, filtered, old), plan.dtypes[k]
        kept = times_trace(plan, k, product[r.group], plain, window)
        moved.append(Filtered(_plus(kept, new, dtype), _plus(late, new_filtered, dtype)))
    return FilteredTrace(moved)


def _moved_once(plan: Plan, kappa: float, trace: FilteredTrace, window: WindowData) -> FilteredTrace:
    """Over one step: ε moves, and then ε̄ ← κ ε̄ + ε, each in its place."""
    whole, fresh = suffix_products(plan, window)
    moved = []
    for k, (r, (plain, filtered)) in enumerate(zip(plan.relations, trace.pairs, strict=True)):
        new = moved_trace(plan, k, plain, whole[r.group], fresh[k], window)
        moved.append(Filtered(new, jax.tree.map(lambda old, e: kappa * old + e, filtered, new)))
    return FilteredTrace(moved)


def _plus(old: Entries, new: Entries, dtype: np.dtype) -> Entries:
    return jax.tree.map(lambda a, b: a.astype(dtype) + b, old, new)


class Fresh(NamedTuple):
    """What each step adds at the exit, per relation and state scalar, stacked over steps."""

    plain: list[Rows]
    filtered: list[Rows]


def _suffixes(plan: Plan, kappa: float, records: Any) -> tuple[tuple[list[Whole], list[Whole]], Fresh]:
    """(Q_0, R_1 D_1) per group, and Q_k F_k, R_k F_k per relation."""

    def body(
        carry: tuple[list[Whole], list[Whole], Array], step: tuple[list[AnyBlock], list[Rows]]
    ) -> tuple[tuple[list[Whole], list[Whole], Array], Fresh]:
        suffix, behind, scale = carry  # Q_k, R_{k+1} D_{k+1}, κ^{K−k}
        blocks, rows = step
        summed = [_add_diagonal(b, scale) for b in behind]
        found = Fresh(
            *(
                [late_rows(plan, k, b[r.group], rows[k], plan.dtypes[k]) for k, r in enumerate(plan.relations)]
                for b in (suffix, summed)
            )
        )
        next_suffix, next_behind = (
            [onward(q, d, plan.steep) for q, d in zip(b, blocks, strict=True)] for b in (suffix, summed)
        )
        return (next_suffix, next_behind, scale * kappa), found

    start = [unit(layout, _real(plan, g)) for g, layout in enumerate(plan.probes.layouts)]
    nothing = jax.tree.map(jnp.zeros_like, start)
    (suffix, behind, _), found = lax.scan(body, (start, nothing, jnp.ones(())), records, reverse=True)
    return (suffix, behind), found


def _add_diagonal(block: Whole, scale: Array) -> Whole:
    if not isinstance(block, list):
        return block + jnp.asarray(np.eye(len(block)), block.dtype).reshape(
            *block.shape[:2], *[1] * (block.ndim - 2)
        ) * scale.astype(block.dtype)
    return [
        [q if s != t or q is None else q + scale.astype(q.dtype) for t, q in enumerate(row)]
        for s, row in enumerate(block)
    ]


def _real(plan: Plan, g: int) -> np.dtype:
    """The real type of a group's state scalars, at least float32."""
    layout = plan.probes.layouts[g]
    wide = any(np.dtype(layout.avals[i].dtype).name in ("float64", "complex128") for i in layout.group.leaves)
    return np.dtype(np.float64 if wide else np.float32)


def e_prop(
    kappa: float = 0.0, feedback: str = "symmetric", *, key: int | Array = 0,
    feedback_rate: float = 1e-2, feedback_decay: float = 1e-4,
) -> Rule:  # fmt: skip
    """e-prop: the trace of `d_rtrl`, filtered by `kappa`, under a learning signal that `feedback` chooses.

    `kappa` stands for a readout that leaks by it a step and is no state of the model; 0 is no filter. `feedback` is
    "symmetric" (the gradient of the loss), "random" (the output error through fixed random matrices) or "adaptive"
    (matrices that follow the readout at `feedback_rate`, with `feedback_decay`). `key` (a number or a `jax.random` key)
    draws the matrices: two learners with the same key have the same feedback, so give each seed of an experiment a key
    of its own.

    >>> print(e_prop(0.9))
    e_prop(kappa=0.9)
    >>> print(e_prop(feedback="random", key=1))
    e_prop(kappa=0.0, feedback='random')
    """
    kappa = check_decay("e_prop", "kappa", kappa)
    if not isinstance(feedback, str) or feedback not in ("symmetric", "random", "adaptive"):
        raise ArgumentError(
            f"`e_prop` takes a `feedback` of 'symmetric', 'random' or 'adaptive', got {short(feedback)}."
        )
    if feedback == "symmetric":
        return _symmetric(kappa)
    key = check_key(f"`e_prop` with {feedback} feedback", key)
    feedback_decay = check_decay("e_prop", "feedback_decay", feedback_decay)
    feedback_rate = check_number("e_prop", "feedback_rate", feedback_rate, 0, math.inf, "above 0", ends="()")
    options: dict[str, object] = {"kappa": kappa, "feedback": feedback, "key": key}
    if feedback == "random":
        return _by_feedback(options, "fixed random feedback", kappa, key, None, 0.0)
    options |= {"feedback_rate": feedback_rate, "feedback_decay": feedback_decay}
    return _by_feedback(options, "adaptive feedback", kappa, key, feedback_rate, feedback_decay)


def _by_feedback(
    options: dict[str, object], how: str, kappa: float, key: Array, rate: float | None, decay: float
) -> Rule:
    def transport(
        facts: Facts, sites: frozenset[int] | None = None, trace_dtype: DTypeLike | None = None
    ) -> Transport[GuidedTrace]:
        return guided_transport(facts, feedback_source(facts, key, rate, decay), kappa, sites, trace_dtype)

    def verdict(facts: Facts, param: int) -> Verdict:
        return other_signal_verdict(
            facts, param, f"the learning signal is {how} of the output error, not the gradient of the loss"
        )

    return Rule("e_prop", transport, verdict, options, needs_loss=rate is not None)


def _symmetric(kappa: float) -> Rule:
    if kappa == 0:
        return replace(d_rtrl(), name="e_prop", options={"kappa": kappa})

    def verdict(facts: Facts, param: int) -> Verdict:
        how = f"its trace is low-pass filtered by {kappa:g} and meets the loss of each step alone"
        plain = other_recurrence_verdict(facts, param, f"{how}, which is not BPTT for any window")
        traced = relations_of(facts, param)
        untraced = {j for j in facts.sites_of(param) if OpNode(j) in facts.live} - {r.site for r in traced}
        return with_least_window(facts, param, plain, traced_elements(facts, traced), own_step=not untraced)

    return Rule("e_prop", partial(filtered_transport, kappa=kappa), verdict, {"kappa": kappa})
