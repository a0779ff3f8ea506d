"""Checkpoints inside a window: equal gradients, states and traces, in the memory of a shorter window."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fuzz.evaluate import Evaluator
from tests.learn.cases import CASES, loss
from tests.learn.table import ROWS

import etrax

WINDOW, REMAT = 8, 3  # three pieces, the last one shorter
STORED = [name for name, row in ROWS.items() if row.follows_loss and not name.startswith(("uoro", "kf_", "synthetic"))]
REFUSED = [name for name in ROWS if name not in STORED]


def in_numpy(function, *args):
    """Compiling takes longer than all else, and is under test in `test_training_and_donation` only."""
    return Evaluator()(function, *args)


def longer(case, times=3):
    """A case with a sequence that is several times as long, and not the same again and again."""
    scale = 1 + 0.1 * jnp.arange(times * case.x.shape[0]).reshape(-1, *[1] * (case.x.ndim - 1))
    x = jnp.concatenate([case.x] * times) * scale.astype(case.x.dtype)
    return x, jnp.concatenate([case.targets] * times)


def learner_of(rule, case):
    return etrax.compile(case.model, rule, case.x[0], params=case.params, hidden=case.hidden)


def assert_equal(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
@pytest.mark.parametrize(("rule", "case"), [*((r, "lru") for r in STORED), *(("d_rtrl()", c) for c in CASES)])
def test_gradients_states_and_traces_are_equal(rule, case):
    case = CASES[case]
    learner, (x, targets) = learner_of(ROWS[rule].rule, case), longer(case)
    plain, stored = (
        in_numpy(learner.value_and_grad(loss, window=WINDOW, remat=r), case.params, learner.init(), x, targets)
        for r in (None, REMAT)
    )
    assert_equal(plain, stored)


@pytest.mark.parametrize("remat", [1, 2, 17, 18, 40])
def test_one_window_is_bptt_by_hand(remat):
    case = CASES["gru"]
    x, targets = longer(case)

    def by_hand(params):
        def step(h, xy):
            h, out = case.model(params, h, xy[0])
            return h, loss(out, xy[1])

        return jax.lax.scan(step, case.hidden, (x, targets))[1].mean()

    learner = learner_of("tbptt", case)
    run = learner.value_and_grad(loss, window=len(x), remat=remat)
    got, want = (
        in_numpy(run, case.params, learner.init(), x, targets),
        in_numpy(jax.value_and_grad(by_hand), case.params),
    )
    assert_equal(got[0], want)


@pytest.mark.parametrize("rule", ["tbptt", "d_rtrl", "rtrl"])
def test_masks_resets_and_nans(rule):
    case = CASES["lstm"]
    learner, (x, targets) = learner_of(rule, case), longer(case)
    mask = (jnp.arange(len(x) * 2).reshape(-1, 2) % 5 != 0).astype(x.dtype)
    x, targets = x.at[0].set(jnp.nan), targets.at[0].set(jnp.nan)
    mask, reset = mask.at[0].set(0), np.zeros((len(x), 2), bool)
    reset[4, 0] = reset[7, 1] = reset[12] = True
    plain, stored = (
        in_numpy(
            learner.value_and_grad(loss, window=WINDOW, remat=r),
            case.params,
            learner.init(lanes=True),
            x,
            targets,
            mask,
            jnp.asarray(reset),
        )
        for r in (None, REMAT)
    )
    assert_equal(plain, stored)


def test_training_and_donation():
    case = CASES["two_layers"]
    learner, optimizer, (x, targets) = learner_of("d_rtrl", case), optax.adam(0.1), longer(case)
    opt_state = optimizer.init(case.params)
    plain, stored = (
        learner.train(optimizer, loss, window=WINDOW, remat=r, donate=True)(
            case.params, opt_state, learner.init(), x, targets
        )
        for r in (None, REMAT)
    )
    assert_equal(plain, stored)


def test_checkpoints_take_the_memory_of_a_piece():
    def step(p, h, x):
        return (jnp.tanh(x @ p["w"] + h @ p["u"]),) * 2

    params = {"w": jnp.ones((8, 64)), "u": jnp.ones((64, 64))}
    learner = etrax.compile(step, "tbptt", jnp.ones((4, 8)), params=params, hidden=jnp.zeros((4, 64)))
    whole, stored = learner.memory(window=1024).window, learner.memory(window=1024, remat=32).window
    piece, states = learner.memory(window=32).window, 1024 // 32 * 4 * 64 * 8
    assert stored < 1.5 * piece + 2 * states < whole / 5

    run = jax.jit(learner.value_and_grad(lambda o, t: (o**2).mean(), window=1024, remat=32))
    planned = run.lower(params, learner.init(), jnp.ones((1024, 4, 8))).compile().memory_analysis()
    # The program is small, and what XLA adds to it differs between its versions by a few tens of kilobytes.
    assert planned.temp_size_in_bytes == pytest.approx(stored, rel=0.1, abs=64e3)


@pytest.mark.filterwarnings("ignore::etrax.RuleWarning")
@pytest.mark.parametrize("rule", REFUSED)
def test_rules_that_cannot_be_taken_apart_say_so(rule):
    learner = learner_of(ROWS[rule].rule, CASES["gru"])
    with pytest.raises(etrax.ArgumentError, match=r"`remat`.*shorter windows"):
        learner.value_and_grad(loss, window=WINDOW, remat=REMAT)


def test_asked_twice_it_is_one_function():
    learner = learner_of("tbptt", CASES["gru"])
    assert learner.value_and_grad(loss, window=8, remat=2) is learner.value_and_grad(loss, window=8, remat=2)
    assert learner.value_and_grad(loss, window=8, remat=2) is not learner.value_and_grad(loss, window=8)


def test_trainer():
    case = CASES["gru"]
    learner = learner_of("tbptt", case)
    data = etrax.train.Dataset(np.asarray(case.x), np.asarray(case.targets))
    plain, stored = (
        etrax.train.Trainer(learner, optax.sgd(0.1), loss, window=4, remat=r).fit(data, epochs=1, progress=False).params
        for r in (None, 2)
    )
    assert_equal(plain, stored)
    with pytest.raises(etrax.ArgumentError, match="`remat` is 0"):
        etrax.train.Trainer(learner, optax.sgd(0.1), loss, window=4, remat=0)
