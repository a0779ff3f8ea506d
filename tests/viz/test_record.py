"""What `record` keeps: states as the step makes them, traces as derivatives of the states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.viz.models import INPUTS, leaky, recurrent

import etrax
from etrax import ArgumentError, viz
from etrax.compiler.ir import leaves_with_paths


def history(learner, params, hidden, inputs):
    """Hidden states after every step, by the plain step alone."""
    found = []
    for x in inputs:
        hidden, _ = learner.plain_step(params, hidden, (x,))
        found.append(hidden)
    return jax.tree.map(lambda *a: jnp.stack(a), *found)


def derivative(learner, state, sample=slice(None)):
    """d(Σ_p h_t[p])/dθ for one state, by reverse mode through all steps."""

    def sums(params):
        held = dict(leaves_with_paths(history(learner, params, learner.hidden, INPUTS)))[state]
        return held[:, sample].reshape(len(INPUTS), -1).sum(1)

    return dict(leaves_with_paths(jax.jacrev(sums)(learner.params)))


@pytest.mark.parametrize(("rule", "sample"), [("d_rtrl", None), ("d_rtrl", 1), ("rtrl", 1), ("e_prop", None)])
def test_traces_of_an_exact_rule_are_derivatives(rule, sample):
    learner = leaky(rule)
    found = viz.record(learner, INPUTS, sample=sample).traces
    assert set(found) == {((p,), (s,)) for p in ("w", "leak") for s in ("v", "a")}
    for state in ("v", "a"):
        want = derivative(learner, (state,), slice(None) if sample is None else sample)
        for name in ("w", "leak"):
            np.testing.assert_allclose(found[(name,), (state,)], want[(name,)], rtol=1e-9, atol=1e-12)


def test_traces_of_rtrl_are_derivatives_where_those_of_d_rtrl_are_not():
    learner = recurrent("rtrl")
    want = derivative(learner, ())
    exact, diagonal = (viz.record(recurrent(rule), INPUTS).traces for rule in ("rtrl", "d_rtrl"))
    for name in ("w", "u"):
        np.testing.assert_allclose(exact[(name,), ()], want[(name,)], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(diagonal[(name,), ()][0], want[(name,)][0], rtol=1e-9, atol=1e-12)
        assert not np.allclose(diagonal[(name,), ()][-1], want[(name,)][-1])


RULES = (etrax.pp_prop(), etrax.rflo(0.9), etrax.uoro(1), etrax.ottt(0.8), etrax.snap(2), etrax.three_factor())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_can_be_read(rule):
    learner = leaky(rule)
    found = viz.record(learner, INPUTS, states=["v"]).traces
    assert (("w",), ("v",)) in found
    for (parameter, _), a in found.items():
        assert a.shape == (len(INPUTS), *learner.params[parameter[0]].shape)
        assert np.isfinite(a).all()


def test_random_feedback_carries_the_trace_of_d_rtrl():
    one, other = (viz.record(leaky(r), INPUTS).traces for r in ("d_rtrl", etrax.e_prop(0.0, "random", key=1)))
    assert set(one) == set(other)
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


def test_truncated_bptt_has_no_trace():
    assert viz.record(leaky("tbptt"), INPUTS).traces == {}


def test_states_and_outputs_are_those_of_the_plain_step():
    learner = leaky("d_rtrl")
    found = viz.record(learner, INPUTS)
    want = history(learner, learner.params, learner.hidden, INPUTS)
    for name in ("v", "a"):
        np.testing.assert_allclose(found.states[(name,)], want[name], rtol=1e-12)
    np.testing.assert_allclose(found.outputs[()], jnp.tanh(want["v"]) @ learner.params["out"], rtol=1e-12)
    np.testing.assert_array_equal(found.time, np.arange(1, 8))


def test_a_recording_goes_on_from_a_state():
    learner = leaky("d_rtrl")
    state = learner.init()
    step = jax.jit(learner.step)
    for x in INPUTS[:3]:
        state, _ = step(learner.params, state, x)
    whole, rest = viz.record(learner, INPUTS), viz.record(learner, INPUTS[3:], state=state)
    assert rest.time[0] == 4
    for key in whole.traces:
        np.testing.assert_allclose(rest.traces[key], whole.traces[key][3:], rtol=1e-12)


def test_only_what_was_asked_for_is_kept():
    found = viz.record(leaky("d_rtrl"), INPUTS, parameters=["w"], states=[("a",)])
    assert list(found.traces) == [(("w",), ("a",))]
    without = viz.record(leaky("d_rtrl"), INPUTS, parameters=[])
    assert without.traces == {} and without.states.keys() == found.states.keys()


def test_names_are_those_of_the_report():
    def step(params, h, x):
        h = {"rnn": (0.5 * h["rnn"][0] + x @ params["rnn"]["w"],)}
        return h, h["rnn"][0]

    params, hidden = {"rnn": {"w": jnp.ones((3, 2))}}, {"rnn": (jnp.zeros(2),)}
    learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=hidden)
    found = viz.record(learner, jnp.ones((4, 3)), parameters=["rnn.w"], states=["rnn[0]"])
    assert list(found.traces) == [(("rnn", "w"), ("rnn", 0))]
    assert repr(found).startswith("Recording(d_rtrl(), 4 steps; states: 'rnn[0]' [4, 2]; outputs: ")
    assert viz.states(found, states=["rnn[0]"]).axes and viz.traces(found, parameters=["rnn.w"]).axes
    assert viz.raster(found, state="rnn[0]").axes


def test_a_name_is_taken_as_the_report_writes_it():
    cell = {"rnn": {"w": jnp.ones((2, 4))}}
    step = lambda p, h, x: ({"rnn": {"v": 0.9 * h["rnn"]["v"] + x @ p["rnn"]["w"]}}, h["rnn"]["v"])
    hidden = {"rnn": {"v": jnp.zeros(4)}}
    learner = etrax.compile(step, "d_rtrl", jnp.ones(2), params=cell, hidden=hidden)
    found = viz.record(learner, jnp.ones((3, 2)), parameters=["rnn.w"], states=["rnn.v"])
    assert list(found.traces) == [(("rnn", "w"), ("rnn", "v"))]
    assert viz.traces(found, parameters=["rnn.w"]) and viz.states(found, states=["rnn.v"])
    below = viz.record(learner, jnp.ones((3, 2)), parameters=["rnn"], states=["rnn"])
    assert list(below.traces) == list(found.traces)


def test_what_cannot_be_read_is_named():
    learner = leaky("d_rtrl")
    with pytest.raises(ArgumentError, match=r"`parameters` has no 'x'; there are 'leak', 'out', 'w'"):
        viz.record(learner, INPUTS, parameters=["x"])
    with pytest.raises(ArgumentError, match=r"`sample` is 5, but the state '[av]' has shape \[2, 4\]"):
        viz.record(learner, INPUTS, sample=5)
    guided = leaky("three_factor")
    with pytest.raises(ArgumentError, match="three_factor"):
        viz.record(guided, INPUTS, state=guided.init())
