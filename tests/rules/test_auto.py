"""`auto`: within its budget, never less exact than the best single rule that fits, and right where it says so."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.oracle import bptt, relative_error
from tests.zoo import ZOO

import etrax
from etrax.compiler.ir import leaves_with_paths

RANK = {"truncated": 0, "approximate": 1, "exact": 2, "unused": 2}
SINGLE = ("tbptt", "pp_prop", "d_rtrl", "rtrl")


def ranks(learner):
    return {path: RANK[str(v.kind)] for path, v in learner.report.verdicts.items()}


@pytest.mark.fast_seconds(6)
@pytest.mark.parametrize("name", [n for n in ZOO if n != "size/two_hundred"])
def test_zoo(name):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model, run = entry(), Evaluator()
    inputs, targets = model.make_inputs(5, 0), model.make_target(5, 0)
    first = jax.tree.map(lambda a: a[0], inputs)
    plain = etrax.compile(model.step, "tbptt", *first, params=model.params, hidden=model.hidden)
    singles = [plain.with_rule(rule) for rule in SINGLE]
    sizes = [learner.rule.size(learner.facts) for learner in singles]
    want = dict(leaves_with_paths(bptt(model, inputs, targets, run)))
    for budget in sorted({1, max(sizes[2] - 1, 1), max(sizes[2], 1), max(sizes[3] // 2, 1), max(sizes[3], 1)}):
        learner = plain.with_rule(etrax.auto(memory=budget))
        assert learner.rule.size(learner.facts) <= budget
        fitting = [ranks(other) for other, size in zip(singles, sizes, strict=True) if size <= budget]
        deep = plain.with_rule(etrax.d_rtrl(depth=budget))
        fitting += [ranks(deep)] if deep.rule.size(deep.facts) <= budget else []
        best = max(fitting, key=lambda r: (sum(v == 2 for v in r.values()), sum(r.values())))
        chosen = ranks(learner)
        assert sum(v == 2 for v in chosen.values()) >= sum(v == 2 for v in best.values()), (budget, learner.rule)
        assert str(plain.with_rule(etrax.auto(memory=budget)).rule) == str(learner.rule)
    (_, grads), _ = run(learner.value_and_grad(model.loss, window=2), model.params, learner.init(), inputs, targets)
    for path, grad in leaves_with_paths(grads):
        if path in model.expect and chosen[path] == 2:
            assert relative_error(grad, want[path]) <= model.tol, (path, learner.rule)


def recurrent():
    def step(params, h, x):
        h = jnp.tanh(x @ params["w"] + h @ params["u"])
        return h, h @ params["out"]

    shapes = {"w": (3, 4), "u": (4, 4), "out": (4, 2)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    return etrax.compile(step, "auto", jnp.ones(3), params=params, hidden=jnp.zeros(4))


def test_what_is_cheap_becomes_exact_first():
    learner = recurrent()
    size = learner.with_rule("rtrl").rule.size(learner.facts)
    assert str(learner.rule) == "rtrl()"
    kinds = [
        {path[0]: str(v.kind) for path, v in learner.with_rule(etrax.auto(memory=m)).report.verdicts.items()}
        for m in (1, size // 4, size - 1, size)
    ]
    assert [k["out"] for k in kinds] == ["exact"] * 4  # a readout needs no trace
    assert [k["w"] for k in kinds] == ["truncated", "approximate", "exact", "exact"]
    assert [k["u"] for k in kinds] == ["truncated", "approximate", "approximate", "exact"]


def test_what_lies_below_other_layers_is_carried_in_depth_where_that_fits():
    """Three layers of leaks: below the trace of a partition with `rtrl` there is one that makes all of them exact."""

    def step(p, hidden, x):
        states = []
        for n, h in zip("abc", hidden, strict=True):
            states.append(jax.nn.sigmoid(p["leak " + n]) * h + x @ p[n])
            x = jnp.tanh(states[-1])
        return tuple(states), x

    shapes = {"a": (2, 4), "b": (4, 4), "c": (4, 4), "leak a": (4,), "leak b": (4,), "leak c": (4,)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    plain = etrax.compile(step, "d_rtrl", jnp.ones(2), params=params, hidden=(jnp.zeros(4),) * 3)
    exact = lambda learner: sum(v == 2 for v in ranks(learner).values())
    assert exact(plain) < len(shapes)
    sizes = {}
    for depth in range(100, 3000, 100):
        deep = plain.with_rule(etrax.d_rtrl(depth=depth))
        sizes.setdefault(exact(deep), deep.rule.size(deep.facts))
    assert len(sizes) > 2 and max(sizes) == len(shapes)
    for number, size in sizes.items():
        learner = plain.with_rule(etrax.auto(memory=size))
        assert learner.rule.size(learner.facts) <= size and exact(learner) >= number


def cued():
    """A cue of either sign that is asked for twenty steps later: `pp_prop` points uphill for the gate."""

    def step(params, h, x):
        z = jax.nn.sigmoid(x @ params["gate"] - 3.0)
        h = (1 - z) * h + z * jnp.tanh(x @ params["value"] + h @ params["again"])
        return h, h @ params["out"]

    rng = np.random.default_rng(0)
    shapes = {"gate": (3, 8), "value": (3, 8), "again": (8, 8), "out": (8, 1)}
    params = {name: jnp.asarray(rng.standard_normal(shape)) * 0.5 for name, shape in shapes.items()}
    xs, ys = np.zeros((20, 16, 3)), np.zeros((20, 16, 1))
    xs[0], ys[:] = rng.standard_normal((16, 3)), rng.standard_normal((16, 1))
    loss = lambda output, target: ((output - target) ** 2).sum()
    learner = etrax.compile(step, "tbptt", xs[0], params=params, hidden=jnp.zeros((16, 8)))
    return learner, (loss, xs, ys)


def test_a_sample_decides_between_rules_that_are_not_exact():
    """Within budgets between the traces of `pp_prop` and `d_rtrl`, no parameter's cosine is below that of either."""
    learner, (loss, xs, ys) = cued()
    true = etrax.testing.bptt(learner, loss)(learner.params, learner.hidden, xs, ys)[1]

    def cosines(rule):
        run = learner.with_rule(rule)
        (_, grads), _ = run.value_and_grad(loss, 1)(learner.params, run.init(), xs, ys)
        length = lambda a: max(float(jnp.linalg.norm(a)), 1e-300)
        return {n: float((grads[n] * true[n]).sum()) / length(grads[n]) / length(true[n]) for n in true}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", etrax.RuleWarning)
        singles = {rule: cosines(rule) for rule in ("tbptt", "pp_prop")}
        budget = learner.with_rule("pp_prop").rule.size(learner.facts)
        rule = etrax.auto(memory=budget, sample=(loss, xs, ys), window=1)
        chosen = learner.with_rule(rule)
        assert chosen.rule.size(chosen.facts) <= budget
        ours = cosines(chosen.rule)
    for name in true:
        assert ours[name] >= max(of[name] for of in singles.values()) - 0.05, (name, chosen.rule, singles)
    assert str(learner.with_rule(rule).rule) == str(chosen.rule)


