"""Every rule by position has every kind of trace: numbers against dense matrices, step by step, and sizes.

The recurrences here are diagonal, so that the cut step is the step itself, and D, F and ∂h/∂θ are its dense Jacobians.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import etrax

B, I, H, N, T = 2, 3, 2, 3, 7
RNG = np.random.RandomState(4)
X = jnp.asarray(RNG.standard_normal((T, B, I)))
Y = jnp.asarray(RNG.standard_normal((T, B, 2)))
DECAY, KAPPA = 0.8, 0.6


def selective(p, h, x):
    """A step size and an input for all N states of a channel: each output of wd and wb reaches several positions."""
    delta = jax.nn.softplus(x @ p["wd"])[..., None]
    h = jnp.exp(-delta * jnp.arange(1.0, N + 1)) * h + delta * (x @ p["wb"])[:, None, :]
    return h, h.reshape(B, -1) @ p["wo"]


def leaky(p, h, x):
    """One leak for all: the trace of w is as small as its data."""
    h = 0.9 * h + x @ p["w"]
    return h, h @ p["wo"]


def lstm_like(p, s, x):
    """h holds nothing of the past but what c does; a quarter of the columns act on h alone."""
    i, f, g, o = jnp.split(x @ p["w"], 4, -1)
    c = jax.nn.sigmoid(f) * s["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return {"c": c, "h": h}, h @ p["wo"]


def zeros(*shape):
    return jnp.zeros(shape)


MODELS = {
    "selective": (selective, {"wd": (I, H), "wb": (I, N), "wo": (H * N, 2)}, zeros(B, H, N)),
    "leaky": (leaky, {"w": (I, H), "wo": (H, 2)}, zeros(B, H)),
    "lstm_like": (lstm_like, {"w": (I, 4 * H), "wo": (H, 2)}, {"c": zeros(B, H), "h": zeros(B, H)}),
}


def loss(out, target):
    return ((out - target) ** 2).sum()


class Model:
    def __init__(self, name):
        self.step, shapes, self.hidden = MODELS[name]
        rng = np.random.RandomState(5)
        self.params = {k: jnp.asarray(0.7 * rng.standard_normal(s)) for k, s in shapes.items()}

    def gradient(self, rule, window):
        learner = etrax.compile(self.step, rule, X[0], params=self.params, hidden=self.hidden)
        (_, grads), _ = learner.value_and_grad(loss, window=window, reduction="sum")(self.params, learner.init(), X, Y)
        return learner, grads


def flat(tree):
    return ravel_pytree(tree)[0]


def dense(model):
    """Per step: D, ∂h'/∂θ, and the loss in h' and, by way of no state, in θ; the order is that of flat arrays."""
    h, unravel = ravel_pytree(model.hidden)
    theta, as_params = ravel_pytree(model.params)
    new = jax.jit(lambda t, h, x: flat(model.step(as_params(t), unravel(h), x)[0]))

    def out_loss(t, new, x, y):
        state = unravel(new)
        read = state["h"] if isinstance(state, dict) else state
        return loss(read.reshape(B, -1) @ as_params(t)["wo"], y)

    for x, y in zip(X, Y, strict=True):
        after = new(theta, h, x)
        yield (
            np.asarray(jax.jacobian(new, 1)(theta, h, x)),
            np.asarray(jax.jacobian(new, 0)(theta, h, x)),
            np.asarray(jax.grad(out_loss, 1)(theta, after, x, y)),
            np.asarray(jax.grad(out_loss, 0)(theta, after, x, y)),
        )
        h = after


def assert_close(model, grads, want):
    got, want = np.asarray(flat(grads)), np.asarray(want)
    assert np.abs(got - want).max() < 1e-11 * np.abs(want).max()


def bptt(model):
    def total(p):
        h, value = model.hidden, 0.0
        for x, y in zip(X, Y, strict=True):
            h, out = model.step(p, h, x)
            value += loss(out, y)
        return value

    return flat(jax.grad(total)(model.params))


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("rule", [etrax.d_rtrl(), etrax.e_prop()], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_exact_is_bptt(name, rule, window):
    model = Model(name)
    learner, grads = model.gradient(rule, window)
    assert {str(v.kind) for v in learner.report.verdicts.values()} == {"exact"}
    assert_close(model, grads, bptt(model))


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_filter_meets_the_loss_of_each_step(name, window):
    """Σ_t s_t · ε̄_t with ε̄_t = κ ε̄_{t−1} + ε_t."""
    model, total = Model(name), 0.0
    e = filtered = 0.0
    for d, c, s, direct in dense(model):
        e = d @ e + c if np.ndim(e) else c
        filtered = KAPPA * filtered + e
        total = total + direct + s @ filtered
    assert_close(model, model.gradient(etrax.e_prop(KAPPA), window)[1], total)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize(
    ("name", "kappa"), [("selective", 0.0), ("leaky", 0.0), ("leaky", KAPPA), ("lstm_like", 0.0), ("lstm_like", KAPPA)]
)
def test_a_modulator_meets_the_trace(name, window, kappa):
    """Σ_t m_t · ē_t, ē the eligibility of the activity, which is what a readout reads; κ > 0 carries no pairs."""
    model = Model(name)
    rule = etrax.three_factor(lambda out, y: (out * y).sum(), kappa)
    outs, h = [], model.hidden
    for x in X:
        h, out = model.step(model.params, h, x)
        outs.append(out)
    # The readout reads h, and all of a state that is one array.
    reads = jax.tree_util.tree_map_with_path(lambda path, a: jnp.full(a.shape, "'c'" not in str(path)), model.hidden)
    seen = np.asarray(flat(reads))
    total, e, filtered = 0.0, 0.0, 0.0
    for (d, c, _, direct), out, y in zip(dense(model), outs, Y, strict=True):
        e = d @ e + c if np.ndim(e) else c
        filtered = kappa * filtered + seen @ e
        total = total + direct + float((out * y).sum()) * filtered
    assert_close(model, model.gradient(rule, window)[1], total)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("name", ["selective", "leaky", "lstm_like"])
def test_one_leak_for_every_recurrence(name, window):
    """ε_t = λ ε_{t−1} + ∂h'/∂θ, with credit through the entry of each window."""
    model = Model(name)
    e = total = 0.0
    steps = list(dense(model))
    for first in range(0, T, window):
        part = steps[first : first + window]
        bar = 0.0
        for d, c, s, direct in reversed(part):
            total = total + direct + (s + bar) @ c
            bar = (s + bar) @ d
        total = total + (bar @ e if np.ndim(e) else 0)
        for _, c, _, _ in part:
            e = DECAY * e + c
    assert_close(model, model.gradient(etrax.rflo(DECAY), window)[1], total)


