"""The derivative of one step's loss in its hidden groups, through the states that the step itself computes.

    s = ∂ℓ/∂h'        r = ∂ℓ/∂h  not by way of h'        δ_j = ∂ℓ/∂y_j

ℓ is the loss of this step alone. A state that is made of other new states of its group (a spike of its membrane) counts
for itself, and they for what is left: the trace of the spike holds their part already. The new states of other groups
count as what the loss sees a group through. Recurrence by weight ops is left out of r, as it is left out of the trace:
ops that read old states only, on their way to states and to no output. For a group that the loss sees in no other way
they are left in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from .._compat import JaxprEqn, common_dtype, is_inexact, open_jaxpr
from ..compiler.analysis import Facts, OpNode, OutputNode, is_steep
from ..compiler.ir import Address, Detach, Role, detaching_vjp, interpret
from ..compiler.opened import OpenStep
from ..runtime import Plan, StepOutputs, with_masked_products
from ._source import OutputLoss, errors_of

R = TypeVar("R")

# Outputs of a step, and the way back from them to a group's old states and to its new ones.
Pulled: TypeAlias = tuple[dict[int, Array], Callable[[dict[int, Array]], tuple[dict[int, Array], dict[int, Array]]]]


class StepGradients(NamedTuple):
    """Per state leaf, the loss in its new (s) and its old value (r); per site, the loss in y (δ)."""

    new: dict[int, Array]
    old: dict[int, Array]
    ops: dict[int, Array]


class HeldStates(NamedTuple):
    """States whose old and new values the loss is differentiated in, together, while some ops are cut.

    `held` are those of `leaves` whose new values count by themselves; the others count as what they are made of.
    """

    leaves: tuple[int, ...]
    held: tuple[int, ...]
    cut: frozenset[int]


@dataclass(frozen=True, eq=False)
class OwnLoss:
    """How to read `StepGradients` off a step, for some sites and sets of states.

    `old` and `new` are the leaves of which the loss may see the old state, and the new one. In a `steep` step, an error
    that does not arrive at a slope is zero whatever the slope.
    """

    facts: Facts
    sites: tuple[int, ...]
    watched: tuple[HeldStates, ...]
    old: frozenset[int]
    new: frozenset[int]
    steep: bool

    @property
    def seen(self) -> frozenset[int]:
        """The leaves of which the loss sees the old or the new state."""
        return self.old | self.new

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ran: StepOutputs, step_data: Any, loss_of: OutputLoss,
        loss_weight: Array | float,
    ) -> StepGradients:  # fmt: skip
        """Derivative rules, which need not be linear, see the loss times its weight, which is divided out again.

        The errors are made as the window makes its own, of the weight: XLA then computes the way back once for both.
        """
        pull = pull_to_ops(self.facts, self.sites, leaves, weights, ran.ys)
        _, errors = errors_of(ran.outputs, step_data, loss_of, loss_weight)
        gradients = StepGradients({}, {}, {j: _whole(d, loss_weight) for j, d in self._pulled(pull, errors)[0].items()})
        for group in self.watched:
            pull_states = _from_states(self.facts, group, leaves, weights, ran.ys)[1]
            for by_leaf, bars in zip((gradients.old, gradients.new), self._pulled(pull_states, errors), strict=True):
                by_leaf.update({i: _whole(bar, loss_weight) for i, bar in bars.items()})
        return gradients

    def _pulled(self, pull: Callable[[dict[int, Array]], R], errors: dict[int, Array]) -> R:
        return with_masked_products(pull, errors) if self.steep else pull(errors)


def plan_own_loss(plan: Plan, sites: Collection[int] | None = None) -> OwnLoss:
    """For the groups of a plan, each seen through the others; a state counts by itself if it has a slot in the plan.

    `sites` are those whose output the loss is taken in, all of the plan if None.
    """
    facts = plan.facts
    driven = {t for _, t, _ in facts.edges.between(OpNode, OpNode)}
    shown = {s for s, _, _ in facts.edges.between(OpNode, OutputNode)}  # a loss reads them beside the states
    ops = (j for j in facts.cut if facts.remembers(OpNode(j)))
    recurrent = frozenset(j for j in ops if OpNode(j) not in driven and OpNode(j) not in shown)
    groups = []
    for g in plan.groups:
        leaves = tuple(sorted(facts.groups[g].leaves))
        slots = {slot.leaf for slot in plan.reader.layouts[g].slots}
        group = HeldStates(leaves, tuple(i for i in leaves if i in slots), recurrent)
        groups.append(group if any(_sees(facts, group)) else group._replace(cut=frozenset()))
    sites = {r.site for r in plan.relations} if sites is None else sites
    return own_loss_of(facts, sorted(sites), groups)


def own_loss_of(facts: Facts, sites: Sequence[int], watched: Sequence[HeldStates]) -> OwnLoss:
    """The loss of a step in the outputs of some sites, and in sets of states that it sees each by itself."""
    pairs = [_sees(facts, group) for group in watched]
    old, new = (frozenset().union(*leaves) for leaves in zip(*pairs, strict=True)) if pairs else (frozenset(),) * 2
    return OwnLoss(facts, tuple(sites), tuple(watched), old, new, is_steep(facts))


def pull_to_ops(
    facts: Facts, sites: Sequence[int], leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
) -> Callable[[dict[int, Array]], tuple[dict[int, Array]]]:
    """The pull-back from the outputs of a step to the outputs of weight ops, which have given these values."""
    opened, n = OpenStep(facts.step, facts.sites, frozenset()), len(facts.states)

    def run(deltas: dict[int, Array]) -> dict[int, Array]:
        outputs = opened(leaves, deltas, weights, ys)[0][n:]
        return {k: outputs[k] for k in _inexact(facts)}

    return jax.vjp(run, opened.no_deltas(sites))[1]


def _from_states(
    facts: Facts, group: HeldStates, leaves: Sequence[Array], weights: Sequence[Array] | None, ys: Mapping[int, Array]
) -> Pulled:
    """Outputs of a step, and the pull-back from them to old states, and to new ones, held."""
    opened, n = OpenStep(facts.step, facts.sites, group.cut), len(facts.states)
    states = facts.step.states_of(leaves)

    def run(detach: Detach, old: dict[int, Array], new: dict[int, Array]) -> dict[int, Array]:
        outs, _ = opened(leaves, {}, weights, ys, held=new, states=old, detach=detach)
        return {k: outs[n + k] for k in _inexact(facts)}

    old = {i: states[i] for i in group.leaves}
    return detaching_vjp(run, old, {i: jnp.zeros(old[i].shape, old[i].dtype) for i in group.held})


def _inexact(facts: Facts) -> list[int]:
    return [k for k, leaf in enumerate(facts.step.select(Role.OUTPUT)) if is_inexact(leaf.aval)]


def _sees(facts: Facts, group: HeldStates) -> tuple[set[int], set[int]]:
    """The leaves at whose old states, and at whose new ones, a derivative of the outputs arrives."""

    def pulled(leaves: list[Array], errors: dict[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
        return _from_states(facts, group, leaves, None, {})[1](errors)

    outputs = facts.step.select(Role.OUTPUT)
    leaves, errors = [leaf.aval for leaf in facts.step.ins], {k: outputs[k].aval for k in _inexact(facts)}
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pulled)(leaves, errors))
    error = object()

    def made_of(_: Address, eqn: JaxprEqn, values: list[object]) -> list[object]:
        return [error if any(v is error for v in values) else None] * len(eqn.outvars)

    args = [None] * len(leaves) + [error] * len(errors)
    arrives = [v is error for v in interpret(jaxpr, [None] * len(consts), args, made_of)]
    # A dictionary of leaves is laid out in their order, the old ones before the new ones.
    old, new = sorted(group.leaves), sorted(group.held)
    by_old = {i for i, hit in zip(old, arrives[: len(old)], strict=True) if hit}
    return by_old, {i for i, hit in zip(new, arrives[len(old) :], strict=True) if hit}


def _whole(a: Array, loss_weight: Array | float) -> Array:
    wide = a.astype(common_dtype(a.dtype, jnp.float32))
    return (wide / loss_weight).astype(wide.dtype)
