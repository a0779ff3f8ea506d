"""States at which a slope is infinite, where BPTT is finite: a gradient is finite too, and right where it is exact.

Roots, norms, logarithms, powers and inverse cosines of states that start at such a point, are set to it within a
sequence, or stay there. BPTT is `jax.grad` over `lax.scan` with the first state held. Windows are shorter than the
sequence, and as long.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy.special import xlogy

import etrax

T, N, B = 6, 3, 2
RNG = np.random.RandomState(0)
X = jnp.asarray(RNG.uniform(0.1, 1.5, (T, N)))
XB = jnp.asarray(RNG.uniform(0.1, 1.5, (T, B, N)))
ON = jnp.array([1.0, 1, 0, 1, 0, 1])  # 0: the states are set
LANES = jnp.array([[1.0, 1], [0, 1], [1, 0], [1, 1], [0, 1], [1, 0]])[..., None]
W = jnp.asarray(RNG.standard_normal((N, N)) / 2)
PARAMS = {"v": jnp.array([0.5, 0.7, -0.3]), "w": W, "u": W.T + 0.1, "gain": jnp.array([0.4, -0.2, 0.3]),
          "loop": jnp.stack([W, W.T]) / 2, "rows": jnp.asarray(RNG.standard_normal((4, N)))}  # fmt: skip
ZERO, ONE = jnp.zeros(N), jnp.ones(N)


def switched_off(p, h, x):
    h = jax.nn.relu(0.3 * jnp.sqrt(h) + x * p["v"] - 0.2)
    return h, h


def set_to(value, f):
    """A layer whose states are set to a value where `on` is 0, with a function that is steep there."""

    def step(p, h, x):
        x, on = x
        h = jnp.where(on > 0, 0.5 * h + 0.1 * f(h) * p["gain"] + 0.1 * jnp.tanh(x @ p["w"]) ** 2 + 0.1, value)
        return h, h

    return step


def from_zero(f):
    """A layer that starts at zero, and comes back to it by itself at no time."""

    def step(p, h, x):
        h = 0.5 * h + 0.3 * f(h) + x * p["v"] ** 2
        return h, h

    return step


def timer(f):
    """A state that no parameter reaches, and that is set to zero."""

    def step(p, s, x):
        h, age = s
        h = 0.9 * h + (x @ p["w"]) * f(age)
        return (h, jnp.where(x.sum() > 3, 0, age + 1)), h

    return step


def recurrent(p, h, x):
    x, on = x
    h = jnp.where(on > 0, 0.5 * jnp.sqrt(h) + jax.nn.relu(h @ p["w"] + x * p["v"]) + 0.1, 0.0)
    return h, h


def under_a_readout(p, s, x):
    (h, r), (x, on) = s, x
    h = jnp.where(on > 0, 0.5 * h + 0.3 * jnp.sqrt(h) + jax.nn.relu(x @ p["w"]), 0.0)
    r = 0.8 * r + h @ p["u"]
    return (h, r), r


def two_layers(p, s, x):
    """The loss sees the lower layer through a root, and does not where the upper one is set as well."""
    (a, b), (x, on) = s, x
    a = jnp.where(on > 0, 0.5 * a + 0.2 * jnp.sqrt(a) + (x @ p["w"]) ** 2, 0.0)
    b = jnp.where(on > 0, 0.5 * b + jnp.sqrt(a) @ p["u"], 0.0)
    return (a, b), b


def gated(p, s, x):
    (_, c), (x, on) = s, x
    c = jnp.where(on > 0, 0.5 * c + jax.nn.relu(x @ p["w"]) + 0.1, 0.0)
    h = jax.nn.sigmoid(x @ p["u"]) * jnp.sqrt(c)
    return (h, c), h


def norm_behind_a_choice(p, s, x):
    """Each output reaches all units by a norm, whose slope has no value where a choice has set its argument to zero."""
    low, high = s
    x, on = x
    low = jnp.where(on > 0, 0.8 * low + (x @ p["w"]) ** 2, 0.0)
    high = 0.9 * high + low + jnp.linalg.norm(low)
    return (low, high), high


def copies_of_a_norm(p, s, x):
    """A coarse state acts on all units by a norm, whose slope has no value where a choice has set its argument."""
    (coarse, fine), (x, on) = s, x
    gate, drive = jax.nn.sigmoid(x @ p["gain"])[:, None], x @ p["w"]
    fine = gate * fine + jnp.linalg.norm(jnp.where(on > 0, coarse + jnp.ones(2), 0.0), axis=-1, keepdims=True) * drive
    return (0.8 * coarse + gate, fine), fine


def one_gate_for_all(p, h, x):
    x, on = x
    h = jnp.where(on > 0, jax.nn.sigmoid(x @ p["v"]) * h + 0.1 * jnp.sqrt(h) + x * p["gain"] ** 2, 0.0)
    return h, h


def inner_loop(p, h, x):
    x, on = x
    h, _ = lax.scan(lambda h, w: (0.5 * h + 0.1 * jnp.sqrt(h) + (x @ w) ** 2, None), h, p["loop"])
    h = jnp.where(on > 0, h, 0.0)
    return h, h


def many_states(p, s, x):
    x, on = x
    y = (x @ p["w"]) ** 2
    s = [jnp.where(on > 0, 0.5 * h + 0.1 * jnp.sqrt(s[k - 1]) + 0.1 * (k + 1) * y, 0.0) for k, h in enumerate(s)]
    return s, sum(s)


def one_unit_stays(p, h, x):
    h = jnp.where(jnp.arange(N) > 0, 0.5 * jnp.sqrt(h) + (x @ p["w"]) ** 2 + 0.1, 0.0)
    return h, h


def complex_states(p, h, x):
    x, on = x
    size = jnp.sqrt(h.real**2 + h.imag**2)
    h = jnp.where(on > 0, (0.6 + 0.3j) * h + 0.1 * size + x * p["v"] * (1 + 1j) + 0.1, 0.0)
    return h, h.real


def looked_up(p, h, x):
    k, on = x
    h = jnp.where(on > 0, 0.5 * h + 0.2 * jnp.sqrt(h) + p["rows"][k] ** 2, 0.0)
    return h, h


def nobody_reads(p, s, x):
    """No output ever shows the last two states: one has a slope that is infinite where the other is zero."""
    (h, gated, _), (x, on) = s, x
    h = 0.8 * h + jnp.tanh(x @ p["w"])
    return (h, on * h**2, xlogy(gated, gated)), h


# A step, the parameters that it has, its first states, its inputs.
CASES = {
    "relu": (switched_off, "v", ONE, X),
    "set/sqrt": (set_to(0.0, jnp.sqrt), "w gain", ONE, (X, ON)),
    "set/norm": (set_to(0.0, jnp.linalg.norm), "w gain", ONE, (X, ON)),
    "set/rms": (set_to(0.0, lambda h: jnp.sqrt(jnp.mean(h**2))), "w gain", ONE, (X, ON)),
    "set/xlogy": (set_to(0.0, lambda h: xlogy(h, h)), "w gain", ONE, (X, ON)),
    "set/power": (set_to(0.0, lambda h: h**0.7), "w gain", ONE, (X, ON)),
    "set/cbrt": (set_to(0.0, jnp.cbrt), "w gain", ONE, (X, ON)),
    "set/ratio": (set_to(0.0, lambda h: h / (jnp.sqrt(h) + h + 1)), "w gain", ONE, (X, ON)),
    "set/arccos": (set_to(1.0, lambda h: jnp.arccos(jnp.minimum(h, 1))), "w gain", ONE, (X, ON)),
    "set/arcsin": (set_to(-1.0, lambda h: jnp.arcsin(jnp.maximum(h / 2 - 0.5, -1))), "w gain", -ONE, (X, ON)),
    "set/log1p": (set_to(-1.0, lambda h: (1 + h) * jnp.log1p(jnp.maximum(h, -0.99))), "w gain", ONE, (X, ON)),
    "lanes/sqrt": (set_to(0.0, jnp.sqrt), "w gain", jnp.zeros((B, N)), (XB, LANES)),
    "lanes/power": (set_to(0.0, lambda h: h**0.3), "w gain", jnp.ones((B, N)), (XB, LANES)),
    "start/sqrt": (from_zero(jnp.sqrt), "v", ZERO, X),
    "start/norm": (from_zero(jnp.linalg.norm), "v", ZERO, X),
    "start/lanes": (from_zero(jnp.sqrt), "v", jnp.zeros((B, N)), XB),
    "timer/sqrt": (timer(jnp.sqrt), "w", (ZERO, ZERO), X),
    "timer/xlogy": (timer(lambda n: xlogy(n, n)), "w", (ZERO, ZERO), X),
    "timer/reciprocal": (timer(lambda n: jnp.where(n > 0, 1 / n, 0)), "w", (ZERO, jnp.zeros(())), X),
    "recurrent": (recurrent, "w v", ONE, (X, ON)),
    "readout": (under_a_readout, "w u", (ZERO, ZERO), (X, ON)),
    "two layers": (two_layers, "w u", (ZERO, ZERO), (X, ON)),
    "gated": (gated, "w u", (ZERO, ZERO), (X, ON)),
    "fan-out of a norm": (norm_behind_a_choice, "w", (ONE, ZERO), (X, ON)),
    "copies of a norm": (copies_of_a_norm, "w gain", (jnp.ones((B, 1)), jnp.zeros((B, N))), (XB, ON)),
    "fan-out": (one_gate_for_all, "v gain", ZERO, (X, ON)),
    "loop": (inner_loop, "loop", ZERO, (X, ON)),
    "many": (many_states, "w", [ZERO] * 9, (X, ON)),
    "stays": (one_unit_stays, "w", ZERO, X),
    "complex": (complex_states, "v", ONE + 0j, (X, ON)),
    "nobody reads": (nobody_reads, "w", (ZERO, ZERO, ZERO), (X, ON)),
    "look-up": (looked_up, "rows", ZERO, (jnp.arange(T) % 4, ON)),
}
RULES = {
    "d_rtrl": etrax.d_rtrl(), "hops": etrax.d_rtrl(hops=1), "pp_prop": etrax.pp_prop(), "e_prop": etrax.e_prop(),
    "filtered": etrax.e_prop(0.5), "random": etrax.e_prop(feedback="random"), "ostl": etrax.ostl(),
    "snap": etrax.snap(2), "rtrl": etrax.rtrl(), "uoro": etrax.uoro(0), "kf_rtrl": etrax.kf_rtrl(0),
    "rflo": etrax.rflo(0.9), "ottt": etrax.ottt(0.9), "three_factor": etrax.three_factor(),
    "synthetic": etrax.synthetic(), "tbptt": etrax.tbptt(),
}  # fmt: skip
OTHER_SIGNALS = ("filtered", "random", "three_factor", "synthetic")  # not BPTT at any window
FAST = [("relu", "d_rtrl"), ("timer/sqrt", "rtrl"), ("timer/sqrt", "d_rtrl"), ("start/norm", "d_rtrl"),
        ("gated", "d_rtrl"), ("readout", "hops"), ("lanes/sqrt", "d_rtrl"), ("relu", "pp_prop"), ("relu", "rtrl"),
        ("relu", "uoro"), ("relu", "random"), ("relu", "filtered"), ("set/sqrt", "ottt"),
        ("two layers", "filtered"), ("nobody reads", "d_rtrl"), ("nobody reads", "pp_prop"),
        ("nobody reads", "rtrl")]  # fmt: skip
GRID = [pytest.param(case, rule, marks=() if (case, rule) in FAST else pytest.mark.slow)
        for case in CASES for rule in RULES]  # fmt: skip


def squares(output, target):
    return ((output - 0.3) ** 2).sum()


def bptt(step, params, hidden, x):
    def loss(p):
        return jax.vmap(lambda o: squares(o, None))(lax.scan(lambda h, x: step(p, h, x), hidden, x)[1]).mean()

    return jax.jit(jax.grad(loss))(params)


def learner_of(case, rule):
    step, names, hidden, x = CASES[case]
    params = {name: PARAMS[name] for name in names.split()}
    first = jax.tree.map(lambda a: a[0], x)
    return etrax.compile(step, rule, first, params=params, hidden=hidden), (x,)


@pytest.mark.parametrize(("case", "rule"), GRID)
def test_finite_where_bptt_is(case, rule):
    step, _, hidden, _ = CASES[case]
    learner, x = learner_of(case, RULES[rule])
    want = bptt(step, learner.params, hidden, x[0])
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(want))
    fast = (1, T) if case.startswith(("start", "timer")) else (1, 2)
    for window in fast if (case, rule) in FAST else (1, 2, 3, T):
        (_, grads), _ = jax.jit(learner.value_and_grad(squares, window=window))(learner.params, learner.init(), x, None)
        for name, g in grads.items():
            assert jnp.isfinite(g).all(), (window, name)
            if learner.report.verdicts[(name,)].kind == "exact" or (window == T and rule not in OTHER_SIGNALS):
                np.testing.assert_allclose(g, want[name], rtol=1e-9, atol=1e-12, err_msg=f"{window}, {name}")


@pytest.mark.parametrize("rule", ["d_rtrl", "rtrl", "filtered", "pp_prop"])
def test_a_state_that_no_parameter_reaches_has_no_trace(rule):
    step, _, (h, age), x = CASES["timer/sqrt"]

    def with_age_from_outside(p, h, x):
        (h, _), out = step(p, (h, x[1]), x[0])
        return h, out

    learner, _ = learner_of("timer/sqrt", RULES[rule])
    plain = etrax.compile(with_age_from_outside, RULES[rule], (x[0], age), params=learner.params, hidden=h)
    shapes = [[a.shape for a in jax.tree.leaves(one.init().trace)] for one in (learner, plain)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "rtrl"])
@pytest.mark.parametrize("window", [1, 2])
def test_an_infinite_gradient_is_seen(rule, window):
    """The state is zero because of the parameter, so that its root has no finite derivative: BPTT says so too."""

    def step(b, h, x):
        h = 0.5 * h + 0.1 * jnp.sqrt(h) + b + x
        return h, h

    x = jnp.array([[-1.1], [0.5], [0.5]])
    learner = etrax.compile(step, RULES[rule], x[0], params=jnp.array([0.5]), hidden=jnp.ones(1))
    assert lax.scan(lambda h, x: step(learner.params, h, x), jnp.ones(1), x)[1][0] == 0
    assert not jnp.isfinite(bptt(step, learner.params, jnp.ones(1), x)).all()
    (_, grad), _ = learner.value_and_grad(squares, window=window)(learner.params, learner.init(), x, None)
    assert not jnp.isfinite(grad).all()


@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop", "rtrl", "uoro"])
def test_a_number_that_the_model_spoils_is_seen(rule):
    step, names, hidden, x = CASES["relu"]
    params = {name: PARAMS[name] for name in names.split()}
    plain, watched = (
        etrax.compile(step, RULES[rule], x[0], params=params, hidden=hidden, check_finite=watch)
        for watch in (False, True)
    )
    bad = x.at[3, 1].set(jnp.nan)
    (loss, grads), _ = plain.value_and_grad(squares, window=2)(params, plain.init(), bad, None)
    assert jnp.isnan(loss)
    assert jnp.isnan(grads["v"]).any()
    with pytest.raises(etrax.NonFiniteError, match="at step 3"):
        watched.value_and_grad(squares, window=2)(params, watched.init(), bad, None)