def test_a_factored_trace_over_pairs():
    """pp_prop at pairs of an output and a position: f̂ over pairs, x̂ of the data."""
    model = Model("selective")
    h, y = model.hidden, lambda p, x: {"wd": x @ p["wd"], "wb": x @ p["wb"]}

    def of_outputs(ys, h):
        delta = jax.nn.softplus(ys["wd"])[..., None]
        return jnp.exp(-delta * jnp.arange(1.0, N + 1)) * h + delta * ys["wb"][:, None, :]

    hats = {k: np.zeros((h.size, B, n)) for k, n in (("wd", H), ("wb", N))}
    data, total = np.zeros((B, I)), {k: 0.0 for k in model.params}
    for t, (x, target) in enumerate(zip(X, Y, strict=True)):
        value = lambda p, h, x=x, target=target: loss(model.step(p, h, x)[1], target)
        grads, bar = jax.grad(value, (0, 1))(model.params, h)
        total = {k: total[k] + grads[k] for k in total}
        scale = 1 - 0.7 ** max(t, 1)
        for k, f in hats.items():
            total[k] = total[k] + np.einsum("h,hbo,bi->io", np.asarray(bar).reshape(-1), f, data) / scale
        ys = y(model.params, x)
        d = np.asarray(jax.jacobian(of_outputs, 1)(ys, h)).reshape(h.size, h.size)
        f_now = jax.jacobian(of_outputs)(ys, h)
        for k in hats:
            hats[k] = 0.7 * np.einsum("gh,hbo->gbo", d, hats[k]) + 0.3 * np.asarray(f_now[k]).reshape(hats[k].shape)
        data, h = 0.7 * data + np.asarray(x), of_outputs(ys, h)
    with pytest.warns(etrax.RuleWarning, match="can change sign"):
        learner, grads = model.gradient(etrax.pp_prop(0.7), 1)
    assert "factored" in learner.report.verdicts["wd",].reason
    assert_close(model, grads, flat({k: jnp.asarray(v) for k, v in total.items()}))


def test_sizes():
    """A leak for all makes the trace of w that of its data under every rule that moves it by position."""
    leaky = Model("leaky")
    for rule in (etrax.d_rtrl(), etrax.three_factor(), etrax.rflo(DECAY), etrax.e_prop(feedback="random")):
        trace = leaky.gradient(rule, 1)[0].init().trace
        assert sum(a.size for a in jax.tree.leaves(trace) if a.ndim > 1) == B * I, rule
    filtered = leaky.gradient(etrax.e_prop(KAPPA), 1)[0].init().trace
    assert sum(a.size for a in jax.tree.leaves(filtered)) == 2 * B * I
    # Of an LSTM under a filter: c as it is, and h filtered; the columns of the output gate reach h alone.
    entries = Model("lstm_like").gradient(etrax.e_prop(KAPPA), 1)[0].init().trace.entries
    assert [len(arrays) for arrays in entries] == [2]
