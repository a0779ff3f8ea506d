"""Weight ops computed in another way than the step does: a faster one, or for all steps of a window at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from jax import Array, lax

from .._compat import Literal, bind, is_concrete
from ..analysis import Facts, WeightSite
from ..ir import Step, mapped
from ._weights import Weights, fixed_operands, operands_from_inputs


@lru_cache(maxsize=32)
def _planned(facts: Facts) -> dict[int, Callable[[Array], Callable[..., Array]]]:
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
    held = lax.stop_gradient(weights.weight)
    return weights._replace(ops={j: plan(held[j]) for j, plan in _planned(facts).items()})


class KnownBefore(NamedTuple):
    """What is known of weight ops before a window runs, by site and stacked over its steps.

    `outputs` and `data` of ops that read inputs only; `shares` of the output that parts of an op's data give, which are
    inputs, and `rests`: the op over the other parts.
    """

    outputs: Mapping[int, Array]
    data: Mapping[int, tuple[Array, ...]]
    shares: Mapping[int, Array]
    rests: Mapping[int, Callable[[Array], Array]]

    def ops(self, outputs: Mapping[int, Array], shares: Mapping[int, Array]) -> dict[int, Callable[..., Array]]:
        """The ops at one step, given its slices."""
        whole = {j: lambda *_, y=y: y for j, y in outputs.items()}
        return whole | {j: lambda u, y=y, rest=self.rests[j]: rest(u) + y for j, y in shares.items()}


def known_before(facts: Facts, params: Sequence[Array], weights: Weights, inputs: Sequence[Array]) -> KnownBefore:
    """One product for all steps of a window where data are inputs."""
    sites = [s if s.rule.joins_steps and not s.loops else None for s in facts.sites]
    whole = [j for j, s in enumerate(sites) if s is not None and s.from_inputs]
    parts = [j for j, s in enumerate(sites) if s is not None and not s.from_inputs and _joins_others(s)]
    if not (whole or parts) or inputs[0].shape[0] == 1:
        return KnownBefore({}, {}, {}, {})
    held = lax.stop_gradient(weights.weight)

    def one(x: Sequence[Array]) -> tuple[dict[int, Array], dict[int, Array], dict[int, Array]]:
        outputs, data, shares = {}, {}, {}
        for j, (eqn, values) in operands_from_inputs(facts.step, facts.sites, whole + parts, params, x).items():
            site = facts.sites[j]
            values[site.operand] = held[j]
            u = tuple(values[i] for i in site.rule.varying(site.call))
            if j in parts:
                shares[j] = _over(site, site.parts_from_inputs)(held[j])(*u)
            else:
                outputs[j], data[j] = bind(eqn, values)[0], u
        return outputs, data, shares

    outputs, data, shares = lax.stop_gradient(mapped(one, list(inputs)))
    rests = {j: _over(facts.sites[j], _others(facts.sites[j]))(held[j]) for j in parts}
    return KnownBefore(outputs, data, shares, rests)


def _over(site: WeightSite, ranges: Sequence[tuple[int, int]]) -> Callable[[Array], Callable[[Array], Array]]:
    assert site.rule.narrowed is not None
    return site.rule.narrowed(site.call, ranges)


def _joins_others(site: WeightSite) -> bool:
    """Whether inputs are a part of the data: not all of it, as where a state without elements is joined to them."""
    return bool(site.parts_from_inputs) and bool(_others(site))


def _others(site: WeightSite) -> list[tuple[int, int]]:
    """The ranges of the contracted axis that are not inputs."""
    axis = site.rule.contracted(site.call)
    (data,) = site.rule.varying(site.call)
    ends = [0, *(n for ranges in site.parts_from_inputs for n in ranges), site.call.operands[data].shape[axis]]
    return [(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if b > a]
