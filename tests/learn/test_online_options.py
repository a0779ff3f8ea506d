"""Streams that go on from an earlier run, samples without a target, windows that are cut short."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.learn.test_compilations import compilations
from tests.learn.test_streams import PARAMS, XS, YS, B, H, T, cell, everything, learner_of, loss, same, stream_of

import etrax

RULES = ["d_rtrl", "pp_prop", "tbptt", "e_prop", "ostl", "rtrl"]


def close(a, b, tolerance=1e-12):
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=tolerance, atol=tolerance), a, b)


def trained(learner, window, steps, mask=None):
    """What `train` makes of a sequence: its last window is shorter if it has to be."""
    adam = optax.adam(1e-2)
    run = learner.train(adam, loss, window=window)
    return run(PARAMS, adam.init(PARAMS), learner.init(), XS[:steps], YS[:steps], mask)


@pytest.mark.parametrize("window", [1, 3])
def test_a_stream_goes_on_from_an_earlier_one(window):
    learner = learner_of()
    first, twin = stream_of(learner, window), stream_of(learner, window)
    for t in range(2 * window):
        first.feed(XS[t], YS[t])
        twin.feed(XS[t], YS[t])
    again = stream_of(learner, window, params=first.params, state=first.state, opt_state=first.opt_state)
    for t in range(6, T):
        again.feed(XS[t], YS[t])
        twin.feed(XS[t], YS[t])
    same(everything(again), everything(twin))
    with pytest.raises(etrax.ArgumentError, match="opt_state"):
        stream_of(learner, opt_state=optax.sgd(0.1).init(PARAMS))
    with pytest.raises(etrax.EtraxError, match="opt_state"):
        stream_of(learner, opt_state="adam")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [4, 5])
def test_a_window_cut_short_equals_that_of_a_sequence(rule, length):
    """The oracle is `train`, which runs a shorter window at the end."""
    learner = learner_of(rule=rule)
    stream = stream_of(learner, 3)
    for t in range(length):
        stream.feed(XS[t], YS[t])
    last = stream.flush()
    params, opt_state, state, losses = trained(learner, 3, length)
    close((stream.params, stream.opt_state, stream.state, last), (params, opt_state, state, losses[-1]), 1e-9)
    assert stream.step == length and stream.flush() is None


@pytest.mark.parametrize("rule", ["synthetic", etrax.uoro(0), etrax.kf_rtrl(0)], ids=str)
def test_rules_whose_windows_cannot_be_filled_up(rule):
    learner = learner_of(rule=rule)
    stream = stream_of(learner, 3)
    for t in range(5):
        stream.feed(XS[t], YS[t])
    stream.flush()
    params, _, state, _ = trained(learner, 3, 5)
    close((stream.params, stream.state), (params, state), 1e-9)


def test_flush_compiles_once():
    learner = learner_of()
    stream = stream_of(learner, 6)

    def flushed(n):
        for t in range(n):
            stream.feed(XS[t], YS[t])
        return stream.flush()

    flushed(6), flushed(2)
    with compilations() as events:
        losses = [flushed(n) for n in (1, 5, 3, 4)]
    assert not events and np.isfinite(losses).all()


@pytest.mark.parametrize("window", [1, 3])
def test_samples_without_a_target_move_the_state_alone(window):
    """Equal to a sequence in which they are masked: parameters, optimizer, hidden state and trace."""
    learner = learner_of()
    has = np.array([1, 0, 1, 0, 0, 0, 1, 1], bool)
    stream = stream_of(learner, window)
    results = [stream.feed(XS[t], YS[t] if has[t] else None) for t in range(T)]
    stream.flush()
    params, opt_state, state, losses = trained(learner, window, T, jnp.asarray(has, jnp.float32))
    close((stream.params, stream.opt_state, stream.state), (params, opt_state, state), 1e-9)
    if window == 1:
        assert [r.loss is not None for r in results] == has.tolist()
        close([r.loss for r in results if r.loss is not None], list(losses[has]), 1e-9)
    else:
        assert results[5].loss is None  # no sample of the second window has a target
        close(results[2].loss, losses[0], 1e-9)


@pytest.mark.parametrize("window", [1, 3])
def test_predictions_before_any_target(window):
    """Outputs are those of the model itself; parameters stay, and learning can begin at any sample."""
    learner = learner_of()
    stream, state = stream_of(learner, window), learner.init()
    for t in range(4):
        state, output = learner.step(PARAMS, state, XS[t])
        result = stream.feed(XS[t])
        close(result.output, output)
        assert result.loss is None
    assert stream.flush() is None and stream.step == 4
    same(stream.params, PARAMS)
    close(stream.state, state, 1e-9)
    for t in range(4, 4 + window):
        result = stream.feed(XS[t], YS[t])
    assert result.loss is not None and not np.array_equal(stream.params["w"], PARAMS["w"])


@pytest.mark.parametrize("window", [1, 2])
def test_a_loss_of_the_output_alone_needs_no_target(window):
    learner = learner_of()
    stream = learner.online(optax.sgd(0.1), lambda output, _: (output**2).mean(), window=window)
    results = [stream.feed(XS[t]) for t in range(window)]
    assert results[-1].loss is not None and not np.array_equal(stream.params["w"], PARAMS["w"])


@pytest.mark.parametrize("window", [1, 3])
def test_a_sample_without_a_target_starts_again(window):
    learner = learner_of()
    stream = stream_of(learner, window)
    for t in range(3):
        stream.feed(XS[t], YS[t])
    stream.feed(XS[3], reset=True)
    stream.feed(XS[4], reset=jnp.array([True, False]))
    stream.flush()
    state, _ = learner.step(stream.params, learner.init(lanes=True), XS[3])
    state, _ = learner.step(stream.params, state, XS[4], reset=jnp.array([True, False]))
    close((stream.state.hidden, stream.state.trace), (state.hidden, state.trace), 1e-9)


@pytest.mark.parametrize("window", [1, 3])
def test_a_prediction_that_fails_leaves_the_stream_as_it_was(window):
    learner = learner_of()
    stream = stream_of(learner, window)
    stream.feed(XS[0], YS[0])
    before = everything(stream), stream.step
    for bad in (XS, np.zeros((B, H + 3)), "text"):
        with pytest.raises(etrax.EtraxError):
            stream.feed(bad)
    assert stream.step == before[1]
    same(everything(stream), before[0])


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("donate", [False, True])
def test_no_transfer(window, donate):
    """Samples that lie with the device, with targets and without: nothing goes to or from the host."""
    learner = learner_of()
    stream = stream_of(learner, window, donate=donate)
    samples = [(XS[t], YS[t]) for t in range(4)]
    with jax.transfer_guard("disallow"):
        for x, y in samples:
            stream.feed(x, y)
            stream.feed(x)
            stream.flush()


def test_weak_types_compile_once():
    """`jnp.full(n, 0.5)` is of a weak type, which an update makes a strong one: the stream begins with that."""
    params = {**PARAMS, "w": jnp.full(PARAMS["w"].shape, 0.5)}
    assert params["w"].weak_type
    stream = etrax.compile(cell, "d_rtrl", XS[0], params=params, hidden=jnp.full((B, H), 0.0)).online(
        optax.adam(1e-2), loss
    )
    stream.feed(XS[0], YS[0])
    x, y = XS[1], YS[1]
    with compilations() as events:
        stream.feed(x, y)
    assert not events


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of numpy, when treescope looks at all of it
def test_treescope_shows_trees():
    treescope = pytest.importorskip("treescope")
    learner = learner_of()
    stream = stream_of(learner)
    for thing, names in ((learner, ("params", "hidden", "report")), (stream, ("opt_state", "learner", "window"))):
        text = treescope.render_to_text(thing)
        assert text.startswith(type(thing).__name__) and all(f"{name}=" in text for name in names)
    assert "LearnerState" in treescope.render_to_text(learner.init())


@pytest.mark.parametrize("window", [1, 2])
def test_predictions_of_a_stream_that_watches_its_numbers(window):
    learner = learner_of(check_finite=True)
    stream = stream_of(learner, window)
    for t in range(3):
        stream.feed(XS[t], YS[t] if t else None)
    before = stream.step
    with pytest.raises(etrax.NonFiniteError, match="the input"):
        stream.feed(XS[3] * jnp.nan)
    assert stream.step == before


LANE_FLAGS = [None, True, [True, False], None, [False, False], [False, True], np.True_, np.False_]


@pytest.mark.parametrize("form", ["numpy", "jax"])
def test_flags_of_every_kind_again_and_again(form):
    """Flags that were checked once are not checked again, and mean what they meant: equal to a sequence with resets."""
    learner = learner_of()
    stream, flags = stream_of(learner), np.zeros((T, B), bool)
    array = np.array if form == "numpy" else jnp.array
    for t, flag in enumerate(LANE_FLAGS):
        flags[t] = False if flag is None else flag
        reset = False if flag is None else array(flag) if isinstance(flag, list) else flag
        stream.feed(XS[t], YS[t], reset)
    adam = optax.adam(1e-2)
    run = learner.train(adam, loss, window=1)
    params, _, state, _ = run(PARAMS, adam.init(PARAMS), learner.init(), XS, YS, None, flags)
    close((stream.params, stream.state), (params, state), 1e-9)
    for bad in (np.zeros(3, bool), np.zeros((B, 2), bool), "yes"):
        with pytest.raises(etrax.EtraxError, match="reset"):
            stream.feed(XS[0], YS[0], bad)
