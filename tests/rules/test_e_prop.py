"""e-prop with the symmetric signal: the window engine against the filtered recursion, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn import reference
from tests.learn.cases import CASES, B, H, I, spike_vjp
from tests.learn.harness import WINDOWS, agrees, assert_close, compiled, differs, gradients, in_numpy, numbers
from tests.learn.oracle import relative_error

import etrax

KAPPA = 0.6


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_recursion(name, windows):
    agrees(name, etrax.e_prop(KAPPA), lambda n, k: reference.e_prop(n, k, KAPPA), windows)


@pytest.mark.parametrize("name", ["gru", "alif_vjp"])
def test_one_step_a_window(name):
    """The filter is moved in another way there."""
    agrees(name, etrax.e_prop(KAPPA), lambda n, k: reference.e_prop(n, k, KAPPA), (1,))


def test_a_leaky_layer_by_hand():
    """h ← 0.9 h + x w, ℓ = h²: Σ_t 2 h_t ε̄_t, and the same for every window."""
    step = lambda w, h, x: (0.9 * h + x * w,) * 2
    x, w = jnp.array([1.0, -0.5, 2.0, 0.3, 1.1]), jnp.float64(0.7)
    want = h = e = filtered = 0.0
    for value in x:
        h, e = 0.9 * h + value * w, 0.9 * e + value
        filtered = KAPPA * filtered + e
        want += 2 * h * filtered
    learner = etrax.compile(step, etrax.e_prop(KAPPA), x[0], params=w, hidden=jnp.float64(0))
    for k in (1, 2, 3, 5):
        run = learner.value_and_grad(lambda o, _: o**2, window=k, reduction="sum")
        (_, got), _ = in_numpy(run, w, learner.init(), x, x)
        assert abs(got - want) < 1e-12 * abs(want), k


def test_the_second_step_remembers_the_first():
    """A vanilla RNN has no trace to carry but the filter's: a loss at the second step alone tells κ from 0."""
    case = CASES["vanilla"]
    late = lambda o, t: (o**2).sum() * t
    found = []
    for kappa in (0.0, 0.9):
        learner = etrax.compile(case.model, etrax.e_prop(kappa), case.x[0], params=case.params, hidden=case.hidden)
        run = learner.value_and_grad(late, window=1, reduction="sum")
        found.append(in_numpy(run, case.params, learner.init(), case.x[:2], jnp.array([0.0, 1.0]))[0][1])
    assert relative_error(found[1]["wi"], found[0]["wi"]) > 0.1
    assert relative_error(found[1]["wo"], found[0]["wo"]) == 0


@pytest.mark.parametrize("name", ["gru", "alif_vjp"])
def test_without_a_filter_it_is_d_rtrl(name):
    for k in (1, 3):
        assert_close(gradients(name, etrax.e_prop(), k)[0], gradients(name, etrax.d_rtrl(), k)[0], tol=0)
    assert compiled(name, etrax.e_prop()).report.verdicts == compiled(name, etrax.d_rtrl()).report.verdicts


def old_state_read_out(p, h, x):
    """The output shows the state of a step ago."""
    return 0.8 * h + x @ p["w"], h @ p["o"]


def spike_read_before_the_reset(p, v, x):
    v = 0.8 * v + x @ p["w"]
    z = spike_vjp(v - 0.3)
    return v - z, z @ p["o"]


def layer_that_reads_the_old_state(p, s, x):
    return {"a": 0.8 * s["a"] + x @ p["w"], "b": 0.5 * s["b"] + s["a"] @ p["u"]}, s["b"] + s["a"] @ p["u"]


def skip_path(p, h, x):
    y = x @ p["w"]
    return 0.8 * h + y, h + jnp.tanh(y)


def fixed_mixing(p, s, x):
    """A fixed average between two states, which D-RTRL carries by copies of states, and a filtered trace does not."""
    a = 0.8 * s["a"] + x @ p["w"]
    b = 0.5 * s["b"] + a.mean(-1, keepdims=True)
    return {"a": a, "b": b}, b


