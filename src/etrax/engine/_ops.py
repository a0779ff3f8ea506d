"""Weight ops computed in another way than the step does: a faster one, or for all steps of a window at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jax
from jax import lax

from .._compat import bind
from ..analysis import Facts
from ._weights import Weights, fixed_operands, operands_ahead


@lru_cache(maxsize=32)
def _planned(facts: Facts) -> dict[int, Callable[[Any], Callable[..., Any]]]:
    """Per site, w → (u → y) where its family has a faster way to compute the op."""
    found = {}
    for j, fixed in enumerate(fixed_operands(facts.step, facts.sites)):
        site = facts.sites[j]
        known = not any(a is None or isinstance(a, jax.core.Tracer) for a in fixed)
        plan = site.rule.plan(site.call, fixed) if known and not site.loops else None
        if plan is not None:
            found[j] = plan
    return found


def prepared(facts: Facts, weights: Weights) -> Weights:
    """Weights with the faster ops that these make."""
    held = lax.stop_gradient(weights.weight)
    return weights._replace(ops={j: plan(held[j]) for j, plan in _planned(facts).items()})


def ahead(facts: Facts, params: Sequence[Any], weights: Weights, inputs: Sequence[Any]) -> Mapping[int, Any]:
    """Outputs and data, stacked over the window, of ops that read inputs only: one product for all its steps."""
    chosen = [j for j, s in enumerate(facts.sites) if s.from_inputs and s.rule.joins_steps and not s.loops]
    if not chosen or inputs[0].shape[0] == 1:
        return {}

    def one(x: Sequence[Any]) -> dict[int, tuple[Any, tuple[Any, ...]]]:
        found = {}
        for j, (eqn, values) in operands_ahead(facts.step, facts.sites, chosen, params, x).items():
            site = facts.sites[j]
            values[site.operand] = weights.weight[j]
            found[j] = (bind(eqn, values)[0], tuple(values[i] for i in site.rule.varying(site.call)))
        return found

    return lax.stop_gradient(jax.vmap(one)(list(inputs)))
