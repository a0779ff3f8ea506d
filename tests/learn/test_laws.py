"""The laws of one formula for every rule, on random models and random ways to cut a sequence into windows.

- transport exact ⇒ gradients summed over windows equal BPTT, for every window length and every split of the sequence;
- one window over the sequence ⇒ every rule equals BPTT;
- where windows are cut matters only through the approximation of transport: what is exact does not depend on it;
- a parameter that reaches no hidden state (a readout) is exact under every rule.

Verdicts are judged with windows shorter than the sequence. BPTT is `jax.grad` over `lax.scan`.
"""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learn.harness import in_numpy
from tests.learn.oracle import bptt, relative_error
from tests.learn.random_models import build, data, models

import etrax
from etrax.compiler.ir import leaves_with_paths

pytestmark = pytest.mark.timeout(3600)  # many models in one test

T = 6
FOLLOWING = [etrax.tbptt(), etrax.d_rtrl(), etrax.pp_prop(), etrax.e_prop(), etrax.uoro(0), etrax.ottt(0.7),
             etrax.rflo(0.7), etrax.ostl(), etrax.snap(2), etrax.synthetic(), etrax.rtrl()]  # fmt: skip
EVERY = [*FOLLOWING, etrax.e_prop(0.5), etrax.e_prop(feedback="random", key=0), etrax.three_factor()]

# A split of the sequence into pieces, each with a window length of its own.
splits = st.lists(st.tuples(st.integers(1, T), st.integers(1, 3)), min_size=1, max_size=T)


def pieces(split):
    """(start, stop, window) until the sequence ends."""
    at = 0
    for length, window in split:
        if at < T:
            yield at, min(at + length, T), window
            at = min(at + length, T)
    if at < T:
        yield at, T, 2


def gradients(model, rule, cut):
    """Verdicts, and gradients of the mean loss summed over pieces."""
    x, target = data(T)
    learner = etrax.compile(model.step, rule, x[0], params=model.params, hidden=model.hidden)
    state, total = learner.init(), None
    for start, stop, window in cut:
        run = learner.value_and_grad(model.loss, window=window, reduction="sum")
        (_, grads), state = in_numpy(run, model.params, state, x[start:stop], target[start:stop])
        total = grads if total is None else jax.tree.map(np.add, total, grads)
    assert int(state.step) == T
    return learner.report.verdicts, {path: g / T for path, g in leaves_with_paths(total)}


def truth(model):
    x, target = data(T)
    return dict(leaves_with_paths(bptt(model, (x,), target, in_numpy)))


def check_exact(verdicts, found, want):
    for path, g in found.items():
        if verdicts[path].kind in ("exact", "unused"):
            error = relative_error(g, want[path])
            assert error < 1e-8, (path, error, verdicts[path])


def laws(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, print_blob=True)


def exact_transport(spec, split):
    model = build(spec)
    want, cut = truth(model), list(pieces(split))
    verdicts, found = gradients(model, etrax.rtrl(), cut)
    assert {v.kind for v in verdicts.values()} <= {"exact", "unused"}
    check_exact(verdicts, found, want)
    check_exact(*gradients(model, etrax.d_rtrl(), cut), want)


def one_window(spec, rule):
    model = build(spec)
    want = truth(model)
    _, found = gradients(model, rule, [(0, T, T)])
    assert max(relative_error(g, want[path]) for path, g in found.items()) < 1e-8


def readouts(spec, rule, split):
    model = build(spec)
    verdicts, found = gradients(model, rule, list(pieces(split)))
    last = len(spec)
    assert all(verdicts[last, name].kind == "exact" for name in ("out", "bias"))
    check_exact(verdicts, found, truth(model))


LAWS = {
    "exact transport is BPTT": (exact_transport, (models, splits)),
    "one window is BPTT": (one_window, (models, st.sampled_from(FOLLOWING))),
    "readouts are exact": (readouts, (models, st.sampled_from(EVERY), splits)),
}
COUNTS = [pytest.param(3, id="few"), pytest.param(30, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("law", LAWS)
def test_law(law, examples):
    check, drawn = LAWS[law]
    laws(examples)(given(*drawn)(check))()
