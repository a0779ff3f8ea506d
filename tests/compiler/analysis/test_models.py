"""Models that try to fool the analysis: verdicts as they should be, and what is called exact is."""

import pytest

from etrax.compiler.analysis import analyse
from etrax.compiler.ir import Role
from etrax.rules._verdicts import by_position_verdict

from . import models_flow, models_weights  # noqa: F401  (they fill the table)
from .check import check_facts
from .oracle import step_of
from .small import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    model, verdicts = MODELS[name]
    facts = analyse(step_of(model))
    found = {leaf.path[0]: by_position_verdict(facts, i) for i, leaf in enumerate(facts.step.select(Role.PARAM))}
    assert {path: str(verdict.kind) for path, verdict in found.items()} == verdicts, found
    if not facts.edges.problems:  # a rule that is not linear has no Jacobian
        check_facts(facts, model)
