"""Learning signals: g = Σ_t s_t · ε_t step by step, whatever the window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, H, O
from tests.learn.harness import WINDOWS, agrees, assert_close, compiled, differs, gradients
from tests.learn.oracle import relative_error

import etrax

KEY = 3
# Per case: the groups in order, each by the leaf that shows its activity and its number of neurons.
SHOWN = {
    "vanilla": [("hidden", H)], "gru": [("hidden", H)], "lstm": [("h", H)], "alif_vjp": [("z", H)],
    "alif_jvp": [("z", H)], "two_layers": [("h", H), ("k", 5)], "lru": [("hidden", H)],
}  # fmt: skip


def matrices(name):
    key = jax.random.key(KEY)
    draw = lambda n, p: jax.random.normal(jax.random.fold_in(key, n), (O, p), np.float32) / p**0.5
    return [draw(n, p).astype(float) for n, (_, p) in enumerate(SHOWN[name])]


def random_feedback(name, kappa=0.0):
    seen, maps = reference.outputs(name), matrices(name)

    def signal(t):
        error = seen[t][1]
        found = {leaf: error @ m for (leaf, _), m in zip(SHOWN[name], maps, strict=True)}
        return reference.on_states(name, t, **found)

    def direct(t):
        """The leaky readout is the output itself: it takes its own error."""
        return reference.on_states(name, t, **({"r": seen[t][1]} if name.startswith("alif") else {}))

    return reference.guided(name, signal, kappa, direct)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_random_feedback(name, windows):
    want = random_feedback(name)
    agrees(name, etrax.e_prop(feedback="random", key=KEY), lambda n, k: want, windows)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", ["alif_vjp", "lru"])
def test_random_feedback_with_a_filter(name, windows):
    want = random_feedback(name, 0.6)
    assert differs(want, random_feedback(name)) > 1e-3
    agrees(name, etrax.e_prop(0.6, "random", key=KEY), lambda n, k: want, windows)


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
        want = reference.guided(
            "vanilla", lambda t, u=used: reference.on_states("vanilla", t, hidden=seen[t][1] @ u[t])
        )
        got, state = gradients("vanilla", rule, k)
        assert_close(got, want, context=(k,))
        assert relative_error(state.trace.source[0], matrix) < 1e-10
    assert differs(got, gradients("vanilla", etrax.e_prop(feedback="random", key=KEY), 3)[0]) > 1e-3


def test_evolving_without_a_loss_moves_the_trace_and_not_the_matrix():
    learner, case = compiled("vanilla", etrax.e_prop(feedback="adaptive", key=KEY)), CASES["vanilla"]
    state, _ = jax.jit(learner.step)(case.params, learner.init(), case.x[0])
    assert np.any(jax.tree.leaves(state.trace.plain)[0])
    assert_close({"b": state.trace.source[0]}, {"b": matrices("vanilla")[0]}, tol=0)


def test_verdicts():
    for rule in (etrax.e_prop(feedback="random", key=KEY), etrax.three_factor()):
        verdicts = compiled("gru", rule).report.verdicts
        kinds = {p[0]: str(v.kind) for p, v in verdicts.items()}
        assert {k for k, v in kinds.items() if v == "exact"} == {"wo", "bo"}
        assert {k for k, v in kinds.items() if v == "truncated"} == {"wr", "ur", "br"}
        assert all("learning signal" in v.reason for v in verdicts.values() if v.kind != "exact")
        assert all(v.kind != "exact" for p, v in compiled("alif_vjp", rule).report.verdicts.items())


def test_memory_of_the_matrix():
    plain = compiled("vanilla", etrax.three_factor()).report.memory["three_factor"]
    assert compiled("vanilla", etrax.e_prop(feedback="random", key=KEY)).report.memory["e_prop"] == plain
    assert compiled("vanilla", etrax.e_prop(feedback="adaptive", key=KEY)).report.memory["e_prop"] == plain + 8 * O * H


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: etrax.e_prop(feedback="loud"), "takes a `feedback` of 'symmetric', 'random' or 'adaptive'"),
        (lambda: etrax.e_prop(feedback="random", key=None), "`e_prop` with random feedback needs `key=`"),
        (lambda: etrax.e_prop(feedback="adaptive", key=0, feedback_rate=0), "a `feedback_rate` above 0"),
        (lambda: etrax.e_prop(feedback="adaptive", key=0, feedback_decay=2), "`feedback_decay` from 0"),
        (lambda: etrax.three_factor(3), "takes a function `modulator"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()


SIGNALS = [
    etrax.e_prop(feedback="random", key=KEY),
    etrax.e_prop(0.5),
    etrax.three_factor(),
    etrax.three_factor(kappa=0.5),
]


@pytest.mark.parametrize("rule", SIGNALS, ids=str)
def test_what_reaches_no_state_that_matters_keeps_its_gradient(rule):
    """The state h is written and never read, in one group with a constant b that is."""

    def step(w, s, x):
        h = s["b"] * (x @ w)
        return {"h": h, "b": s["b"]}, h

    rng = np.random.RandomState(0)
    w, b, xs = rng.standard_normal((3, 4)), rng.standard_normal((2, 4)), rng.standard_normal((5, 2, 3))
    learner = etrax.compile(step, rule, xs[0], params=w, hidden={"h": b, "b": b})
    (_, found), _ = learner.value_and_grad(lambda o, y: (o**2).sum(), window=2, reduction="sum")(
        w, learner.init(), xs, np.zeros(5)
    )
    want = jax.grad(lambda w: ((b * (xs @ w)) ** 2).sum())(w)
    assert learner.report.verdicts[()].kind == "exact"
    assert relative_error(found, want) < 1e-10


OWN_SIGNALS = [rule for rule in SIGNALS if rule != SIGNALS[1]]


def shown_beside_hidden(link):
    """The output shows c; m is in its group, and acts on it through a weight, with a `link` without one too."""

    def step(p, s, x):
        c = jax.nn.sigmoid(s["m"] @ p["u"] + x @ p["v"]) * s["c"]
        c = c + 0.3 * s["m"] if link else c
        return {"c": c, "m": jax.nn.sigmoid(x @ p["w"]) * c}, c

    return step


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("rule", OWN_SIGNALS, ids=str)
def test_what_no_signal_reaches_is_truncated_for_every_window(rule, link):
    rng = np.random.RandomState(0)
    params = {k: rng.standard_normal(s) for k, s in {"u": (4, 4), "v": (3, 4), "w": (3, 4)}.items()}
    hidden, xs = {k: rng.standard_normal(4) for k in "cm"}, rng.standard_normal((5, 3))
    learner = etrax.compile(shown_beside_hidden(link), rule, xs[0], params=params, hidden=hidden)
    verdicts = learner.report.verdicts
    for window in (1, 2, 5):
        run = learner.value_and_grad(lambda o, y: ((o + 0.3) ** 2).sum(), window=window, reduction="sum")
        (_, grads), _ = run(params, learner.init(), xs, np.zeros(5))
        assert {k: bool(np.any(g)) for k, g in grads.items()} == {"u": True, "v": True, "w": link}
    assert verdicts["u",].kind == verdicts["v",].kind == "approximate"
    if link:
        assert verdicts["w",].kind == "approximate"
    else:
        assert (verdicts["w",].kind, verdicts["w",].least_window) == ("truncated", None)
        assert "its gradient is zero in every window" in verdicts["w",].reason


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_complex_state_takes_the_signal_on_both_of_its_parts(window):
    """No output shows a unit by itself, so that the signal acts on the states; λ is real: parts stay apart."""

    def step(p, h, x):
        h = 0.5 * h + x.astype(complex) @ (p["re"] + 1j * p["im"])
        return h, (h.real + h.imag).sum()

    rng = np.random.RandomState(0)
    params, xs = {k: rng.standard_normal((3, 4)) for k in ("re", "im")}, rng.standard_normal((5, 3))
    modulators = rng.standard_normal(5)
    learner = etrax.compile(step, etrax.three_factor(lambda o, m: m), xs[0], params=params, hidden=np.zeros(4) + 0j)
    run = learner.value_and_grad(lambda o, m: o**2, window=window, reduction="sum")
    (_, grads), _ = run(params, learner.init(), xs, modulators)
    trace, want = np.zeros(3), np.zeros(3)
    for x, m in zip(xs, modulators, strict=True):
        trace = 0.5 * trace + x
        want += m * trace
    for g in grads.values():
        assert relative_error(g, np.repeat(want[:, None], 4, 1)) < 1e-12


def test_what_drives_a_unit_is_not_its_activity():
    """One unit, driven by ops whose data another op has made: their own gradients are not lost."""
    params = {"a": jnp.ones((2, 3)) / 3, "b": jnp.ones((3, 1)) / 2, "c": jnp.ones((3, 1)) / 4}

    def step(p, h, x):
        u = x @ p["a"]
        h = 0.9 * h + jax.nn.sigmoid(u @ (p["b"] * jnp.tanh(u.mean()))) * (u @ p["c"])
        return h, h

    xs = jnp.asarray(np.random.RandomState(0).standard_normal((5, 2)))
    loss = lambda output, target: ((output + 0.3) ** 2).sum()
    learner = etrax.compile(step, etrax.e_prop(feedback="random"), xs[0], params=params, hidden=jnp.zeros(1))
    (_, grads), _ = learner.value_and_grad(loss, window=1)(params, learner.init(), xs)

    def bptt(p):
        return jax.vmap(lambda o: loss(o, None))(jax.lax.scan(lambda h, x: step(p, h, x), jnp.zeros(1), xs)[1]).mean()

    want = jax.grad(bptt)(params)
    for name in "bc":  # the output shows the unit itself: its error is the signal, and the trace is exact
        np.testing.assert_allclose(grads[name], want[name], rtol=1e-10)


@pytest.mark.parametrize(
    "rule", [etrax.e_prop(feedback="random", key=1), etrax.e_prop(0.5, "random"), etrax.three_factor()]
)
def test_columns_that_reach_no_state_keep_the_gradient_of_the_loss(rule):
    """One product for a leaky state and for the gate of the output: the gate's half has no state to be signalled at."""

    def step(w, h, x):
        drive, gate = jnp.split(x @ w, 2, -1)
        h = 0.9 * h + drive
        return h, jax.nn.sigmoid(gate) * h

    w = jax.random.normal(jax.random.key(0), (3, 8))
    xs, ys = jax.random.normal(jax.random.key(1), (7, 2, 3)), jnp.zeros((7, 2, 4))
    learner = etrax.compile(step, rule, xs[0], params=w, hidden=jnp.zeros((2, 4)))
    squares = lambda o, y: ((o - y) ** 2).sum()
    for window in (1, 3):
        (_, grad), _ = learner.value_and_grad(squares, window=window, reduction="sum")(w, learner.init(), xs, ys)
        want = jax.grad(
            lambda w: sum(map(squares, jax.lax.scan(lambda h, x: step(w, h, x), jnp.zeros((2, 4)), xs)[1], ys))
        )(w)
        np.testing.assert_allclose(grad[:, 4:], want[:, 4:], rtol=1e-12, atol=1e-12)


