"""The report in words: short by default, whole on demand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.report.models import layers

import etrax
from etrax.report._alike import brief, shortened


@pytest.fixture(scope="module")
def many():
    return layers(70)  # 211 parameters


def test_two_hundred_parameters_fit_on_a_screen(many):
    text = str(many.report)
    assert len(text.splitlines()) < 50
    assert "'layers[0].bias' (2) … 'layers[68].bias' (2) (69)" in text and "'head'" in text


def test_full_says_every_parameter(many):
    text = many.report.full()
    for p in many.report.parameters:
        assert etrax.compiler.ir.format_path(p.path, "params") in text


def test_a_verdict_is_found_by_its_name(many):
    verdicts = many.report.verdicts
    assert verdicts["layers[3].bias"] is verdicts["layers", 3, "bias"] and "layers[3].bias" not in verdicts
    with pytest.raises(etrax.ArgumentError, match=r"no parameter 'bias'; there are 'head', .* and 191 more\."):
        verdicts["bias"]


def test_equal_reasons_are_said_once():
    def step(p, h, x):
        h = p["leak"] * h + x @ p["w"] + p["b"]
        return h, h @ p["out"]

    params = {"w": jnp.ones((3, 4)), "b": jnp.ones(4), "leak": jnp.ones(4), "out": jnp.ones((4, 2))}
    learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))
    text = str(learner.report)
    assert text.count("whose recurrence is carried whole") == 1
    assert "'b' (4), 'leak' (4), 'w' (3×4) → group 0" in text and "test_text.py:" in text
    assert learner.report.full().count("each element of `") == 3
    assert "a trace is what a rule carries" in text
    assert repr(learner) == "Learner of d_rtrl(): 4 parameters (28 numbers), 1 hidden group; 4 exact; trace of 160 B"
    assert repr(learner.rule) == "d_rtrl()" and "monospace" in learner._repr_html_()
    assert repr(learner.init()) == "LearnerState(step 0; hidden: float64[4]; trace: 160 B)"
    stream = learner.online(optax.sgd(0.1), lambda o, t: o.sum(), window=3)
    assert repr(stream).endswith("trace of 160 B; 0 of 3 samples wait for the end of their window)")
    data = etrax.train.Dataset.labelled(np.zeros((5, 6, 3), np.float32), np.zeros(6, np.int8))
    assert repr(data) == "Dataset(inputs: float32[5, 6, 3]; targets: int8[5, 6])"


def test_ops_on_the_way_are_named_in_one_clause():
    def step(p, s, x):
        v = 0.9 * s["v"] + x @ p["w"]
        q = 0.9 * s["q"] + jnp.tanh(v) @ p["a"] + jnp.sin(v) @ p["b"]
        return {"v": v, "q": q}, q

    params = {name: jnp.ones((3, 3)) for name in "wab"}
    hidden = {name: jnp.zeros((2, 3)) for name in "vq"}
    learner = etrax.compile(step, etrax.d_rtrl(hops=0), jnp.ones((2, 3)), params=params, hidden=hidden)
    reason = learner.report.verdicts["w",].full
    assert reason.count("before it reaches a state") == 1
    assert "its output passes through the weight ops of 'a' (" in reason and "), 'b' (" in reason


def test_residual_layers_fit_on_a_screen():
    """What each layer puts into the residual stream passes through all later ones: reasons of very many clauses."""

    def step(p, h, x):
        new = []
        for w, s in zip(p, h, strict=True):
            new.append(0.9 * s + x @ w["in"])
            x = x + new[-1] @ w["out"]
        return tuple(new), x

    params = tuple({"in": jnp.ones((2, 2)), "out": jnp.ones((2, 2))} for _ in range(20))
    hidden = tuple(jnp.zeros(2) for _ in range(20))
    report = etrax.compile(step, "d_rtrl", jnp.ones(2), params=params, hidden=hidden).report
    assert len(str(report).splitlines()) < 50
    assert len(report.full()) > 3 * len(str(report))


def test_gated_residual_layers_fit_on_a_screen():
    """Each group acts on all later layers: the list of its ops is as long as the net is deep."""

    def step(p, h, x):
        new = []
        for w, s in zip(p, h, strict=True):
            z = jax.nn.sigmoid(x @ w["z"] + s @ w["r"])
            new.append(z * s + (1 - z) * jnp.tanh(x @ w["n"]))
            x = x + new[-1]
        return tuple(new), x

    params = tuple({name: jnp.ones((2, 2)) for name in "zrn"} for _ in range(14))
    hidden = tuple(jnp.zeros(2) for _ in range(14))
    report = etrax.compile(step, "d_rtrl", jnp.ones(2), params=params, hidden=hidden).report
    assert len(str(report).splitlines()) < 60
    assert len(report.full()) > 3 * len(str(report))
    assert len(report.to_html()) < 400_000  # reasons are said as briefly there


def test_clauses_are_told_apart_by_more_than_numbers():
    few = "not carried: it passes through 'a1'; it passes through 'a2'; it reaches 'b'"
    assert shortened(few) == few
    many = "a trace is carried; not carried: " + "; ".join(["x 1", "x 2", "x 3", "x 4", "y 1"])
    assert shortened(many) == "a trace is carried; not carried: x 1 (and 3 more like it); y 1"
    ops = ", ".join(f"'{n}[{i}]' (`dot_general` at m.py:3 (step))" for i in range(4) for n in "wu")
    assert shortened(f"it passes through {ops} before") == (
        "it passes through 'w[0]' (`dot_general` at m.py:3 (step)) (and 3 more like it), "
        "'u[0]' (`dot_general` at m.py:3 (step)) (and 3 more like it) before"
    )


def test_a_verdict_takes_two_lines_and_names_what_a_lost_path_goes_through():
    def step(p, h, x):
        h = jnp.tanh(x @ p["cell"]["w"] + h @ p["rec"]["kernel"])
        return h, h @ p["out"]

    params = {"cell": {"w": jnp.ones((3, 4))}, "rec": {"kernel": jnp.ones((4, 4))}, "out": jnp.ones((4, 2))}
    learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=jnp.zeros(4))
    lines = str(learner.report).splitlines()
    (at,) = [i for i, line in enumerate(lines) if "APPROXIMATE" in line]
    assert lines[at + 1].strip().startswith("not carried: through rec (test_text.py:")
    assert "acts on states through the weight op of 'rec.kernel' (`dot_general`" in learner.report.full()


def test_a_group_says_once_what_its_states_lose_and_a_bias_takes_no_name_from_its_weight():
    def step(p, s, x):
        v = 0.9 * s["v"] + jnp.tanh(s["v"]) @ p["rec"]["weight"] + p["rec"]["bias"] + s["a"]
        return {"v": v, "a": 0.5 * s["a"] + v}, v @ p["out"]

    params = {"rec": {"weight": jnp.ones((4, 4)), "bias": jnp.zeros(4)}, "out": jnp.ones((4, 2))}
    learner = etrax.compile(step, "d_rtrl", jnp.ones(4), params=params, hidden={"v": jnp.zeros(4), "a": jnp.zeros(4)})
    text = str(learner.report)
    assert text.count("across positions: through rec (test_text.py:") == text.count("across positions: ") == 1
    assert "not carried: through rec (test_text.py:" in text


def test_brief_reasons_are_short():
    long = "not carried: " + "; ".join(f"the {word} of it acts on another" for word in "abcdefghijklmnopqrstuvwxyz")
    assert len(brief(long)) <= 2 * 103 and brief(long).endswith("(full() has the rest)")


def test_the_place_of_an_op_is_told_from_that_of_a_path():
    """A norm between two cells: where its own op stands, and where the weight that cuts its path stands."""

    def step(p, h, x):
        low = jnp.tanh(x @ p["w"] + h[0])
        between = low * p["scale"] + p["shift"]
        high = jnp.tanh(jnp.tanh(between) @ p["up"] + h[1])
        return (low, high), high

    params = {"w": jnp.ones((3, 25)), "scale": jnp.ones(25), "shift": jnp.ones(25), "up": jnp.ones((25, 25))}
    learner = etrax.compile(step, "d_rtrl", jnp.ones(3), params=params, hidden=(jnp.zeros(25), jnp.zeros(25)))
    text = " ".join(str(learner.report).split())
    assert "'scale' (25), 'shift' (25) no trace is carried from its op (test_text.py:" in text
    assert not re.search(r"\(test_text\.py:\d+\) \(test_text", text)
