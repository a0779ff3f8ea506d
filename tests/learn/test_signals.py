"""Learning signals: g = Σ_t s_t · ε_t step by step, whatever the window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from tests.learn import reference
from tests.learn.cases import CASES, B, H, O, T, loss, spike_vjp
from tests.learn.harness import agrees, assert_close, compiled, differs, gradients
from tests.learn.oracle import relative_error

KEY = 3
# Per case: the groups in order, each by the leaf that shows its activity and its number of neurons.
SHOWN = {
    "vanilla": [("hidden", H)], "gru": [("hidden", H)], "lstm": [("h", H)], "alif_vjp": [("z", H)], "alif_jvp": [("z", H)],
    "two_layers": [("h", H), ("k", 5)], "lru": [("hidden", H)],
}  # fmt: skip


def matrices(name):
    key = jax.random.key(KEY)
    return [jax.random.normal(jax.random.fold_in(key, n), (O, p)) / p**0.5 for n, (_, p) in enumerate(SHOWN[name])]


def random_feedback(name, kappa=0.0):
    seen, maps = reference.outputs(name), matrices(name)

    def signal(t):
        error = seen[t][1]
        found = {leaf: error @ m for (leaf, _), m in zip(SHOWN[name], maps, strict=True)}
        if name.startswith("alif"):
            found["r"] = error  # the output is this state: it takes its own error
        return reference.on_states(name, t, **found)

    return reference.guided(name, signal, kappa)


@pytest.mark.parametrize("name", CASES)
def test_random_feedback(name):
    want = random_feedback(name)
    agrees(name, etrax.e_prop(feedback="random", key=KEY), lambda n, k: want)


@pytest.mark.parametrize("name", ["alif_vjp", "lru"])
def test_random_feedback_with_a_filter(name):
    want = random_feedback(name, 0.6)
    assert differs(want, random_feedback(name)) > 1e-3
    agrees(name, etrax.e_prop(0.6, "random", key=KEY), lambda n, k: want)


def test_feedback_is_not_the_gradient():
    assert differs(random_feedback("gru"), reference.d_rtrl("gru", 1)) > 0.1


def test_adaptive_feedback_follows_the_readout():
    """The matrix in the trace moves by the readout's own gradient; with rate 0 it would be the random one."""
    rule = etrax.e_prop(feedback="adaptive", key=KEY, feedback_rate=0.3, feedback_decay=0.1)
    seen, (start,) = reference.outputs("vanilla"), matrices("vanilla")
    for k in (1, 3):
        matrix, used = start, []
        for steps in reference.windows(k):
            used += [matrix] * len(steps)
            move = sum(seen[t][1].T @ seen[t][2] for t in steps) / len(steps)
            matrix = 0.9 * matrix - 0.3 * move
        want = reference.guided("vanilla", lambda t, u=used: reference.on_states("vanilla", t, hidden=seen[t][1] @ u[t]))
        got, state = gradients("vanilla", rule, k)
        assert_close(got, want, context=(k,))
        assert relative_error(state.trace[1][0], matrix) < 1e-10
    assert differs(got, gradients("vanilla", etrax.e_prop(feedback="random", key=KEY), 3)[0]) > 1e-3


def test_evolving_without_a_loss_moves_the_trace_and_not_the_matrix():
    learner, case = compiled("vanilla", etrax.e_prop(feedback="adaptive", key=KEY)), CASES["vanilla"]
    state, _ = jax.jit(learner.step)(case.params, learner.init(), case.x[0])
    assert np.any(jax.tree.leaves(state.trace[0])[0])
    assert_close({"b": state.trace[1][0]}, {"b": matrices("vanilla")[0]}, tol=0)


def lif(params, v, x):
    v = 0.9 * v + x @ params["wi"] + spike_vjp(v - 0.5) @ params["wh"]
    return v, spike_vjp(v - 0.5) @ params["wo"]


def test_the_signal_passes_the_pseudo_derivative():
    """Only v is a state: the readout sees the spike, so the signal on v carries the spike's derivative."""
    rng = np.random.RandomState(0)
    params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in (("wi", (3, H)), ("wh", (H, H)), ("wo", (H, O)))}
    x, target, v = jnp.asarray(rng.standard_normal((T, B, 3))), jnp.asarray(rng.standard_normal((T, B, O))), jnp.zeros((B, H))
    rule = etrax.three_factor(lambda output, target: target.sum(-1))
    learner = etrax.compile(lif, rule, x[0], params=params, hidden=v)
    (_, got), _ = learner.value_and_grad(loss, window=2)(params, learner.init(), x, target)
    trace, want = np.zeros((B, 3, H)), np.zeros((3, H))
    for t in range(T):
        v = lif(params, v, x[t])[0]
        trace = 0.9 * trace + x[t][:, :, None]
        psi = 1 / (1 + 2 * np.abs(v - 0.5)) ** 2
        want += np.einsum("b,bio,bo->io", target[t].sum(-1), trace, psi) / T
    assert relative_error(got["wi"], want) < 1e-10


