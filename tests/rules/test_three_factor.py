"""Three-factor learning: a modulator that is given, in all of its shapes."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, O, T, loss, spike_vjp
from tests.learn.harness import agrees, assert_close, gradients, in_numpy
from tests.learn.oracle import relative_error
from tests.learn.tape import tape

import etrax


def lif(params, v, x):
    v = 0.9 * v + x @ params["wi"] + spike_vjp(v - 0.5) @ params["wh"]
    return v, spike_vjp(v - 0.5) @ params["wo"]


def test_the_signal_passes_the_pseudo_derivative():
    """Only v is a state: the readout sees the spike, so the signal on v carries the spike's derivative."""
    rng = np.random.RandomState(0)
    params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in (("wi", (3, H)), ("wh", (H, H)), ("wo", (H, O)))}
    x, target, v = (
        jnp.asarray(rng.standard_normal((T, B, 3))),
        jnp.asarray(rng.standard_normal((T, B, O))),
        jnp.zeros((B, H)),
    )
    rule = etrax.three_factor(lambda output, target: target.sum(-1))
    learner = etrax.compile(lif, rule, x[0], params=params, hidden=v)
    (_, got), _ = in_numpy(learner.value_and_grad(loss, window=2), params, learner.init(), x, target)
    trace, want = np.zeros((B, 3, H)), np.zeros((3, H))
    for t in range(T):
        v = lif(params, v, x[t])[0]
        trace = 0.9 * trace + x[t][:, :, None]
        psi = 1 / (1 + 2 * np.abs(v - 0.5)) ** 2
        want += np.einsum("b,bio,bo->io", target[t].sum(-1), trace, psi) / T
    assert relative_error(got["wi"], want) < 1e-10


def resetting(params, v, x):
    v = 0.9 * v + x @ params["wi"]
    z = spike_vjp(v - 0.5)
    return v - z, z @ params["wo"]


@pytest.mark.parametrize("kappa", [0.0, 0.7])
def test_a_spike_that_is_read_before_the_reset(kappa):
    """The spike is a function of no new state: its eligibility is kept for itself, and filtered as such."""
    rng = np.random.RandomState(0)
    params = {"wi": jnp.asarray(rng.standard_normal((3, H))), "wo": jnp.asarray(rng.standard_normal((H, O)))}
    x, target = jnp.asarray(rng.standard_normal((T, B, 3))), jnp.asarray(rng.standard_normal((T, B, O)))
    v = jnp.zeros((B, H))
    rule = etrax.three_factor(lambda output, target: target.sum(-1), kappa)
    learner = etrax.compile(resetting, rule, x[0], params=params, hidden=v)
    trace = filtered = np.zeros((B, 3, H))
    want = np.zeros((3, H))
    for t in range(T):
        psi = 1 / (1 + 2 * np.abs(0.9 * v + x[t] @ params["wi"] - 0.5)) ** 2
        v = resetting(params, v, x[t])[0]
        before = 0.9 * trace + x[t][:, :, None]
        filtered = kappa * filtered + psi[:, None] * before
        trace = (1 - psi[:, None]) * before
        want += np.einsum("b,bio->io", target[t].sum(-1), filtered) / T
    for k in (1, 4):
        (_, got), _ = in_numpy(learner.value_and_grad(loss, window=k), params, learner.init(), x, target)
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
    learner = etrax.compile(
        case.model, etrax.three_factor(modulator), case.x[0], params=case.params, hidden=case.hidden
    )
    targets = {"y": case.targets, "reward": jnp.asarray(REWARD)}
    for k in (1, 3, T):
        got, _ = gradients("lstm", None, k, lambda o, t: loss(o, t["y"]), targets, learner)
        assert_close(got, want, context=(k,))


def test_three_factor_by_the_loss():
    t = tape("gru")
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
    learner = etrax.compile(
        case.model, etrax.three_factor(modulator), case.x[0], params=case.params, hidden=case.hidden
    )
    with pytest.raises(ValueError, match=text):
        learner.value_and_grad(loss, window=1)(case.params, learner.init(), case.x, case.targets)


def test_what_drives_a_group_is_no_activity_of_it():
    """The product that drives m reads v on its way to m, and m a step ago: the output alone shows m's activity."""
    rng = np.random.RandomState(0)

    def step(params, hidden, x):
        v = x @ params["u"]
        both = jnp.concatenate([v, hidden], -1)
        m = jnp.tanh(both @ params["w"] + (both * both).sum(keepdims=True))
        return m, m

    params = {"u": jnp.asarray(rng.standard_normal((2, 2))), "w": jnp.asarray(rng.standard_normal((3, 1)))}
    xs = jnp.asarray(rng.standard_normal((4, 2)))
    learner = etrax.compile(step, etrax.three_factor(), xs[0], params=params, hidden=jnp.zeros(1))
    gradient = learner.value_and_grad(lambda output, target: ((output - 2) ** 2).sum(), window=1, reduction="sum")
    (_, grads), _ = gradient(params, learner.init(), xs, None)

    # In the first step nothing is remembered: the signal, the loss, meets tanh' and the data.
    (_, first), _ = gradient(params, learner.init(), xs[:1], None)
    m = step(params, jnp.zeros(1), xs[0])[1]
    data = jnp.concatenate([xs[0] @ params["u"], jnp.zeros(1)])
    np.testing.assert_allclose(first["w"], ((m - 2) ** 2).sum() * (1 - m**2) * data[:, None], rtol=1e-10)
    assert grads["w"].all() and grads["u"].all()