@pytest.mark.parametrize("sample", [3, (1, 2, 3), (lambda o, y: 0.0, 1.0), ()])
def test_bad_samples(sample):
    with pytest.raises(etrax.ArgumentError, match="`sample`"):
        etrax.auto(sample=sample)


def test_a_bound_on_work():
    learner = recurrent()
    assert str(learner.with_rule(etrax.auto(time=1.0)).rule) == "tbptt()"
    counts = [
        sum(v.kind == "exact" for v in learner.with_rule(etrax.auto(time=t)).report.verdicts.values())
        for t in (1.0, 3.0, 1e6)
    ]
    assert counts == sorted(counts) and counts[-1] == 3


def test_the_report_says_what_more_memory_would_give():
    learner = recurrent()
    size = learner.with_rule("rtrl").rule.size(learner.facts)
    text = str(learner.with_rule(etrax.auto(memory=size - 1)).report)
    assert "`auto` chose partition(" in text and "would be exact under rtrl(), for" in text
    assert np.all([r"`auto` chose rtrl() for" in str(learner.report)])
    bounded = str(learner.with_rule(etrax.auto(time=2.0)).report)
    assert "times the operations of tbptt(); alone, " in bounded and "rtrl() " in bounded


def test_what_is_printed_can_be_pasted():
    learner = recurrent()
    size = learner.with_rule("rtrl").rule.size(learner.facts)
    chosen = learner.with_rule(etrax.auto(memory=size - 1)).rule
    pasted = eval(str(chosen), vars(etrax))
    assert str(chosen).startswith("partition({") and str(pasted) == str(chosen)
    assert learner.with_rule(pasted).report.memory["partition"] == chosen.size(learner.facts)


@pytest.mark.parametrize("memory", [0, -1, "much", float("nan"), True, []])
def test_bad_memory(memory):
    with pytest.raises(etrax.ArgumentError, match="expected a number of bytes"):
        etrax.auto(memory=memory)


@pytest.mark.parametrize("time", [0.5, "2", True, float("nan")])
def test_bad_time(time):
    with pytest.raises(etrax.ArgumentError, match="expected a number of at least 1"):
        etrax.auto(time=time)


def test_not_inside_a_partition():
    with pytest.raises(etrax.ArgumentError, match="does not hold `auto`"):
        etrax.partition({"w": "auto"}, default="tbptt")
