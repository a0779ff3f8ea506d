"""Every rule on every row of the zoo: it runs, what it calls exact is, and nothing is silently zero."""

import jax
import numpy as np
import pytest
from tests.learn.harness import in_numpy
from tests.learn.oracle import bptt, relative_error
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

T = 7
RULES = {
    str(rule): rule
    for rule in (
        etrax.rflo(0.8), etrax.e_prop(0.5), etrax.e_prop(0.3, "random", key=1), etrax.three_factor(), etrax.uoro(1),
        etrax.ottt(0.8), etrax.ostl(), etrax.snap(2),
    )
}  # fmt: skip
FAST = {"size/one_number", "chains/current_to_adaptation"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ZOO])
def test_zoo(name, rule):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    inputs, targets = model.make_inputs(T, 0), model.make_target(T, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    learner = etrax.compile(model.step, rule, *first, params=model.params, hidden=model.hidden)
    run = learner.value_and_grad(model.loss, window=3)
    (_, grads), _ = in_numpy(run, model.params, learner.init(), inputs, targets)
    want = dict(leaves_with_paths(bptt(model, inputs, targets, in_numpy)))
    for path, g in leaves_with_paths(grads):
        verdict, error = learner.report.verdicts[path], relative_error(g, want[path])
        assert np.isfinite(error), (path, verdict)
        if verdict.kind in ("exact", "unused"):
            assert error <= model.tol, (path, error, verdict)
        else:
            arrives = verdict.least_window is not None and verdict.least_window <= 3
            assert np.any(g) == arrives, (path, verdict)
