"""The watch for NaN: it names the step, the state and the parameter, and changes no number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax import NonFiniteError

T, B, H = 9, 2, 3
FAST = [etrax.d_rtrl(), etrax.pp_prop(), etrax.synthetic(), etrax.e_prop(feedback="random", key=0)]
SLOW = [etrax.tbptt(), etrax.rtrl(), etrax.e_prop(0.5), etrax.uoro(0), etrax.snap(2), etrax.rflo(0.5), etrax.ottt(0.5),
        etrax.partition({"w": etrax.d_rtrl()}, default=etrax.tbptt())]  # fmt: skip
RULES = [*FAST, *(pytest.param(rule, marks=pytest.mark.slow) for rule in SLOW)]


def step(params, s, x):
    v = 0.5 * s["v"] + jnp.log(x) @ params["w"]
    u = 0.5 * s["u"] + jnp.sqrt(x) @ params["k"]
    return {"v": v, "u": u}, v + u @ params["out"]


def problem(rule, check_finite=True):
    rng = np.random.RandomState(0)
    params = {name: jnp.asarray(rng.standard_normal((H, H))) for name in ("w", "k", "out")}
    hidden = {name: jnp.zeros((B, H)) for name in "vu"}
    x = jnp.asarray(rng.uniform(0.5, 1, (T, B, H)))
    learner = etrax.compile(step, rule, x[0], params=params, hidden=hidden, check_finite=check_finite)
    return learner, x


def loss(output, target):
    return (output**2).mean()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_watch_changes_no_number(rule):
    watched, x = problem(rule)
    plain, _ = problem(rule, check_finite=False)
    (value, grads), state = watched.value_and_grad(loss, window=2)(watched.params, watched.init(), x)
    (want, wanted), _ = plain.value_and_grad(loss, window=2)(plain.params, plain.init(), x)
    assert value == want
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
    watched.check(state)


@pytest.mark.parametrize("window", [1, 4, T])
@pytest.mark.parametrize("rule", [etrax.d_rtrl(), etrax.pp_prop()], ids=str)
def test_step_state_and_parameter(rule, window):
    """log(0) at step 5 breaks v and the trace of w, not u nor the trace of k."""
    learner, x = problem(rule)
    with pytest.raises(NonFiniteError) as error:
        learner.value_and_grad(loss, window=window)(learner.params, learner.init(), x.at[5, 0, 0].set(0.0))
    text = str(error.value)
    assert "appeared at step 5" in text and "the state 'v'" in text
    assert "the trace of 'w'" in text
    assert "the state 'u'" not in text and "trace of 'k'" not in text


def test_a_bad_input_is_named():
    learner, x = problem(etrax.d_rtrl())
    with pytest.raises(NonFiniteError, match=r"step 3 .* the input"):
        learner.value_and_grad(loss, window=2)(learner.params, learner.init(), x.at[3, 1, 1].set(jnp.nan))


def test_a_derivative_that_breaks_alone():
    """sqrt(h) at h = 0, which w has made zero, is finite and its slope is not: only the trace knows."""

    def rooted(params, h, x):
        h = jnp.sqrt(h) + x * params["w"]
        return h, h

    learner = etrax.compile(
        rooted, "d_rtrl", jnp.ones(H), params={"w": jnp.ones(H)}, hidden=jnp.ones(H), check_finite=True
    )
    x = jnp.ones((T, H)).at[0].set(-1.0)
    with pytest.raises(NonFiniteError, match=r"appeared at step 1 .*the trace of 'w'"):
        learner.value_and_grad(lambda o, t: o.sum(), window=2)(learner.params, learner.init(), x)


def test_a_bad_loss_is_named():
    learner, x = problem(etrax.d_rtrl())
    with pytest.raises(NonFiniteError, match=r"the loss within .*look at the outputs and at the loss"):
        learner.value_and_grad(lambda o, t: jnp.log(-(o**2)).mean(), window=2)(learner.params, learner.init(), x)


def test_inside_jit_the_state_remembers():
    learner, x = problem(etrax.d_rtrl())
    run = jax.jit(learner.value_and_grad(loss, window=3))
    _, state = run(learner.params, learner.init(), x.at[7, 0, 0].set(0.0))
    with pytest.raises(NonFiniteError, match="step 7"):
        learner.check(state)
    many = jax.vmap(lambda x: run(learner.params, learner.init(), x)[1])(jnp.stack([x, x.at[2, 0, 0].set(0.0)]))
    with pytest.raises(NonFiniteError, match="step 2"):
        learner.check(many)


def test_training_and_single_steps():
    optax = pytest.importorskip("optax")
    learner, x = problem(etrax.d_rtrl())
    optimizer = optax.sgd(0.1)
    with pytest.raises(NonFiniteError, match="step 4"):
        learner.train(optimizer, loss, window=2)(
            learner.params, optimizer.init(learner.params), learner.init(), x.at[4].set(0.0)
        )
    state, _ = learner.step(learner.params, learner.init(), x[0])
    with pytest.raises(NonFiniteError, match="step 1"):
        learner.step(learner.params, state, jnp.zeros((B, H)))


def test_check_needs_the_watch():
    learner, _ = problem(etrax.d_rtrl(), check_finite=False)
    with pytest.raises(ValueError, match="compiled with `check_finite=True`"):
        learner.check(learner.init())


LAST = 2**31 - 1
COUNTED = [LAST - 5, LAST, -(2**31)]  # the count ends in the middle, has ended, and wrapped in an older version


def counted(tree, step):
    """The same state as if it had taken so many steps: every count of it (that of `pp_prop` never wrapped)."""
    counts = {"step": step, "steps": max(step, 0) or LAST}
    name = lambda path: getattr(path[-1], "name", "")
    at = lambda path, a: jnp.full_like(a, counts[name(path)]) if name(path) in counts else a
    return jax.tree_util.tree_map_with_path(at, tree)


@pytest.mark.parametrize("start", COUNTED)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_after_the_last_step_that_can_be_counted(rule, start):
    """The watch still sees, and no number changes: a stream of 1 kHz is there on its 25th day."""
    learner, x = problem(rule)
    run = jax.jit(learner.value_and_grad(loss, window=2))
    (_, _), old = run(learner.params, learner.init(), x)
    far = 10**6  # steps after which no bias correction is left
    (_, want), _ = run(learner.params, counted(old, far), x)
    (_, found), state = run(learner.params, counted(old, start), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), found, want)
    assert int(state.step) == LAST and state.step.dtype == jnp.int32
    learner.check(state)

    (_, _), state = run(learner.params, counted(old, start), x.at[7, 0, 0].set(0.0))
    with pytest.raises(NonFiniteError, match=rf"appeared at step {LAST} or later .*the state 'v'"):
        learner.check(state)
    (_, _), state = run(learner.params, counted(old, LAST - 5), x.at[2, 0, 0].set(0.0))
    with pytest.raises(NonFiniteError, match=rf"appeared at step {LAST - 3} \(counted"):
        learner.check(state)


def test_one_step_after_the_last():
    learner, x = problem(etrax.pp_prop())
    state, _ = learner.step(learner.params, counted(learner.init(), LAST), x[0])
    assert int(state.step) == LAST
    with pytest.raises(NonFiniteError, match="or later"):
        learner.step(learner.params, state, x[0] * jnp.nan)
