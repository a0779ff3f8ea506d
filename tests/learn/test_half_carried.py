"""A trace that is half of a product is left out, by every rule that carries traces position by position.

`d_rtrl` can carry both halves; here it is told not to. Models are those on which `benchmarks/half_carried.py` compares
both ways. BPTT is `jax.grad` over `lax.scan`; windows are shorter than the sequence.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.half_carried import cosine, cosines, is_left_out
from benchmarks.half_carried_models import MODELS, B, I, V
from jax import lax
from tests.learn.harness import in_numpy
from tests.zoo import ZOO

import etrax

T = 8
WITHOUT_PAIRS = [etrax.d_rtrl(fan_out=0), etrax.ostl(), etrax.ottt(0.9)]
OVER_PAIRS = [etrax.pp_prop(), etrax.e_prop(0.5), etrax.rflo(0.9)]
LEFT_OUT = ["linear attention", "delta rule with key norm", "divisive normalisation", "query and key of one weight",
            "attention with a projected value"]  # fmt: skip
KEPT = ["LayerNorm on one of two paths", "LayerNorm LSTM", "normalised layer above", "fast weights", "two GRU layers",
        "two leaky layers", "gated layers with a skip", "leaky layer and its softmax"]  # fmt: skip


def built(name, seed=0):
    rng = np.random.RandomState(seed)
    return MODELS[name](lambda *shape: jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0])))


def learner_of(name, rule, around=lambda step: step):
    step, params, hidden = built(name)
    return etrax.compile(around(step), rule, jnp.ones((B, I)), params=params, hidden=hidden)


def squares(output, target):
    return ((output - target) ** 2).sum()


def gradient(learner, window=1):
    rng = np.random.RandomState(1)
    x, target = jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, V)))
    run = jax.jit(learner.value_and_grad(squares, window=window))
    return run(learner.params, learner.init(), x, target)[0][1]


def test_a_normaliser_without_its_numerator_does_no_harm():
    """Linear attention, keys: the gradient is at least as near to BPTT as with no trace; it was far from it."""
    (step, params, hidden), rng = built("linear attention"), np.random.RandomState(1)
    x, target = jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, V)))

    def loss(p):
        return squares(lax.scan(lambda s, x: step(p, s, x), hidden, x)[1], target)

    want = jax.jit(jax.grad(loss))(params)
    for window in (1, 3):
        found, none = (
            gradient(learner_of("linear attention", r), window) for r in (etrax.d_rtrl(fan_out=0), etrax.tbptt())
        )
        assert cosine(found["w"], want["w"]) >= cosine(none["w"], want["w"]) - 1e-9
        assert cosine(found["w"], want["w"]) > 0.3


def test_half_of_a_ratio_is_worse_than_nothing():
    """What the choice rests on: were it carried, the trace would point the other way."""
    facts, found = cosines(MODELS["linear attention"], (1,))
    kept, left_out = (np.asarray(c) for c in found[1])
    assert is_left_out(facts)
    assert kept.mean() < 0.2 < 0.6 < left_out.mean()


@pytest.mark.parametrize("rule", WITHOUT_PAIRS, ids=str)
def test_a_rule_without_pairs_leaves_it_out_and_says_so(rule):
    learner = learner_of("linear attention", rule)
    verdict = learner.report.verdicts["w",]
    assert verdict.kind == "truncated"
    assert "its trace to 'z' alone is left out: 'z' and 'S' are multiplied or divided" in verdict.reason
    want = gradient(learner_of("linear attention", etrax.tbptt()))["w"]
    np.testing.assert_allclose(gradient(learner)["w"], want, rtol=1e-10, atol=1e-12)
    assert any("is left out" in record.message for record in learner.graph.diagnostics)


def test_both_halves_are_carried_over_pairs():
    """By default the memory has a trace as well: nothing is left out, and the gradient is that of BPTT."""
    (step, params, hidden), rng = built("linear attention"), np.random.RandomState(1)
    x, target = jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, V)))
    learner = learner_of("linear attention", etrax.d_rtrl())
    assert learner.report.verdicts["w",].kind == "exact"
    want = jax.grad(lambda p: squares(lax.scan(lambda s, x: step(p, s, x), hidden, x)[1], target))(params)
    np.testing.assert_allclose(gradient(learner)["w"] * T, want["w"], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", OVER_PAIRS, ids=str)
def test_other_rules_carry_both_halves_as_well(rule):
    """Their recurrence is another one, but it is that of numerator and normaliser alike: the gradient points uphill."""
    (step, params, hidden), rng = built("linear attention"), np.random.RandomState(1)
    x, target = jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, V)))
    learner = learner_of("linear attention", rule)
    verdict = learner.report.verdicts["w",]
    assert verdict.kind == "approximate" and "left out" not in verdict.reason
    want = jax.grad(lambda p: squares(lax.scan(lambda s, x: step(p, s, x), hidden, x)[1], target))(params)
    assert cosine(gradient(learner)["w"], want["w"]) > 0.3


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out(name):
    learner = learner_of(name, etrax.d_rtrl(fan_out=0, hops=0))
    assert is_left_out(learner.facts)
    assert learner.report.verdicts["w",].kind == "truncated"


def test_what_a_hop_carries_of_it_is_told():
    """The value has a layer above that is a leaky sum: the keys' share in it is carried, the normaliser's is not."""
    learner = learner_of("attention with a projected value", etrax.d_rtrl(fan_out=0, hops=1))
    verdict = learner.report.verdicts["w",]
    assert verdict.kind == "approximate"
    assert "carried in part; not carried: its trace to 'z' alone is left out" in verdict.reason
    assert np.any(gradient(learner)["w"] != gradient(learner_of("attention with a projected value", "tbptt"))["w"])


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    """States that are added, layers above each other, and what only shows another state, keep their traces."""
    learner = learner_of(name, etrax.d_rtrl(fan_out=0, hops=0))
    assert not is_left_out(learner.facts)
    verdict = learner.report.verdicts["w",]
    assert verdict.kind == "approximate"
    across = "reaches several positions" in verdict.reason
    assert ("carried in part" in verdict.reason) == across


def as_branch(step):
    return lambda p, s, x: lax.cond(x[0, 0] > 5, lambda: (s, jnp.zeros((B, V))), lambda: step(p, s, x))


def as_one_round(step):
    def run(p, s, x):
        return lax.fori_loop(0, 1, lambda _, c: step(p, c[0], x), (s, jnp.zeros((B, V))))

    return run


@pytest.mark.parametrize("around", [jax.jit, jax.checkpoint, as_branch, as_one_round], ids=lambda f: f.__name__)
def test_what_stands_around_the_product_does_not_matter(around):
    learner = learner_of("linear attention", etrax.d_rtrl(fan_out=0), around)
    assert is_left_out(learner.facts)
    assert learner.report.verdicts["w",].kind == "truncated"


# Rows of the zoo in which a state is kept in units of another one, which the op drives too; and near misses.
RESCALED = {"one_maximum": "wf", "one_maximum_unbatched": "wi", "maximum_per_head": "bf", "inside_jit": "wf",
            "maximum_per_head_vmapped": "wi", "mlstm_matrix": "wf", "rwkv4_one_maximum": "k",
            "log_space_attention": "k", "online_softmax": "w", "rescaled_by_the_largest": "w"}  # fmt: skip
NOT_RESCALED = {"running_deviation": "w", "gate_as_state": "g", "gate_as_old_state": "g", "common_inhibition": "w",
                "high_pass": "w", "normalised_state": "w", "slstm": "w"}  # fmt: skip


def zoo_learner(name, rule="d_rtrl"):
    model = ZOO[f"stabilisers/{name}"]()
    first = jax.tree.map(lambda a: a[0], model.make_inputs(T, 0))
    return model, etrax.compile(model.step, rule, *first, params=model.params, hidden=model.hidden)


@pytest.fixture
def no_copies(monkeypatch):
    """Copies of coarse states, which carry such relations whole, are too large."""
    monkeypatch.setattr("etrax.rules._d_rtrl.CHEAP_BYTES", -1)


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("name", RESCALED)
def test_half_of_a_difference_is_left_out(name):
    """The gradient is that of no trace, and the reason names both states."""
    model, learner = zoo_learner(name)
    verdict = learner.report.verdicts[RESCALED[name]]
    assert verdict.kind == "truncated"
    assert "units of the other" in verdict.reason
    xs, ys = model.make_inputs(T, 0), model.make_target(T, 0)
    found, none = (
        in_numpy(ln.value_and_grad(model.loss, window=2), model.params, ln.init(), xs, ys)[0][1]
        for ln in (learner, learner.with_rule("tbptt"))
    )
    np.testing.assert_allclose(found[RESCALED[name]], none[RESCALED[name]], rtol=1e-12)


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("name", NOT_RESCALED)
def test_a_state_that_acts_on_others_in_one_way_is_no_such_half(name):
    verdict = zoo_learner(name)[1].report.verdicts[NOT_RESCALED[name]]
    assert verdict.kind == "approximate"


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("rule", [*WITHOUT_PAIRS, *OVER_PAIRS], ids=str)
def test_half_of_a_difference_under_other_rules(rule):
    assert zoo_learner("one_maximum", rule)[1].report.verdicts["wf"].kind == "truncated"


def test_the_forget_gate_of_a_stabilised_cell_is_no_worse_than_without_a_trace():
    """The cell of an mLSTM with a scalar for its running maximum, at windows of one step."""
    model, learner = zoo_learner("one_maximum_unbatched")
    xs, ys = model.make_inputs(T, 3), model.make_target(T, 3)

    def loss(p):
        return sum(map(model.loss, lax.scan(lambda s, x: model.step(p, s, x), model.hidden, *xs)[1], ys)) / T

    want = jax.grad(loss)(model.params)
    found, none = (
        in_numpy(ln.value_and_grad(model.loss, window=1), model.params, ln.init(), xs, ys)[0][1]
        for ln in (learner, learner.with_rule("tbptt"))
    )
    for name in ("wi", "bi", "wf", "bf"):
        error = [np.linalg.norm(g[name] - want[name]) for g in (found, none)]
        assert error[0] <= error[1] * (1 + 1e-9), name


def test_a_stabiliser_without_a_gradient_is_the_same_model():
    """The advice of the report: BPTT's gradient does not change, and every parameter is exact."""
    with_gradient, without = (ZOO[f"stabilisers/{n}"]() for n in ("one_maximum", "maximum_without_gradient"))
    xs, ys = without.make_inputs(T, 0), without.make_target(T, 0)

    def bptt(step):
        def loss(p):
            outputs = lax.scan(lambda s, x: step(p, s, x), without.hidden, *xs)[1]
            return sum(map(without.loss, outputs, ys)) / T

        return jax.grad(loss)(without.params)

    want, other = bptt(with_gradient.step), bptt(without.step)
    _, learner = zoo_learner("maximum_without_gradient")
    run = learner.value_and_grad(without.loss, window=3)
    found = in_numpy(run, without.params, learner.init(), xs, ys)[0][1]
    for name, w in want.items():
        np.testing.assert_allclose(other[name], w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found[name], w, rtol=1e-9, atol=1e-12)