def spiking(p, h, x):
    """Spikes that a leaky trace, the weights of the readout and the output itself read."""
    v = 0.9 * h["v"] + x @ p["in"] + h["z"] @ p["rec"]
    z = jax.nn.sigmoid(4 * (v - 0.3))
    s = 0.8 * h["s"] + z
    return {"v": v, "z": z, "s": s}, (s @ p["out"], z)


@pytest.mark.parametrize("beside", ["alone", "in one output"])
@pytest.mark.parametrize("kappa", [0.0, 0.6])
@pytest.mark.parametrize("window", [1, 3, 7])
def test_the_cost_of_a_spike_that_is_shown_beside_a_readout_is_its_own(window, kappa, beside):
    """Gradients add up: of the readout under feedback, and of the spikes under the gradient of each step's loss."""
    rng = np.random.default_rng(0)
    shapes = {"in": (3, H), "rec": (H, H), "out": (H, 2)}
    params = {name: jnp.asarray(rng.standard_normal(shape) / 2) for name, shape in shapes.items()}
    hidden = {name: jnp.zeros((2, H)) for name in "vzs"}
    xs, ys = jnp.asarray(rng.standard_normal((7, 2, 3))), jnp.asarray(rng.standard_normal((7, 2, 2)))
    cost = jnp.asarray(rng.standard_normal((7, H)))
    feedback = etrax.e_prop(kappa, "random", key=KEY)

    def joined(p, h, x):
        h, parts = spiking(p, h, x)
        return h, jnp.concatenate(parts, -1)

    def readout_alone(p, h, x):
        h, (logits, _) = spiking(p, h, x)
        return h, logits

    def grads(step, rule, read, spikes, window=window):
        def loss_fn(output, target):
            logits, z = read(output)
            return ((logits - target[0]) ** 2).sum() * (spikes != "only") + (z * target[1]).sum() * (spikes != "no")

        learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden)
        return learner.value_and_grad(loss_fn, window, "sum")(params, learner.init(), xs, (ys, cost))[0][1]

    in_one = beside == "in one output"
    step, read = (joined, lambda o: (o[:, :2], o[:, 2:])) if in_one else (spiking, lambda o: o)
    found = grads(step, feedback, read, "too")
    without = (joined, read) if in_one else (readout_alone, lambda o: (o, 0 * o[:, :1]))
    of_readout = grads(without[0], feedback, without[1], "no")
    of_spikes = grads(spiking, etrax.e_prop(credit="state"), lambda o: o, "only", 1)
    for name in ("in", "rec"):
        assert float(jnp.abs(of_spikes[name]).max()) > 1e-3
        assert relative_error(found[name], of_readout[name] + of_spikes[name]) < 1e-12
