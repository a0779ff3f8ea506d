"""Credit as published: the loss of a step in its new states meets the trace that already includes the step.

    g = ∂ℓ_t/∂θ |direct  +  s · ε_t  +  r · ε_{t−1}        s = ∂ℓ_t/∂h_t        r = ∂ℓ_t/∂h_{t−1}, not by way of h_t

By default the loss of a window goes through the whole of its steps, g = ∂L/∂θ |h_0 fixed + ∂L/∂h_0 · ε_0, and meets
what a rule leaves out one step earlier, which is nearer to BPTT. Papers define their rules by the formula above, for an
update at every step: rules take it with `credit="state"`, for windows of one step. Where a trace holds all that there
is, both are the gradient (docs/mathematics.md, 5).

The direct term is what the states of a trace do not account for: δ − s · F at the output of a weight op, where δ is the
loss of the step there, all of it. Where the step itself shows that the loss sees an op through these states alone, it
is zero, and nothing of it is computed; nor is a term of states that the loss does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from .._arguments import short
from .._errors import ArgumentError
from ..compiler.analysis import Elements, Facts
from ..runtime import (
    FusedCredit,
    Plan,
    Signal,
    Transport,
    WindowData,
    add_to,
    differentiable,
    site_math,
    without_past,
)
from ..runtime.traces import accounted_by_states, shown_by_states
from ._own_loss import HeldStates, OwnLoss, StepGradients, own_loss_of, plan_own_loss
from ._rule import Rule
from ._verdicts import Verdict, with_own_step

T = TypeVar("T")

# (gradients of the step's loss, the window) -> s · F at the outputs of weight ops, by site
ThroughStates = Callable[[StepGradients, WindowData], Mapping[int, Array]]


class _Records(NamedTuple):
    """What the transport reads of a step, and the plan's D and F."""

    inner: Any
    blocks: Any


def check_credit(rule: str, credit: object) -> bool:
    """Whether credit is that of the states; raises for what is neither of both."""
    if not isinstance(credit, str) or credit not in ("step", "state"):
        raise ArgumentError(
            f'`{rule}`: `credit` is {short(credit)}; expected "step" (the loss goes through the whole last step) or '
            '"state" (the published definition: the loss in the new states meets the trace of this step).'
        )
    return credit == "state"


def state_credit(plan: Plan, transport: Transport[T], facts: Facts | None = None) -> Transport[T]:
    """A transport by position, under the published credit, for windows of one step.

    `facts` are those of the step with its ops cut, where the plan reads it with nothing cut.
    """
    if not plan.relations:
        return transport
    sites = frozenset(r.site for r in plan.relations)
    direct = sites - accounted_by_states(plan, facts or plan.facts)
    own_loss = plan_own_loss(plan, direct)

    def reaching(leaves: frozenset[int]) -> frozenset[int]:
        groups = {plan.facts.group_of_leaf[i] for i in leaves}
        return frozenset(r.site for r in plan.relations if r.group in groups)

    taken = _Taken(own_loss, sites, reaching(own_loss.new), reaching(own_loss.old))
    if not direct:
        return _on_states(plan.facts, transport, taken, lambda gradients, window: {})

    def through(gradients: StepGradients, window: WindowData) -> dict[int, Array]:
        fixed = plan.recorder.fixed(window)
        step = plan.recorder.read(fixed, _only_step(window.records.blocks))
        new, out = plan.vectors(gradients.new), {}
        for k, r in enumerate(plan.relations):
            if r.site in direct:
                add_to(out, r.site, plan.driven_dot(k, new[r.group], step, fixed))
        return out

    each = transport.each_step
    recorded = replace(
        transport,
        each_step=replace(each, record=lambda *step: _Records(each.record(*step), plan.recorder.record(*step))),
        move=lambda trace, window: transport.move(trace, _inner(window)),
    )
    return _on_states(plan.facts, recorded, taken, through, _inner)


def state_credit_of_all(facts: Facts, sites: Sequence[int], transport: Transport[T]) -> Transport[T]:
    """A transport whose trace is one on all states, under the published credit: the loss is taken in all new states."""
    leaves = tuple(i for i in differentiable(facts) if i not in facts.unreached)
    every = frozenset(sites)
    own_loss = own_loss_of(
        facts, sorted(every - shown_by_states(facts, leaves, sites)), [HeldStates(leaves, leaves, frozenset())]
    )

    def through(gradients: StepGradients, window: WindowData) -> Mapping[int, Array]:
        return {j: bars[0] for j, bars in window.pull(gradients.new)[1].items()}

    none: frozenset[int] = frozenset()
    taken = _Taken(own_loss, every, every if own_loss.new else none, every if own_loss.old else none)
    return _on_states(facts, transport, taken, through)


