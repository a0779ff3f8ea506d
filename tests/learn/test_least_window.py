"""From which window on credit arrives: exactly zero below the least window, and not from there on, under every rule."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.harness import in_numpy

import etrax

T = 24
LEAKS = jnp.array([0.5, 0.8, 0.9])


def loss(output, target):
    return ((output - target) ** 2).sum()


def normal(seed, *shape):
    return jnp.asarray(0.7 * np.random.RandomState(seed).standard_normal(shape))


def reads_old_state(p, s, x):
    """Both the upper layer and the output read a state of the step before."""
    a, b = s
    return (0.9 * a + x @ p["w"], LEAKS * b + jnp.tanh(a) @ p["v"]), b


OLD = {"w": normal(0, 2, 4), "v": normal(1, 4, 3)}
START = (jnp.zeros(4), jnp.zeros(3))
XS, YS = normal(2, T, 2), normal(3, T, 3)

RULES = {
    str(rule): rule
    for rule in (
        etrax.tbptt(), etrax.d_rtrl(), etrax.d_rtrl(hops=0), etrax.d_rtrl(hops=1), etrax.pp_prop(), etrax.e_prop(0.3),
        etrax.ostl(), etrax.snap(2), etrax.rflo(0.9), etrax.ottt(0.9), etrax.rtrl(), etrax.uoro(0), etrax.kf_rtrl(0),
        etrax.three_factor(), etrax.e_prop(0.3, "random"), etrax.partition({"w": etrax.tbptt()}, default="d_rtrl"),
    )
}  # fmt: skip


def random_stack(seed):
    """Layers that read the old or the new state below, through delays of 0 to 3 steps in three spellings."""
    rng = np.random.RandomState(seed)

    def draw(*shape):
        return jnp.asarray(0.7 * rng.standard_normal(shape))

    layers, sizes = [], [2, *rng.randint(2, 4, rng.randint(1, 4))]
    params, states = {}, {}
    for i, (n, m) in enumerate(pairwise(sizes)):
        delay, how = int(rng.randint(4)), str(rng.choice(["roll", "concatenate", "leaves"]))
        recurrent, old = rng.rand() < 0.3, rng.rand() < 0.5
        leak = jax.nn.sigmoid(draw(m)) if rng.rand() < 0.7 else 0.8
        layers.append((delay, how, recurrent, old, leak))
        params[f"w{i}"], states[f"h{i}"] = draw(n, m), jnp.zeros(m)
        if recurrent:
            params[f"u{i}"] = draw(m, m)
        if how == "leaves":
            states |= {f"d{i}_{k}": jnp.zeros(m) for k in range(delay)}
        elif delay:
            states[f"d{i}"] = jnp.zeros((delay, m))
    output_is_old = rng.rand() < 0.5

    def delayed(new, s, i, delay, how, z):
        if how == "leaves":
            line = [z, *(s[f"d{i}_{k}"] for k in range(delay))]
            new.update({f"d{i}_{k}": line[k] for k in range(delay)})
            return line[-1]
        line = s[f"d{i}"]
        shifted = jnp.roll(line, 1, 0).at[0].set(z) if how == "roll" else jnp.concatenate([z[None], line[:-1]])
        new[f"d{i}"] = shifted
        return line[-1]

    def step(p, s, x):
        new, z = dict(s), x
        for i, (delay, how, recurrent, old, leak) in enumerate(layers):
            h = leak * s[f"h{i}"] + z @ p[f"w{i}"]
            if recurrent:
                h = h + jnp.tanh(s[f"h{i}"]) @ p[f"u{i}"]
            new[f"h{i}"] = h
            z = jnp.tanh(s[f"h{i}"] if old else h)
            z = delayed(new, s, i, delay, how, z) if delay else z
        return new, s[f"h{len(layers) - 1}"] if output_is_old else z

    return step, params, states, draw(T, 2), draw(T, sizes[-1])


def check_least_windows(step, rule, params, states, xs, ys):
    """How many gradients were below the least window of their parameter."""
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=states)
    verdicts, late = learner.report.verdicts, 0
    least = {v.least_window for v in verdicts.values()}
    asked = {k - d for k in least - {None} for d in (0, 1)} | ({1, 7} if None in least else set())
    whole = jax.grad(lambda p: sum(map(loss, jax.lax.scan(lambda s, x: step(p, s, x), states, xs)[1], ys)))(params)
    for window in sorted(asked - {0}):
        if 2 * window > T:
            continue
        run = learner.value_and_grad(loss, window=window, reduction="sum")
        (_, grads), _ = in_numpy(run, params, learner.init(), xs, ys)
        for (name,), verdict in verdicts.items():
            arrives = verdict.least_window is not None and window >= verdict.least_window
            assert np.any(whole[name])
            assert np.any(grads[name]) == arrives, (name, window, verdict)
            assert arrives or verdict.kind_at(window) == "truncated"
            assert verdict.least_window == 1 or verdict.kind == "truncated"
            late += not arrives
    return late


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_layer_that_reads_the_old_state_below(rule):
    check_least_windows(reads_old_state, rule, OLD, START, XS, YS)


def test_the_least_window_by_rule():
    found = {}
    for name in ("tbptt()", "d_rtrl()", "d_rtrl(hops=0)", "e_prop(kappa=0.3)", "ottt(decay=0.9)", "rtrl()"):
        learner = etrax.compile(reads_old_state, RULES[name], XS[0], params=OLD, hidden=START)
        found[name] = [(str(v.kind), v.least_window) for v in (learner.report.verdicts[k] for k in ("v", "w"))]
    assert found == {
        "tbptt()": [("truncated", 2), ("truncated", 3)],
        "d_rtrl()": [("exact", 1), ("exact", 1)],
        "d_rtrl(hops=0)": [("exact", 1), ("truncated", 2)],
        "e_prop(kappa=0.3)": [("approximate", 1), ("truncated", None)],
        "ottt(decay=0.9)": [("approximate", 1), ("truncated", 2)],
        "rtrl()": [("exact", 1), ("exact", 1)],
    }


@pytest.mark.fast_seconds(4)
@pytest.mark.parametrize("rule", ["tbptt()", "d_rtrl()", "ostl()", "rflo(decay=0.9)"])
@pytest.mark.parametrize("seed", [0, 3])
def test_random_delays(seed, rule):
    check_least_windows(*_with_rule(random_stack(seed), RULES[rule]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_delays_under_every_rule(seed):
    model = random_stack(seed)
    late = [check_least_windows(*_with_rule(model, rule)) for name, rule in RULES.items() if "partition" not in name]
    assert late[0] or not any(late)  # no rule needs a longer window than truncated BPTT


def _with_rule(model, rule):
    step, *rest = model
    return step, rule, *rest


def delay_line(steps, size):
    """A delay of many steps at many positions, which the analysis must not take long for."""

    def step(w, s, x):
        h, line = s
        return (0.9 * h + x @ w, jnp.concatenate([jnp.tanh(h)[None], line[:-1]])), line[-1]

    return step, normal(0, 2, size), (jnp.zeros(size), jnp.zeros((steps, size)))


def test_a_long_delay_line():
    step, w, states = delay_line(200, 5)
    learner = etrax.compile(step, "tbptt", XS[0], params=w, hidden=states)
    assert learner.report.verdicts[()].least_window == 202


def test_elements_that_never_reach_an_output_are_unused():
    """The state reaches the output, but not those of its elements that this parameter drives."""

    def step(p, s, x):
        s = 0.9 * s + jnp.concatenate([x @ p["a"], x @ p["b"]])
        return s, s[:2] * 1.0

    params = {"a": normal(0, 2, 2), "b": normal(1, 2, 2)}
    learner = etrax.compile(step, "tbptt", XS[0], params=params, hidden=jnp.zeros(4))
    assert {k: str(v.kind) for (k,), v in learner.report.verdicts.items()} == {"a": "truncated", "b": "unused"}
    (_, grads), _ = learner.value_and_grad(loss, window=6)(params, learner.init(), XS, YS[:, :2])
    assert not np.any(grads["b"])
    assert np.any(grads["a"])


def warned(learner, *, window, xs=XS):
    with pytest.warns(etrax.RuleWarning) as caught:
        learner.value_and_grad(loss, window=window)(OLD, learner.init(), xs, YS[: len(xs)])
    return [str(w.message) for w in caught]


def test_a_short_window_warns_once():
    learner = etrax.compile(reads_old_state, "tbptt", XS[0], params=OLD, hidden=START)
    run = learner.value_and_grad(loss, window=3)
    run(OLD, learner.init(), XS, YS)  # long enough: no word
    (text,) = warned(learner, window=1)
    assert text.startswith("`tbptt`: no credit reaches the parameters 'v', 'w' in a window of 1 step")
    assert "windows of at least 3 steps" in text
    learner.value_and_grad(loss, window=1)(OLD, learner.init(), XS, YS)


def test_a_short_sequence_is_a_short_window():
    learner = etrax.compile(reads_old_state, etrax.d_rtrl(hops=0), XS[0], params=OLD, hidden=START)
    (text,) = warned(learner, window=8, xs=XS[:1])
    assert "the parameter 'w' in a window of 1 step" in text
    assert "windows of at least 2 steps" in text


def test_a_rule_without_a_long_enough_window_warns():
    learner = etrax.compile(reads_old_state, etrax.e_prop(0.3), XS[0], params=OLD, hidden=START)
    (text,) = warned(learner, window=8)
    assert "no window is long enough" in text


def test_streams_and_trainers_warn():
    import optax

    learner = etrax.compile(reads_old_state, etrax.d_rtrl(hops=0), XS[0], params=OLD, hidden=START)
    stream = learner.online(optax.sgd(0.1), loss)
    with pytest.warns(etrax.RuleWarning, match="no credit reaches the parameter 'w'"):
        stream.feed(XS[0], YS[0])
    learner = etrax.compile(reads_old_state, etrax.d_rtrl(hops=0), XS[0], params=OLD, hidden=START)
    train = learner.train(optax.sgd(0.1), loss, window=1)
    with pytest.warns(etrax.RuleWarning, match="no credit reaches the parameter 'w'"):
        train(OLD, optax.sgd(0.1).init(OLD), learner.init(), XS, YS)


def test_compare_judges_by_the_window():
    learner = etrax.compile(reads_old_state, etrax.d_rtrl(hops=0), XS[0], params=OLD, hidden=START)
    short, longer = (etrax.testing.compare(learner, loss, OLD, START, XS, YS, window=k).check() for k in (1, 2))
    assert short["w"].zero
    assert str(short).count("truncated") == 1
    assert not longer["w"].zero
    assert str(longer).count("approximate") == 1
    assert learner.report.to_dict()["parameters"][1]["verdict"]["least_window"] == 2


def test_compare_raises_where_a_delay_is_not_seen():
    """Where a ring buffer is read is a number of the state: no analysis of the step tells how long it delays."""

    def step(p, s, x):
        a, ring, b = s["a"], s["ring"], s["b"]
        late = jax.lax.dynamic_index_in_dim(ring, (s["at"] + 1) % 40, 0, keepdims=False)
        new = {"a": 0.9 * a + x @ p["w"], "b": LEAKS * b + late @ p["v"], "at": (s["at"] + 1) % 40}
        new["ring"] = jax.lax.dynamic_update_index_in_dim(ring, jnp.tanh(a) @ p["u"], s["at"], 0)
        return new, b

    params = {"w": normal(0, 2, 4), "u": normal(1, 4, 3), "v": normal(2, 3, 3)}
    states = {"a": jnp.zeros(4), "ring": jnp.zeros((40, 3)), "b": jnp.zeros(3), "at": jnp.zeros((), jnp.int32)}
    xs, ys = normal(4, 100, 2), normal(5, 100, 3)
    learner = etrax.compile(step, "d_rtrl", xs[0], params=params, hidden=states)
    verdict = learner.report.verdicts["w"]
    table = etrax.testing.compare(learner, loss, params, states, xs, ys, window=5)
    assert verdict.kind_at(5) == "approximate"
    with pytest.raises(etrax.testing.GradientError, match="'w' is exactly zero where BPTT's is not"):
        table.check()
