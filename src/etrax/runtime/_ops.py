"""Weight ops computed by a faster program than the step's own."""

from __future__ import annotations

from .._compat import Literal, is_concrete
from .._machine import Machine, machine
from ..compiler.analysis import Facts, memoised
from ..compiler.ir import Step
from ..compiler.opened import Weights, WeightSite, fixed_operands
from ..compiler.ops import WithWeight
from . import _site_math as site_math


def kernels_of(facts: Facts) -> dict[int, WithWeight]:
    """Per site, w → (u → y) where its family has a faster way to compute the op, on the machine in force."""
    return _kernels_on(facts, machine())


@memoised
def _kernels_on(facts: Facts, _: Machine) -> dict[int, WithWeight]:
    """`kernels_of`, remembered with the facts for each machine: making them sorts all entries of a sparse matrix."""
    products = {}
    for j, (site, fixed) in enumerate(zip(facts.sites, fixed_operands(facts.step, facts.sites), strict=True)):
        # Indices that are parameters have no values before the program runs, so that nothing can be sorted by them.
        constants = [a for a in fixed if a is not None and is_concrete(a)]
        all_constant = len(constants) == len(fixed)
        product = site_math.kernels(site).product(site.call, constants) if all_constant else None
        if product is not None and _gives_one_value(facts.step, site):
            products[j] = product
    return products


def _gives_one_value(step: Step, site: WeightSite) -> bool:
    """Whether nothing reads further outputs of an op. Inside a branch an op with several is run as it is."""
    first, *inner = site.at
    if inner:
        return True
    others = set(step.jaxpr.eqns[first].outvars[1:])
    read = [*(v for eqn in step.jaxpr.eqns for v in eqn.invars), *step.jaxpr.outvars] if others else []
    return not any(v in others for v in read if not isinstance(v, Literal))


def with_kernels(facts: Facts, weights: Weights) -> Weights:
    """Weights with the faster programs of their ops."""
    return weights._replace(ops={j: product(weights.weight[j]) for j, product in kernels_of(facts).items()})
