"""Rules side by side: each parameter's gradient is the one its own rule gives alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, O, loss
from tests.learn.harness import gradients
from tests.learn.oracle import relative_error

import etrax


def learner_of(name, rule):
    case = CASES[name]
    return etrax.compile(case.model, rule, case.x[0], params=case.params, hidden=case.hidden)


def test_each_parameter_follows_its_rule():
    alone = {
        "rtrl": etrax.rtrl(),
        "rflo": etrax.rflo(0.7),
        "guided": etrax.e_prop(0.5, "random", key=3),
        "filtered": etrax.e_prop(0.5),
        "d_rtrl": etrax.d_rtrl(),
    }
    rule = etrax.partition(
        {
            "u1": alone["rtrl"], ("w1",): alone["rflo"], (lambda path: path[0] == "b1"): alone["guided"],
            "b2": alone["filtered"],
        },
        default=alone["d_rtrl"],
    )  # fmt: skip
    learner = learner_of("two_layers", rule)
    for k in (1, 3):
        got = gradients("two_layers", None, k, learner=learner)[0]
        for name, g in got.items():
            own = {"u1": "rtrl", "w1": "rflo", "b1": "guided", "b2": "filtered"}.get(name, "d_rtrl")
            want = gradients("two_layers", alone[own], k)[0][name]
            assert relative_error(g, want) < 1e-12, (name, k)
    assert relative_error(got["u1"], reference.bptt("two_layers")["u1"]) < 1e-10
    kinds = {p[0]: str(v.kind) for p, v in learner.report.verdicts.items()}
    assert kinds["u1"] == "exact" and kinds["w1"] == kinds["b1"] == "approximate" and kinds["w2"] == "exact"
    assert "leak of 0.7" in learner.report.verdicts["w1",].reason


def test_paths_and_rules_by_name():
    """A path may be written as the report writes it, a rule as `etrax.compile` takes it."""
    params = {"cell": {"in": jnp.ones((3, 4)), "rec": [jnp.ones((4, 4))]}, "out": jnp.ones((4, 2))}

    def step(p, h, x):
        h = jnp.tanh(x @ p["cell"]["in"] + h @ p["cell"]["rec"][0])
        return h, h @ p["out"]

    rule = etrax.partition({"cell.rec[0]": "rtrl", "cell": "tbptt"}, default="d_rtrl")
    found = etrax.compile(step, rule, jnp.ones(3), params=params, hidden=jnp.zeros(4)).report.verdicts
    assert [str(found[name].kind) for name in ("cell.rec[0]", "cell.in", "out")] == ["exact", "truncated", "exact"]
    assert found["cell.in"] is found["cell", "in"]
    with pytest.raises(KeyError, match=r"there are 'cell.in', .* Did you mean `cell.in`\?"):
        found["cell.inn"]


def test_memory_is_the_sum():
    learner = learner_of("vanilla", etrax.partition({"wh": etrax.rtrl(), "b": etrax.frozen()}, default=etrax.d_rtrl()))
    assert learner.report.memory["partition"] == 8 * B * (H * H * H + I + H)
    assert str(learner.rule) == 'partition({"wh": rtrl(), "b": frozen()}, default=d_rtrl())'


def test_a_rule_prints_as_it_is_written():
    exotic = {("layers", 0, 'a"b'): etrax.d_rtrl(fan_out=None, hops=1), ("a", "b"): etrax.pp_prop(0.8)}
    rule = etrax.partition(exotic, default=etrax.three_factor())
    assert eval(str(rule), vars(etrax)) == rule


def test_frozen():
    learner, case = (
        learner_of("vanilla", etrax.partition({"wh": etrax.frozen()}, default=etrax.d_rtrl())),
        CASES["vanilla"],
    )
    got, plain = gradients("vanilla", None, 2, learner=learner)[0], gradients("vanilla", etrax.d_rtrl(), 2)[0]
    assert not np.any(got.pop("wh"))
    for name, g in got.items():
        assert relative_error(g, plain[name]) < 1e-12
    verdict = learner.report.verdicts["wh",]
    assert verdict.kind == "unused" and verdict.reason.startswith("frozen")
    train, optimizer = learner.train(optax.sgd(0.1), loss, window=2), optax.sgd(0.1)
    params, *_ = train(case.params, optimizer.init(case.params), learner.init(), case.x, case.targets)
    assert np.array_equal(params["wh"], case.params["wh"]) and not np.array_equal(params["wi"], case.params["wi"])
    etrax.testing.compare(learner, loss, case.params, case.hidden, case.x, case.targets).check()


def test_a_whole_model_can_be_frozen():
    learner = learner_of("gru", etrax.frozen())
    assert not any(np.any(g) for g in gradients("gru", None, 2, learner=learner)[0].values())


def adapted(params, h, x):
    h = jnp.tanh(x @ params["wi"] + h @ (params["base"] + params["down"] @ params["up"]))
    return h, h @ params["wo"]


def adapter_params():
    rng = np.random.RandomState(0)
    shapes = {"wi": (I, H), "base": (H, H), "down": (H, 1), "up": (1, H), "wo": (H, O)}
    return {k: jnp.asarray(rng.standard_normal(s)) for k, s in shapes.items()}


def test_frozen_beside_an_adapter():
    params = adapter_params()
    x, target, h = CASES["gru"].x, CASES["gru"].targets, jnp.zeros((B, H))
    learner = etrax.compile(
        adapted, etrax.partition({"base": etrax.frozen()}, etrax.rtrl()), x[0], params=params, hidden=h
    )
    (_, got), _ = learner.value_and_grad(loss, window=1)(params, learner.init(), x, target)
    _, want = etrax.testing.bptt(learner, loss)(params, h, x, target)
    assert not np.any(got["base"])
    for name in ("wi", "down", "up", "wo"):
        assert relative_error(got[name], want[name]) < 1e-10


def test_one_weight_under_two_rules():
    params = adapter_params()
    with pytest.raises(
        etrax.CompilationError, match=r"made of parameters with different rules \('base' by d_rtrl\(\), 'down' by rtrl"
    ):
        rule = etrax.partition({"base": etrax.d_rtrl()}, default=etrax.rtrl())
        etrax.compile(adapted, rule, CASES["gru"].x[0], params=params, hidden=jnp.zeros((B, H)))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: etrax.partition({"a": etrax.rtrl}), "dictionary from path prefixes"),
        (lambda: etrax.partition({"a": "rtl"}), "Did you mean `rtrl`?"),
        (lambda: etrax.partition([etrax.rtrl()]), "dictionary from path prefixes"),
        (lambda: etrax.partition({3: etrax.rtrl()}), "chooses by a key"),
        (lambda: etrax.partition({"a": etrax.partition({}, etrax.rtrl())}), "does not hold another partition"),
        (
            lambda: learner_of("gru", etrax.partition({"wx": etrax.rtrl()}, etrax.d_rtrl())),
            "'wx' of `partition` applies to no parameter",
        ),
        (
            lambda: learner_of("gru", etrax.partition({"wz": etrax.rtrl()})),
            "no entry of `partition` applies to the parameter",
        ),
    ],
)
def test_bad_partitions(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_evolving_without_a_loss():
    rule = etrax.partition({"wh": etrax.e_prop(feedback="adaptive", key=1)}, default=etrax.ottt(0.5))
    learner, case = learner_of("vanilla", rule), CASES["vanilla"]
    state, _ = jax.jit(learner.step)(case.params, learner.init(), case.x[0])
    assert jax.tree.structure(state) == jax.tree.structure(learner.init())
