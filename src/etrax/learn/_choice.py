"""Rules that run other rules: a choice among rules by what they are worth, and a projection on their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import jax

from .._errors import ArgumentError
from ..compiler.ir import PyTree, Role
from ..rules import Rule, RuleWarning, Sample
from ._memory import default_budget
from ._model import Model
from ._options import Options
from ._program import Program

if TYPE_CHECKING:
    from ._learner import Learner


def cosines(learner: Learner, sample: Sample) -> dict[int, float]:
    """By number of the parameter, the cosine of a learner's gradient and the true one."""
    meter = learner.meter(sample.loss_fn, sample.window, probes=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuleWarning)  # what a rule says of its data, the cosine says in numbers
        reading = meter.measure(learner.params, learner.init(), sample.inputs, sample.targets, key=jax.random.key(0))
    numbers = {leaf.path: i for i, leaf in enumerate(learner.model.facts.step.select(Role.PARAM))}
    return {numbers[path]: measured.cosine for path, measured in reading.parameters.items()}


def resolved(model: Model, rule: Rule, options: Options) -> Rule:
    """The rule that a model is compiled with: of a choice among rules, the one that is chosen."""
    from ._learner import Learner

    def measure(candidate: Rule, sample: Sample) -> dict[int, float]:
        # Nothing is measured of a rule whose trace does not fit into memory.
        if candidate.size(model.facts, options.trace_dtype) > default_budget():
            return {}
        return cosines(Learner(model, candidate, replace(options, mesh=None, shard=None, check_finite=False)), sample)

    return rule if rule.resolve is None else rule.resolve(rule.facts_for(model.facts), options.trace_dtype, measure)


def projected(
    model: Model, rule: Rule, options: Options, program_of: Callable[[Rule], Program]
) -> Callable[..., PyTree] | None:
    """The gradient of a call, projected on those of a rule's candidates; None for a rule that has none."""
    if rule.candidates is None:
        return None
    from ..meter import projected_gradient

    if options.mesh is not None or options.check_finite:
        option = "check_finite=True" if options.check_finite else "mesh"
        raise ArgumentError(f"`directional` runs on one device and watches no numbers: compile without `{option}`.")
    members = [program_of(member) for member in rule.candidates.rules]
    facts = rule.facts_for(model.facts)
    return projected_gradient(facts, members, rule.candidates, rule.frozen(facts))
