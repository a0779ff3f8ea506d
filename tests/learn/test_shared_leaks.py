"""Layers under units with many constant leaks: the gradient is that of the kernel which shared leaks make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.oracle import bptt, relative_error
from tests.learn.test_hops import gradients, loss, model
from tests.learn.test_memory import measured
from tests.zoo import ZOO

import etrax
from etrax.compiler.analysis import shared_leaks

UNITS, T = 40, 10
LEAKS = np.linspace(0.3, 0.95, UNITS)


def above(leak=LEAKS, gain=lambda p, x: 1.0):
    """A leaky layer under leaky units: r' = λ r + f (z V)."""

    def step(p, s, x):
        v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
        y = jnp.sin(v) @ jnp.tile(p["out"], (1, UNITS // 2))
        factor = leak(p, x) if callable(leak) else jnp.asarray(leak, s["many"].dtype)
        r = factor * s["many"] + gain(p, x) * y
        return {"v": v, "many": r}, r

    return step


def per_unit(p):
    return jnp.tile(p["leaks"], UNITS // 2)


GAINS = {
    "one": lambda p, x: 1.0,
    "of each unit": lambda p, x: 1 - LEAKS,
    "that learns": lambda p, x: jax.nn.sigmoid(per_unit(p)),
    "in time": lambda p, x: jnp.cos(x.sum()),
    "of each sample": lambda p, x: jnp.cos(x[:, :1]),
}


def compiled(step, rule, **options):
    m, xs, targets = model(step)
    return etrax.compile(m.step, rule, xs[0], params=m.params, hidden=m.hidden, **options), m, xs, targets


def with_kernel(m, xs, targets, window, shared, gain):
    """The gradient of `w` where what came before a window acts on r by Σ_j w_j κ_j^t f z V in place of λ^t f z V.

    By autodiff of a plain loop. V and f are today's, which they are here in any case.
    """

    def run(w):
        p, s, total = {**m.params, "w": w}, m.hidden, 0.0
        filtered = jnp.zeros((len(shared.leaks), *m.hidden["many"].shape))
        fixed = dict(m.params)
        for t, (x, target) in enumerate(zip(xs, targets, strict=True)):
            if t % window == 0:
                approximate = jnp.einsum("jo,jbo->bo", shared.weights, filtered)
                r = jax.lax.stop_gradient(s["many"] - approximate) + approximate
                s = {"v": s["v"], "many": r}
            s, output = m.step(p, s, x)
            drive = gain(fixed, x) * (jnp.sin(s["v"]) @ jnp.tile(fixed["out"], (1, UNITS // 2)))
            filtered = shared.leaks[:, None, None] * filtered + drive
            total += loss(output, target)
        return total / len(xs)

    return jax.grad(run)(m.params["w"])


@pytest.mark.parametrize("gain", GAINS)
def test_the_gradient_is_that_of_the_shared_kernel(gain):
    rule = etrax.d_rtrl(shared_leaks=4)
    learner, m, xs, targets = compiled(above(gain=GAINS[gain]), rule)
    verdicts, shared = learner.report.verdicts, shared_leaks(LEAKS, 4)
    assert verdicts["w",].kind == "approximate" and verdicts["out",].kind == "exact"
    assert "by 4 shared leaks in place of 40" in verdicts["w",].reason
    claimed = float(verdicts["w",].reason.rpartition(" ")[2])
    assert shared.error <= claimed <= 1.1 * shared.error
    want = bptt(m, (xs,), targets)
    for window in (1, 3, 7):
        grads = gradients(learner, m, xs, targets, window)
        assert relative_error(grads["w"], with_kernel(m, xs, targets, window, shared, GAINS[gain])) < 1e-9, window
        assert 1e-6 < relative_error(grads["w"], want["w"]) < 0.1
        assert all(relative_error(grads[path], want[path]) < 1e-11 for path in grads if path != "w")


def test_by_default_as_few_as_keep_the_error_small():
    learner, m, xs, targets = compiled(above(), "d_rtrl")
    assert "by 7 shared leaks in place of 40" in learner.report.verdicts["w",].reason
    want = bptt(m, (xs,), targets)
    assert relative_error(gradients(learner, m, xs, targets, 3)["w"], want["w"]) < 1e-3
    # One state more at each position of the layer below for each shared leak.
    sizes = [learner.with_rule(etrax.d_rtrl(shared_leaks=n)).memory(window=3).trace for n in (7, 0)]
    assert learner.memory(window=3).trace == sizes[0] and sizes[0] - sizes[1] == 7 * m.params["w"].size * 2 * 8


def test_memory_is_predicted():
    learner = compiled(above(), etrax.d_rtrl(shared_leaks=3))[0]
    assert learner.memory(window=5, steps=20).peak == pytest.approx(measured(learner, 5, 20), rel=0.1)


def test_many_shared_leaks_are_exact_to_rounding():
    leaks = np.linspace(0.6, 0.8, UNITS)
    learner, m, xs, targets = compiled(above(leaks), etrax.d_rtrl(shared_leaks=20))
    want = bptt(m, (xs,), targets)
    for window in (1, 3, 7):
        assert relative_error(gradients(learner, m, xs, targets, window)["w"], want["w"]) < 1e-11


@pytest.mark.parametrize("rule", [etrax.d_rtrl(), etrax.d_rtrl(hops=1), etrax.d_rtrl(shared_leaks=3)], ids=str)
def test_few_different_leaks_of_many_units_are_exact(rule):
    """Also of those that could not be shared: one filtered copy for each."""
    learner, m, xs, targets = compiled(above(np.resize([0.7, 1.0, -0.5], UNITS)), rule)
    assert {v.kind for v in learner.report.verdicts.values()} == {"exact"}
    if rule != etrax.d_rtrl(hops=1):
        assert "3 leaky sums more" in learner.report.verdicts["w",].reason
    want = bptt(m, (xs,), targets)
    for window in (1, 3, 7):
        grads = gradients(learner, m, xs, targets, window)
        assert all(relative_error(grads[path], want[path]) < 1e-11 for path in grads)


def two_readouts(p, s, x):
    """One above with 40 leaks, one with two."""
    states, y = above()(p, s, x)
    r = jnp.array([0.8, 0.5]) * s["r"] + jnp.sin(states["v"]) @ p["other"]
    return {**states, "r": r}, (y, r)


def test_leaks_of_one_layer_may_be_shared_beside_those_of_another():
    learner, m, xs, targets = compiled(two_readouts, "d_rtrl")
    assert learner.report.verdicts["w",].kind == "approximate"
    want = bptt(m, (xs,), targets)
    for window in (1, 3):
        grads = gradients(learner, m, xs, targets, window)
        assert relative_error(grads["w"], want["w"]) < 1e-3
        assert all(relative_error(grads[path], want[path]) < 1e-11 for path in ("out", "other"))


def test_what_is_exact_by_copies_of_coarse_states_stays_so():
    """Copies are not carried beside filtered data: shared leaks, which are not exact, give way to them."""
    coarse, (m, xs, _) = ZOO["stabilisers/one_maximum"](), model(above())
    (x,) = jax.tree.leaves(coarse.make_inputs(1, 0))

    def step(p, s, inputs):
        state, y = coarse.step(p["coarse"], s["coarse"], inputs[0])
        leaky, r = m.step(p["leaky"], s["leaky"], inputs[1])
        return {"coarse": state, "leaky": leaky}, (y, r)

    params = {"coarse": coarse.params, "leaky": m.params}
    hidden = {"coarse": coarse.hidden, "leaky": m.hidden}
    rules = (etrax.d_rtrl(), etrax.d_rtrl(shared_leaks=0), etrax.d_rtrl(shared_leaks=4))
    reports = [etrax.compile(step, r, (x[0], xs[0]), params=params, hidden=hidden).report.verdicts for r in rules]
    assert reports[0] == reports[1]
    assert all(verdict.kind == "exact" for path, verdict in reports[0].items() if path[0] == "coarse")
    assert "by 4 shared leaks" in reports[2]["leaky", "w"].reason


def leaks_that_learn(p, x):
    return jnp.asarray(LEAKS) * jax.nn.sigmoid(per_unit(p))


NEAR_MISSES = {
    "leaks that learn": above(leaks_that_learn),
    "leaks in time": above(lambda p, x: LEAKS * jax.nn.sigmoid(x.mean())),
    "one of a negative sign": above(np.r_[LEAKS[1:], -0.5]),
    "one that forgets nothing": above(np.r_[LEAKS[1:], 1.0]),
    "one that grows": above(np.r_[LEAKS[1:], 1.01]),
    "a gain of each unit in time": above(gain=lambda p, x: jnp.cos(x.sum() + LEAKS)),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_stay_as_they_are(name):
    asked, m, xs, targets = compiled(NEAR_MISSES[name], etrax.d_rtrl(shared_leaks=8))
    plain = asked.with_rule(etrax.d_rtrl(hops=0))
    assert asked.report.verdicts == plain.report.verdicts and asked.report.verdicts["w",].kind == "approximate"
    assert "not shared: only constant leaks between 0 and 1" in str(asked.report)
    grads, want = (gradients(learner, m, xs, targets, 1)["w"] for learner in (asked, plain))
    np.testing.assert_array_equal(grads, want)


def test_complex_leaks_are_not_shared():
    def step(p, s, x):
        v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
        z = LEAKS * jnp.exp(0.3j) * s["z"] + (jnp.sin(v) @ jnp.tile(p["out"], (1, UNITS // 2))).astype(complex)
        return {"v": v, "z": z}, z.real

    m, xs, _ = model(lambda p, s, x: step(p, {"v": s["v"], "z": s["many"].astype(complex)}, x))
    hidden = {"v": m.hidden["v"], "z": m.hidden["many"].astype(complex)}
    learner = etrax.compile(step, etrax.d_rtrl(shared_leaks=8), xs[0], params=m.params, hidden=hidden)
    verdict = learner.report.verdicts["w",]
    assert verdict.kind == "approximate" and "shared leaks" not in verdict.reason


def test_leaks_that_would_be_followed_badly_are_not_shared():
    wide = 1 - np.geomspace(0.7, 1e-4, UNITS)
    learner = compiled(above(wide), etrax.d_rtrl(shared_leaks=2))[0]
    assert "shared leaks" not in learner.report.verdicts["w",].reason
    assert "2 of them would follow λ^t within 0." in str(learner.report)


def ten_units(p, s, x):
    v = 0.9 * s["v"] + jnp.tanh(x @ p["w"])
    r = LEAKS[::4] * s["r"] + jnp.sin(v) @ jnp.tile(p["out"], (1, 5))
    return {"v": v, "r": r}, r


def test_ten_leaks_are_exact_unless_fewer_are_asked_for():
    m, xs, _ = model(ten_units, r=10)
    compiled_with = lambda rule: etrax.compile(m.step, rule, xs[0], params=m.params, hidden=m.hidden)
    reasons = {n: compiled_with(etrax.d_rtrl(shared_leaks=n)).report.verdicts["w",] for n in (None, 0, 4, 1, 10)}
    assert reasons[None] == reasons[0] == reasons[10] and reasons[0].kind == "exact"
    assert reasons[4].kind == "approximate" and "by 4 shared leaks in place of 10" in reasons[4].reason
    assert reasons[1] == reasons[0]  # one leak for all of them would be off by more than 0.25


@pytest.mark.parametrize("steps_of_lanes", [False, True])
def test_a_reset_is_as_good_as_separate_sequences(steps_of_lanes):
    learner, m, xs, targets = compiled(above(), etrax.d_rtrl(shared_leaks=3))
    flags = np.zeros((T, 2) if steps_of_lanes else T, bool)
    flags[6] = True
    run = learner.value_and_grad(loss, window=3, reduction="sum")
    grads = run(m.params, learner.init(m.params, m.hidden), xs, targets, reset=jnp.asarray(flags))[0][1]
    parts = [run(m.params, learner.init(m.params, m.hidden), xs[a:b], targets[a:b])[0][1] for a, b in ((0, 6), (6, T))]
    want = jax.tree.map(jnp.add, *parts)
    assert all(relative_error(grads[path], want[path]) < 1e-11 for path in grads)


@pytest.mark.parametrize("options", [{"hops": 0}, {"credit": "state"}])
def test_shared_leaks_need_hops(options):
    with pytest.raises(etrax.ArgumentError, match="`shared_leaks` together with"):
        etrax.d_rtrl(shared_leaks=4, **options)


@pytest.mark.parametrize("number", [-1, 65, 2.5, "4", True])
def test_shared_leaks_are_a_whole_number(number):
    with pytest.raises((etrax.ArgumentError, TypeError), match="`shared_leaks` is"):
        etrax.d_rtrl(shared_leaks=number)
