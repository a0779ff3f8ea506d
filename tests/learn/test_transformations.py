"""Every rule under vmap over sequences, in pieces, in float32 and in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.learn.cases import B, H, I, O, loss
from tests.learn.oracle import relative_error

import etrax

RULES = {
    str(rule): rule
    for rule in (
        etrax.tbptt(), etrax.d_rtrl(), etrax.pp_prop(0.9), etrax.rtrl(), etrax.rflo(0.8), etrax.e_prop(0.5),
        etrax.e_prop(0.5, "random", key=1), etrax.e_prop(0.0, "adaptive", key=1), etrax.three_factor(), etrax.uoro(1),
        etrax.ottt(0.8), etrax.ostl(), etrax.snap(2),
        etrax.partition({"wh": etrax.ottt(0.8)}, default=etrax.three_factor(kappa=0.3)),
    )
}  # fmt: skip
STEPS, WINDOW = 5, 2
FAST = ("e_prop(kappa=0.5, feedback='random')", "uoro()", "snap(n=2)")
EACH = [pytest.param(rule, id=name, marks=() if name in FAST else pytest.mark.slow) for name, rule in RULES.items()]


def step(params, s, x):
    v = 0.8 * s["v"] + x @ params["wi"] + jnp.tanh(s["v"] - s["a"]) @ params["wh"] + params["b"]
    a = jax.nn.sigmoid(params["leak"]) * s["a"] + v * v
    return {"v": v, "a": a}, jnp.tanh(v - a) @ params["wo"]


def problem(dtype):
    rng = np.random.RandomState(0)
    draw = lambda *s: jnp.asarray(0.5 * rng.standard_normal(s), dtype)
    params = {"wi": draw(I, H), "wh": draw(H, H), "b": draw(H), "leak": draw(H), "wo": draw(H, O)}
    hidden = {k: jnp.zeros((B, H), dtype) for k in "va"}
    return params, hidden, draw(STEPS, B, I), draw(STEPS, B, O)


def learner_of(rule, dtype):
    params, hidden, x, target = problem(dtype)
    return etrax.compile(step, rule, x[0], params=params, hidden=hidden), params, x, target


@pytest.mark.parametrize("rule", EACH)
def test_vmap_and_pieces(rule):
    """A batch of sequences at once, and one sequence fed in two pieces, equal one sequence at a time."""
    learner, params, x, target = learner_of(rule, float)
    run = learner.value_and_grad(loss, window=WINDOW, reduction="sum")
    xs, targets = jnp.stack([x, x[::-1] + 0.3]), jnp.stack([target, -target])
    (losses, many), states = jax.vmap(lambda x, t: run(params, learner.init(), x, t))(xs, targets)
    for n in range(2):
        (one_loss, one), state = run(params, learner.init(), xs[n], targets[n])
        assert relative_error(losses[n], one_loss) < 1e-10
        for name, g in one.items():
            assert relative_error(many[name][n], g) < 1e-9, name
        for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(state), strict=True):
            assert relative_error(a[n], b) < 1e-9
    (_, first), half = run(params, learner.init(), xs[1][:4], targets[1][:4])
    (_, second), end = run(params, half, xs[1][4:], targets[1][4:])
    for name, g in one.items():
        assert relative_error(first[name] + second[name], g) < 1e-9, name
    assert int(end.step) == STEPS


@pytest.mark.parametrize("rule", EACH)
def test_precision(rule):
    """float32 follows float64; a bfloat16 model has float32 traces and finite gradients of its own type."""
    found = {}
    for dtype in (jnp.float64, jnp.float32, jnp.bfloat16):
        learner, params, x, target = learner_of(rule, dtype)
        wide = lambda o, t: loss(
            o.astype(jnp.promote_types(o.dtype, jnp.float32)), t.astype(jnp.promote_types(t.dtype, jnp.float32))
        )
        (_, grads), state = learner.value_and_grad(wide, window=WINDOW)(params, learner.init(), x, target)
        assert all(g.dtype == dtype and np.all(np.isfinite(np.asarray(g, np.float64))) for g in grads.values())
        before, after = (jax.tree.map(lambda a: (a.shape, a.dtype), s) for s in (learner.init(), state))
        assert before == after
        wanted = jnp.float64 if dtype == jnp.float64 else jnp.float32
        traces = [a for a in jax.tree.leaves(state.trace) if jnp.issubdtype(a.dtype, jnp.floating) and a.ndim > 2]
        assert all(a.dtype == wanted for a in traces), {a.dtype for a in traces}
        found[dtype] = grads
    for name, g in found[jnp.float64].items():
        assert relative_error(found[jnp.float32][name], g) < 2e-3, name


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_report(rule):
    learner, *_ = learner_of(rule, float)
    text = str(learner.report)
    assert str(learner.rule) in text
    own = sum(np.size(a) * a.dtype.itemsize for a in jax.tree.leaves(learner.init().trace))
    assert learner.report.memory[rule.name] == rule.trace_bytes(learner.facts) == own
