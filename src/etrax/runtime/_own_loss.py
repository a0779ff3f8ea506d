"""The derivative of one step's loss in its hidden groups, through the states that the step itself computes.

    s = ∂ℓ/∂h'        r = ∂ℓ/∂h  not by way of h'        δ_j = ∂ℓ/∂y_j

ℓ is the loss of this step alone. A state that is made of other new states of its group (a spike of its membrane) counts
for itself, and they for what is left: the trace of the spike holds their part already. The new states of other groups
count as what the loss sees a group through. Recurrence by weight ops is left out of r, as it is left out of the trace:
ops that read old states only, on their way to states. For a group that the loss sees in no other way they are left in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from .._compat import JaxprEqn, common_dtype, is_inexact, open_jaxpr
from ..compiler.analysis import Facts, Group, OpNode
from ..compiler.ir import Detach, Role, Site, detaching_vjp, interpret
from ..compiler.opened import OpenStep
from ._plan import Plan
from ._source import OutputLoss, errors_of
from ._transport import StepOutputs
from ._zeros import with_masked_products
from .blocks import Vector

R = TypeVar("R")

# Outputs of a step, and the way back from them to a group's old states and to its new ones.
Pulled: TypeAlias = tuple[dict[int, Array], Callable[[dict[int, Array]], tuple[dict[int, Array], dict[int, Array]]]]


class StepGradients(NamedTuple):
    """Per group and state scalar, the loss in its new (s) and its old states (r); per site, the loss in y (δ)."""

    new: dict[int, Vector]
    old: dict[int, Vector]
    ops: dict[int, Array]


@dataclass(frozen=True, eq=False)
class OwnLoss:
    """How to read `StepGradients` off a step, for the groups and sites of a plan; per group, the ops that are cut.

    `old` are the groups whose old states the loss may see, `seen` the leaves of which it sees the old or the new state.
    """

    plan: Plan
    cuts: dict[int, frozenset[int]]
    old: frozenset[int]
    seen: frozenset[int]

    def __call__(
        self, leaves: Sequence[Array], weights: Sequence[Array], ran: StepOutputs, step_data: Any, loss_of: OutputLoss,
        loss_weight: Array | float,
    ) -> StepGradients:  # fmt: skip
        """Derivative rules, which need not be linear, see the loss times its weight, which is divided out again."""
        facts = self.plan.facts
        pull = _from_ops(facts, sorted({r.site for r in self.plan.relations}), leaves, weights, ran.ys)
        _, plain = errors_of(ran.outputs, step_data, loss_of)
        errors = {k: (loss_weight * e).astype(e.dtype) for k, e in plain.items()}
        found = StepGradients({}, {}, {j: _whole(d, loss_weight) for j, d in self._pulled(pull, errors)[0].items()})
        for g, cut in self.cuts.items():
            layout = self.plan.reader.layouts[g]
            old, new = self._pulled(_from_states(facts, facts.groups[g], cut, leaves, weights, ran.ys)[1], errors)
            found.new[g], found.old[g] = (
                jax.tree.map(lambda a: _whole(a, loss_weight), layout.vector(bars)) for bars in (new, old)
            )
        return found

    def _pulled(self, pull: Callable[[dict[int, Array]], R], errors: dict[int, Array]) -> R:
        """`pull(errors)`; in a steep step, an error that does not arrive at a slope is zero whatever the slope."""
        return with_masked_products(pull, errors) if self.plan.steep else pull(errors)


def plan_own_loss(plan: Plan) -> OwnLoss:
    """Which ops to cut, by group."""
    facts = plan.facts
    driven = {t for _, t, _ in facts.edges.between(OpNode, OpNode)}
    recurrent = frozenset(j for j in facts.cut if facts.remembers(OpNode(j)) and OpNode(j) not in driven)
    cuts, old, seen = {}, set(), set()
    for g in sorted({r.group for r in plan.relations}):
        cuts[g] = recurrent
        by_old, by_new = _sees(facts, facts.groups[g], recurrent)
        if not by_old and not by_new:
            cuts[g] = frozenset()
            by_old, by_new = _sees(facts, facts.groups[g], cuts[g])
        if by_old:
            old.add(g)
        seen |= by_old | by_new
    return OwnLoss(plan, cuts, frozenset(old), frozenset(seen))


def _from_ops(
    facts: Facts, sites: Sequence[int], leaves: Sequence[Array], weights: Sequence[Array], ys: Mapping[int, Array]
) -> Callable[[dict[int, Array]], tuple[dict[int, Array]]]:
    """The pull-back from the outputs of a step to the outputs of weight ops, which have given these values."""
    opened, n = OpenStep(facts.step, facts.sites, frozenset()), len(facts.states)

    def run(deltas: dict[int, Array]) -> dict[int, Array]:
        outputs = opened(leaves, deltas, weights, ys)[0][n:]
        return {k: outputs[k] for k in _inexact(facts)}

    return jax.vjp(run, opened.no_deltas(sites))[1]


def _from_states(
    facts: Facts, group: Group, cut: frozenset[int], leaves: Sequence[Array], weights: Sequence[Array] | None,
    ys: Mapping[int, Array],
) -> Pulled:  # fmt: skip
    """Outputs of a step, and the pull-back from them to a group's old states, and to its new ones, held."""
    opened, n, states = OpenStep(facts.step, facts.sites, cut), len(facts.states), facts.step.states_of(leaves)

    def run(detach: Detach, old: dict[int, Array], new: dict[int, Array]) -> dict[int, Array]:
        outs, _ = opened(leaves, {}, weights, ys, held=new, states=old, detach=detach)
        return {k: outs[n + k] for k in _inexact(facts)}

    old = {i: states[i] for i in group.leaves}
    return detaching_vjp(run, old, {i: jnp.zeros(a.shape, a.dtype) for i, a in old.items()})


def _inexact(facts: Facts) -> list[int]:
    return [k for k, leaf in enumerate(facts.step.select(Role.OUTPUT)) if is_inexact(leaf.aval)]


def _sees(facts: Facts, group: Group, cut: frozenset[int]) -> tuple[set[int], set[int]]:
    """The leaves of a group at whose old states, and at whose new ones, a derivative of the outputs arrives."""

    def pulled(leaves: list[Array], errors: dict[int, Array]) -> tuple[dict[int, Array], dict[int, Array]]:
        return _from_states(facts, group, cut, leaves, None, {})[1](errors)

    outputs = facts.step.select(Role.OUTPUT)
    leaves, errors = [leaf.aval for leaf in facts.step.ins], {k: outputs[k].aval for k in _inexact(facts)}
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(pulled)(leaves, errors))
    error = object()

    def made_of(_: Site, eqn: JaxprEqn, values: list[object]) -> list[object]:
        return [error if any(v is error for v in values) else None] * len(eqn.outvars)

    args = [None] * len(leaves) + [error] * len(errors)
    found = [v is error for v in interpret(jaxpr, [None] * len(consts), args, made_of)]
    leaves_of = sorted(group.leaves)  # as a dictionary of them is laid out
    half = len(leaves_of)
    return {i for i, f in zip(leaves_of, found[:half], strict=True) if f}, {
        i for i, f in zip(leaves_of, found[half:], strict=True) if f
    }


def _whole(a: Array, loss_weight: Array | float) -> Array:
    wide = a.astype(common_dtype(a.dtype, jnp.float32))
    return (wide / loss_weight).astype(wide.dtype)