def modulated(name, m, leaf):
    shape = CASES[name].hidden[leaf].shape if isinstance(CASES[name].hidden, dict) else CASES[name].hidden.shape
    return reference.guided(name, lambda t: reference.on_states(name, t, **{leaf: np.broadcast_to(m(t), shape)}))


REWARD = np.random.RandomState(5).standard_normal((T, B))


@pytest.mark.parametrize(
    ("modulator", "m"),
    [
        (lambda o, t: t["reward"].sum(), lambda t: REWARD[t].sum()),
        (lambda o, t: t["reward"], lambda t: REWARD[t][:, None]),
        (lambda o, t: {("h",): t["reward"][:, None] * jnp.arange(H)}, lambda t: REWARD[t][:, None] * np.arange(H)),
        (lambda o, t: {"h": jnp.arange(H)}, lambda t: np.arange(H)),
    ],
    ids=["number", "per sample", "per neuron", "per neuron, constant"],
)
def test_three_factor(modulator, m):
    case, want = CASES["lstm"], modulated("lstm", m, "h")
    learner = etrax.compile(case.model, etrax.three_factor(modulator), case.x[0], params=case.params, hidden=case.hidden)
    targets = {"y": case.targets, "reward": jnp.asarray(REWARD)}
    for k in (1, 3, T):
        got, _ = gradients("lstm", None, k, lambda o, t: loss(o, t["y"]), targets, learner)
        assert_close(got, want, context=(k,))


def test_three_factor_by_the_loss():
    t = reference.tape("gru")
    want = modulated("gru", lambda s: t.losses[s], "hidden")
    agrees("gru", etrax.three_factor(), lambda n, k: want, windows=(2,))


def test_a_mask_weighs_the_modulator():
    case = CASES["vanilla"]
    weight = jnp.asarray(np.random.RandomState(1).uniform(size=(T, B)))
    rule = etrax.three_factor(lambda output, target: target[:, 0])
    learner = etrax.compile(case.model, rule, case.x[0], params=case.params, hidden=case.hidden)
    run = learner.value_and_grad(loss, window=4, reduction="sum")
    (_, got), _ = run(case.params, learner.init(), case.x, case.targets, weight)
    want = modulated("vanilla", lambda t: (weight[t] * case.targets[t][:, 0])[:, None] * T, "hidden")
    for name in ("wi", "wh", "b"):
        assert relative_error(got[name], want[name]) < 1e-10


def test_verdicts():
    for rule in (etrax.e_prop(feedback="random", key=KEY), etrax.three_factor()):
        verdicts = compiled("gru", rule).report.verdicts
        kinds = {p[0]: str(v.kind) for p, v in verdicts.items()}
        assert {k for k, v in kinds.items() if v == "exact"} == {"wo", "bo"}
        assert {k for k, v in kinds.items() if v == "truncated"} == {"wr", "ur", "br"}
        assert all("learning signal" in v.reason for v in verdicts.values() if v.kind != "exact")
        assert all(v.kind != "exact" for p, v in compiled("alif_vjp", rule).report.verdicts.items())


def test_memory_of_the_matrix():
    plain = compiled("vanilla", etrax.e_prop()).report.memory["e_prop"]
    assert compiled("vanilla", etrax.e_prop(feedback="random", key=KEY)).report.memory["e_prop"] == plain
    assert compiled("vanilla", etrax.e_prop(feedback="adaptive", key=KEY)).report.memory["e_prop"] == plain + 8 * O * H


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: etrax.e_prop(feedback="loud"), "takes a `feedback` of 'symmetric', 'random' or 'adaptive'"),
        (lambda: etrax.e_prop(feedback="random"), "`e_prop` with random feedback needs `key=`"),
        (lambda: etrax.e_prop(feedback="adaptive", key=0, feedback_rate=0), "a positive `feedback_rate`"),
        (lambda: etrax.e_prop(feedback="adaptive", key=0, feedback_decay=2), "`feedback_decay` from 0"),
        (lambda: etrax.three_factor(3), "takes a function `modulator"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("modulator", "text"),
    [
        (lambda o, t: jnp.ones((7,)), r"has shape \[7\]; expected one number, or one per sample"),
        (lambda o, t: {"q": 1.0}, "a signal for the state 'q'; the states are"),
        (lambda o, t: {"h": jnp.ones(9)}, r"of shape \[9\] for the state 'h'"),
    ],
)
def test_bad_modulators(modulator, text):
    case = CASES["lstm"]
    learner = etrax.compile(case.model, etrax.three_factor(modulator), case.x[0], params=case.params, hidden=case.hidden)
    with pytest.raises(ValueError, match=text):
        learner.value_and_grad(loss, window=1)(case.params, learner.init(), case.x, case.targets)
