"""Weight ops computed in another, faster way than the step does."""

from __future__ import annotations

from collections.abc import Callable

from jax import Array

from .._compat import Literal, is_concrete
from .._machine import Machine, machine
from ..compiler.analysis import Facts, memoised
from ..compiler.ir import Step
from ..compiler.opened import Weights, WeightSite, fixed_operands


def planned(facts: Facts) -> dict[int, Callable[[Array], Callable[..., Array]]]:
    """Per site, w → (u → y) where its family has a faster way to compute the op, on the machine in force."""
    return _planned(facts, machine())


@memoised
def _planned(facts: Facts, _: Machine) -> dict[int, Callable[[Array], Callable[..., Array]]]:
    """Per site, w → (u → y) where its family has a faster way to compute the op."""
    found = {}
    for j, fixed in enumerate(fixed_operands(facts.step, facts.sites)):
        site = facts.sites[j]
        known = all(a is not None and is_concrete(a) for a in fixed)
        plan = site.rule.plan(site.call, fixed) if known and not site.loops else None
        if plan is not None and _gives_one_value(facts.step, site):
            found[j] = plan
    return found


def _gives_one_value(step: Step, site: WeightSite) -> bool:
    """Whether nothing reads further outputs of an op. Inside a branch an op with several is run as it is."""
    first, *inner = site.at
    if inner:
        return True
    others = set(step.jaxpr.eqns[first].outvars[1:])
    read = [*(v for eqn in step.jaxpr.eqns for v in eqn.invars), *step.jaxpr.outvars] if others else []
    return not any(v in others for v in read if not isinstance(v, Literal))


def prepared(facts: Facts, weights: Weights) -> Weights:
    """Weights with the faster ops that these make."""
    return weights._replace(ops={j: plan(weights.weight[j]) for j, plan in planned(facts).items()})