class _Taken(NamedTuple):
    """What of the loss of a step is taken where: at the outputs of `own_loss.sites`, which have a direct term.

    Of `sites`, those in `new` have a trace of new states that the loss sees, those in `old` one of old states.
    """

    own_loss: OwnLoss
    sites: frozenset[int]
    new: frozenset[int]
    old: frozenset[int]


def _on_states(
    facts: Facts, transport: Transport[T], taken: _Taken, through: ThroughStates,
    inner: Callable[[WindowData], WindowData] = lambda window: window,
) -> Transport[T]:  # fmt: skip
    """A transport under the published credit; `inner` gives the window as the transport itself would have seen it."""
    credit = _StateCredit(facts, transport, taken, through, inner)
    return replace(
        transport,
        credit=credit.credit,
        signal=Signal(credit.signal, taken.sites, taken.own_loss.seen),
        fused=FusedCredit(at_exit=credit.at_exit, rows_at_exit=credit.rows_at_exit),
    )


@dataclass(frozen=True, eq=False)
class _StateCredit:
    facts: Facts
    transport: Transport[Any]
    taken: _Taken
    through: ThroughStates
    inner: Callable[[WindowData], WindowData]

    def signal(self, trace: Any, *step: Any) -> StepGradients:
        return self.taken.own_loss(*step)

    def credit(self, trace: Any, g: Mapping[int, Array], window: WindowData) -> dict[int, Array]:
        """The direct terms, and r · ε_{t−1}."""
        if window.steps != 1:
            raise ArgumentError(
                'A rule with `credit="state"` is defined for an update at every step: take `window=1`, not '
                f"{window.steps}. `value_and_grad` sums the gradients of all steps of a sequence that it is given."
            )
        gradients = _only_step(window.signals)
        accounted = self.through(gradients, window) if gradients.ops else {}
        out = {}
        for j, bar in gradients.ops.items():
            rest = bar - accounted[j].astype(bar.dtype) if j in accounted else bar
            out[j] = site_math.grad(self.facts.sites[j], window.fixed[j], window.data(j), rest[None])
        if not self.taken.old:
            return out
        old = gradients.old
        if window.resets is not None:  # what the loss reads of a state that has just started again owes nothing
            old = without_past(window.resets[0], old)
        terms = self.transport.credit(trace, *self._meeting(old, window))
        for j, (data, bar) in self.transport.fused.in_product(trace, *self._meeting(old, window)).items():
            add_to(terms, j, site_math.grad(self.facts.sites[j], window.fixed[j], (data,), bar))
        for j in self.taken.old & terms.keys():
            add_to(out, j, terms[j])
        return out

    def at_exit(self, trace: Any, window: WindowData) -> dict[int, Array]:
        """s · ε_t, read off the trace that has moved."""
        return self._at_exit(self.transport.credit, trace, window)

    def rows_at_exit(self, trace: Any, window: WindowData) -> dict[int, tuple[Array, Array]]:
        """The part of it that is a product of data and cotangents."""
        return self._at_exit(self.transport.fused.in_product, trace, window)

    def _at_exit(self, taken: Callable[..., dict[int, T]], trace: Any, window: WindowData) -> dict[int, T]:
        if not self.taken.new:
            return {}
        window = window._replace(entry_states=window.exit_states)
        terms = taken(trace, *self._meeting(_only_step(window.signals).new, window))
        return {j: term for j, term in terms.items() if j in self.taken.new}

    def _meeting(self, bars: Mapping[int, Array], window: WindowData) -> tuple[dict[int, Array], WindowData]:
        """Cotangents of all states, zero where there are none, and the window, as the transport takes them."""
        states = window.entry_states
        return {i: bars.get(i, jnp.zeros_like(states[i])) for i in self.facts.group_of_leaf}, self.inner(window)


def _inner(window: WindowData) -> WindowData:
    return window._replace(records=window.records.inner)


def _only_step(tree: Any) -> Any:
    """What was read of the only step of a window."""
    return jax.tree.map(lambda a: a[0], tree)


def state_rule(
    name: str, options: Mapping[Any, object], transport: Callable[..., Transport[Any]],
    verdict: Callable[[Facts, int], Verdict], traced: Callable[[Facts, int], Elements], **more: Any,
) -> Rule:  # fmt: skip
    """A rule under the published credit; `verdict` is on its trace alone, `traced` the elements that have one."""

    def at_own_step(facts: Facts, param: int) -> Verdict:
        return with_own_step(facts, param, verdict(facts, param), traced(facts, param), transport)

    return Rule(name, transport, at_own_step, {**options, "credit": "state"}, **more)