@pytest.mark.parametrize(
    ("step", "hidden", "shapes"),
    [
        (old_state_read_out, 0, {"w": (3, 4), "o": (4, 2)}),
        (spike_read_before_the_reset, 0, {"w": (3, 4), "o": (4, 2)}),
        (layer_that_reads_the_old_state, ("a", "b"), {"w": (3, 4), "u": (4, 4)}),
        (skip_path, 0, {"w": (3, 4)}),
        (fixed_mixing, ("a", "b"), {"w": (3, 4)}),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_whatever_the_loss_reads(step, hidden, shapes):
    """Nothing is frozen; the same for every window; with next to no filter, what D-RTRL gives a step at a time."""
    rng = np.random.RandomState(2)
    params = {k: jnp.asarray(rng.standard_normal(s)) for k, s in shapes.items()}
    hidden = {k: jnp.zeros((2, 4)) for k in hidden} if hidden else jnp.zeros((2, 4))
    x = jnp.asarray(rng.standard_normal((5, 2, 3)))

    def run(rule, k):
        learner = etrax.compile(step, rule, x[0], params=params, hidden=hidden)
        gradient = learner.value_and_grad(lambda o, _: (o**2).sum(), window=k)
        return in_numpy(gradient, params, learner.init(), x, x)[0][1]

    one = run(etrax.e_prop(KAPPA), 1)
    assert differs(one, run(etrax.e_prop(1e-9), 1)) > 1e-3
    if step is not fixed_mixing:
        assert_close(run(etrax.e_prop(1e-13), 1), run(etrax.d_rtrl(hops=0), 1))
    for k in (2, 3):
        assert_close(run(etrax.e_prop(KAPPA), k), one, context=(k,))


def test_the_filter_matters():
    one = reference.e_prop("gru", 1, KAPPA)
    assert differs(one, reference.e_prop("gru", 1, 0.5)) > 1e-3
    assert differs(one, reference.d_rtrl("gru", 1)) > 1e-3


def test_a_clip_sees_the_share_that_a_step_counts_for():
    """With a mean over T steps a gradient is clipped at 1/T of the size that it has in a sum."""
    clip = jax.custom_vjp(lambda a: a)
    clip.defvjp(lambda a: (a, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))

    def step(w, h, x):
        h = 0.9 * h + x * w
        return h, clip(h)

    x, w = jnp.array([1.0, -0.5, 2.0, 0.3]), jnp.float64(0.7)
    learner = etrax.compile(step, etrax.e_prop(KAPPA), x[0], params=w, hidden=jnp.float64(0))
    want = h = e = filtered = 0.0
    for value in x:
        h, e = 0.9 * h + value * w, 0.9 * e + value
        filtered = KAPPA * filtered + e
        want += np.clip(0.3 * h / 4, -0.1, 0.1) * filtered
    for k in (1, 2):
        gradient = learner.value_and_grad(lambda o, _: 0.15 * o**2, window=k)
        (_, got), _ = in_numpy(gradient, w, learner.init(), x, x)
        assert abs(got - want) < 1e-12 * abs(want), k


def test_memory():
    n = B * (I * H + H * H + H)
    last = B * (I + H + 3 * H)  # a plain net has no trace but its last step
    assert compiled("vanilla", etrax.e_prop()).report.memory["e_prop"] == 8 * last
    # No state reads the state before it but through weight ops, so that the filtered trace needs no other beside it.
    assert compiled("vanilla", etrax.e_prop(KAPPA)).report.memory["e_prop"] == 8 * n
    assert numbers(compiled("vanilla", etrax.e_prop(KAPPA)).init().trace) == n
    assert numbers(compiled("gru", etrax.e_prop(KAPPA)).init().trace) == 2 * 2 * n  # the reset gate has none


def test_states_that_follow_from_others_or_are_not_seen_have_less():
    """ALIF: v and a have a trace, z that follows from them a filtered one, for it is what the loss sees."""
    entries = compiled("alif_vjp", etrax.e_prop(KAPPA)).init().trace.entries
    assert [len(arrays) for arrays in entries] == [2 + 1] * 3 + [1 + 1] * 2


def test_a_filter_is_never_exact():
    verdicts = compiled("lru", etrax.e_prop(KAPPA)).report.verdicts
    assert compiled("lru", etrax.e_prop()).report.verdicts["b",].kind == "exact"
    assert {p[0]: str(v.kind) for p, v in verdicts.items()} == {
        "b": "approximate", "nu": "approximate", "theta": "approximate", "wo": "exact", "d": "exact",
    }  # fmt: skip
    assert "filtered by 0.6" in verdicts["b",].reason


@pytest.mark.parametrize("rule", [etrax.e_prop(KAPPA), etrax.d_rtrl(credit="state"), etrax.rflo(0.9, credit="state")])
@pytest.mark.parametrize(("shape", "arrives"), [((2,), ("e_prop", "d_rtrl")), ((1, 2), ())])
def test_a_trace_that_no_loss_of_a_step_meets_gives_no_credit(rule, shape, arrives):
    """w acts on h, h through v on what the output shows, which is a state itself: it has a trace of w, or none."""

    def step(p, s, x):
        product = jnp.prod(s[0])[None]
        h, shown = p["w"] + s[1] + x, product @ p["v"] if p["v"].ndim == 2 else product * p["v"]
        return (h, shown), shown

    params = {"w": jnp.array([0.5, -0.4]), "v": jnp.array([0.3, 0.6]).reshape(shape)}
    learner = etrax.compile(step, rule, jnp.ones(2), params=params, hidden=(jnp.ones(2), jnp.zeros(2)))
    run = learner.value_and_grad(lambda o, t: (o**2).sum(), window=1)
    (_, grads), _ = run(params, learner.init(), jnp.ones((5, 2)), None)
    verdict = learner.report.verdicts["w",]
    assert bool(grads["w"].any()) == (rule.name in arrives)
    assert (verdict.kind == "truncated" and verdict.least_window is None) == (rule.name not in arrives)


def test_a_group_of_which_no_state_is_followed():
    """Its states are neither seen by the loss of a step nor read by a state, but through a weight op."""

    def step(params, hidden, x):
        below, above = hidden
        return (jnp.tanh(x @ params["w"]), below @ params["v"]), above

    params, hidden = {"w": jnp.ones((2, 1)), "v": jnp.ones((1, 2))}, (jnp.zeros(1), jnp.zeros(2))
    learner = etrax.compile(step, etrax.e_prop(0.5), jnp.ones(2), params=params, hidden=hidden)
    assert learner.report.verdicts[("w",)].kind == "truncated"
    x = jnp.asarray([[0.3, -0.2], [0.5, 0.1], [-0.4, 0.6], [0.2, 0.2]])
    (_, grads), _ = learner.value_and_grad(lambda o, t: (o - 1).sum(), window=2)(params, learner.init(), x, None)
    assert not grads["w"].any()


@pytest.mark.parametrize("kappa", [-0.1, 1.0, "slow", None])
def test_bad_kappa(kappa):
    with pytest.raises(ValueError, match="`e_prop` takes a `kappa` from 0 up to but not including 1"):
        etrax.e_prop(kappa)
