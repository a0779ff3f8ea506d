"""Credit as published, `credit="state"`: against formulas written by hand, and against BPTT where a trace is whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.oracle import bptt, relative_error
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

T, B, LEAK = 9, 2, 0.7
KEYS = jax.random.split(jax.random.key(0), 5)
PARAMS = {
    "w": 0.5 * jax.random.normal(KEYS[0], (3, 4)),
    "u": 0.5 * jax.random.normal(KEYS[1], (4, 4)),
    "out": jax.random.normal(KEYS[2], (4, 2)),
}
XS, YS = jax.random.normal(KEYS[3], (T, B, 3)), jax.random.normal(KEYS[4], (T, B, 2))
START = jnp.zeros((B, 4))


def step(params, h, x):
    h = LEAK * h + (1 - LEAK) * jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h @ params["out"]


def loss(output, target):
    return ((output - target) ** 2).sum()


def gradient(rule, window=1):
    learner = etrax.compile(step, rule, XS[0], params=PARAMS, hidden=START)
    (_, grads), _ = learner.value_and_grad(loss, window=window, reduction="sum")(PARAMS, learner.init(), XS, YS)
    return grads


def by_hand(make_trace):
    """Σ_t ∂ℓ_t/∂h_t · ε_t and the readout's own gradient; `make_trace(history)` is ε_t for w and for u.

    `history` has, step by step, the data of both weights, the slope of the new state in y and the own recurrence.
    """
    grads, h, history = jax.tree.map(jnp.zeros_like, PARAMS), START, []
    for x, y in zip(XS, YS, strict=True):
        a = x @ PARAMS["w"] + h @ PARAMS["u"]
        slope = (1 - LEAK) * (1 - jnp.tanh(a) ** 2)
        history.append(((x, h), slope, LEAK + slope * jnp.diag(PARAMS["u"])))
        h = LEAK * h + (1 - LEAK) * jnp.tanh(a)
        error = 2 * (h @ PARAMS["out"] - y)
        signal = error @ PARAMS["out"].T
        for name, trace in zip(("w", "u"), make_trace(history), strict=True):
            grads[name] += (signal[:, None] * trace).sum(0)
        grads["out"] += h.T @ error
    return grads


def moved_by(recurrence):
    """ε_t = d_t ε_{t−1} + u_t ⊗ f_t, the recurrence d_t chosen of an entry of the history."""

    def traces(history):
        out = []
        for k in (0, 1):
            trace = jnp.zeros(())
            for data, slope, own in history:
                trace = recurrence(own)[:, None] * trace + data[k][:, :, None] * slope[:, None]
            out.append(trace)
        return out

    return traces


def of_inputs(history):
    """OTTT: f_t ⊗ x̂_t."""
    out = []
    for k in (0, 1):
        mean = 0
        for data, _, _ in history:
            mean = LEAK * mean + data[k]
        out.append(mean[:, :, None] * history[-1][1][:, None])
    return out


def factored(alpha):
    """pp-prop: f̂_t / (1 − α^t) ⊗ x̂_t, with the leak alone as the recurrence."""

    def traces(history):
        out = []
        for k in (0, 1):
            mean, back = 0, 0
            for data, slope, _ in history:
                mean, back = alpha * mean + data[k], alpha * LEAK * back + (1 - alpha) * slope
            out.append(mean[:, :, None] * back[:, None] / (1 - alpha ** len(history)))
        return out

    return traces


PUBLISHED = {
    "snap(1)": (etrax.snap(1), etrax.snap(1, credit="state"), moved_by(lambda own: own)),
    "d_rtrl": (etrax.d_rtrl(), etrax.d_rtrl(credit="state"), moved_by(lambda own: jnp.full_like(own, LEAK))),
    "e_prop": (etrax.e_prop(), etrax.e_prop(credit="state"), moved_by(lambda own: jnp.full_like(own, LEAK))),
    "rflo": (etrax.rflo(LEAK), etrax.rflo(LEAK, credit="state"), moved_by(lambda own: jnp.full_like(own, LEAK))),
    "ottt": (etrax.ottt(LEAK), etrax.ottt(LEAK, credit="state"), of_inputs),
    "pp_prop": (etrax.pp_prop(0.8), etrax.pp_prop(0.8, credit="state"), factored(0.8)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published(name):
    plain, rule, traces = PUBLISHED[name]
    grads, want = gradient(rule), by_hand(traces)
    for leaf, expected in want.items():
        assert relative_error(grads[leaf], expected) < 1e-12, leaf
    # The default is another number: the loss meets what is left out one step earlier.
    default = gradient(plain)
    assert relative_error(default["u"], want["u"]) > 1e-3


def test_snap_of_all_states_is_rtrl():
    for rule in (etrax.snap(2, credit="state"), etrax.snap(5, credit="state")):
        for leaf, expected in gradient("rtrl").items():
            assert relative_error(gradient(rule)[leaf], expected) < 1e-12


RULES = {
    "d_rtrl": etrax.d_rtrl(credit="state"),
    "snap(1)": etrax.snap(1, credit="state"),
    "snap(3)": etrax.snap(3, credit="state"),
    "pp_prop": etrax.pp_prop(0.9, credit="state"),
    "rflo": etrax.rflo(0.9, credit="state"),
    "ottt": etrax.ottt(0.9, credit="state"),
}


@pytest.mark.fast_seconds(6)
@pytest.mark.one_in(5)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", [n for n in ZOO if n != "size/two_hundred"])
def test_zoo(name, rule):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model, run = entry(), Evaluator()
    inputs, targets = model.make_inputs(5, 0), model.make_target(5, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    learner = etrax.compile(model.step, RULES[rule], *first, params=model.params, hidden=model.hidden)
    gradient = learner.value_and_grad(model.loss, window=1)
    (_, grads), _ = run(gradient, model.params, learner.init(), inputs, targets)
    want = dict(leaves_with_paths(bptt(model, inputs, targets, run)))
    for path, grad in leaves_with_paths(grads):
        if path not in model.expect:
            continue
        verdict, error = learner.report.verdicts[path], relative_error(grad, want[path])
        assert np.isfinite(error), path
        if verdict.kind in ("exact", "unused"):
            assert error <= model.tol, (path, error, verdict)


def test_windows_of_several_steps():
    with pytest.raises(etrax.ArgumentError, match="take `window=1`, not 3"):
        gradient(etrax.d_rtrl(credit="state"), window=3)


@pytest.mark.parametrize("make", [etrax.d_rtrl, etrax.e_prop, lambda credit: etrax.snap(2, credit=credit)])
@pytest.mark.parametrize("credit", ["states", 1, None])
def test_bad_credit(make, credit):
    with pytest.raises(etrax.ArgumentError, match='expected "step"'):
        make(credit=credit)


def test_hops_and_credit():
    with pytest.raises(etrax.ArgumentError, match="hops are not carried"):
        etrax.d_rtrl(hops=1, credit="state")


def test_beside_another_rule():
    """A partition gives each parameter its own rule's gradient."""
    rule = etrax.partition({"w": etrax.snap(1, credit="state")}, default=etrax.d_rtrl(credit="state"))
    mixed, snap, d_rtrl = gradient(rule), gradient(RULES["snap(1)"]), gradient(RULES["d_rtrl"])
    assert relative_error(mixed["w"], snap["w"]) < 1e-13 and relative_error(mixed["u"], d_rtrl["u"]) < 1e-13
