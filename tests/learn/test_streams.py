"""A stream that fails, is interrupted, or is fed by several threads; and states that are given away."""

import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax
from etrax import NonFiniteError

T, B, I, H = 8, 2, 3, 4
RNG = np.random.RandomState(0)
XS, YS = (jnp.asarray(RNG.standard_normal((T, B, n))) for n in (I, 2))
PARAMS = {k: jnp.asarray(RNG.standard_normal(s) * 0.4) for k, s in (("w", (I, H)), ("r", (H, H)), ("o", (H, 2)))}


def cell(p, h, x):
    h = jnp.tanh(0.9 * h + x @ p["w"] + h @ p["r"])
    return h, h @ p["o"]


def loss(output, target):
    return ((output - target) ** 2).mean()


def learner_of(step=cell, rule="d_rtrl", **options):
    return etrax.compile(step, rule, XS[0], params=PARAMS, hidden=jnp.zeros((B, H)), **options)


def stream_of(learner, window=1, **options):
    return learner.online(optax.adam(1e-2), loss, window=window, **options)


def everything(stream):
    return jax.tree.map(np.asarray, (stream.params, stream.opt_state, stream.state))


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def clean(learner, window, samples):
    """A stream that was given these samples alone."""
    stream = stream_of(learner, window)
    outputs = [stream.feed(XS[t], YS[t]).output for t in samples]
    return outputs, everything(stream)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("rule", ["d_rtrl", "pp_prop"])
def test_a_sample_that_is_not_finite_is_refused(window, rule):
    """The stream is as if the sample had never been: outputs, parameters, optimizer, hidden state and trace."""
    learner = learner_of(rule=rule, check_finite=True)
    stream = stream_of(learner, window)
    good, found = [0, 1, 2, 3, 4, 5], []
    for t in good:
        for x, y, what in ((XS[t] * jnp.nan, YS[t], "the input"), (XS[t], YS[t] * jnp.inf, "the loss")):
            with pytest.raises(NonFiniteError, match=f"step {t} .*{what}.* was not taken"):
                stream.feed(x, y)
        found.append(stream.feed(XS[t], YS[t]).output)
    outputs, want = clean(learner, window, good)
    same((found, everything(stream)), (outputs, want))


def rooted(p, h, x):
    """At h = 0 the state is finite and its derivative is not: the trace breaks, and with it the update."""
    h = jnp.sqrt(h) + x @ jnp.abs(p["w"]) + 0 * (h @ p["r"])
    return h, h @ p["o"]


def test_an_update_that_fails_leaves_what_was_before_its_window():
    hidden = jnp.ones((B, H))
    learner = etrax.compile(rooted, "d_rtrl", XS[0], params=PARAMS, hidden=hidden, check_finite=True)
    xs = jnp.abs(XS)
    stream = stream_of(learner, 2)
    for t in range(2):
        stream.feed(xs[t], YS[t])
    before = everything(stream)
    stream.state = stream.state._replace(hidden=jnp.zeros((B, H)))
    broken = everything(stream)
    stream.feed(xs[2], YS[2])
    with pytest.raises(NonFiniteError, match="the trace of"):
        stream.feed(xs[3], YS[3])
    same(everything(stream), broken)
    assert "0 of 2 samples" in repr(stream)
    stream.state = stream.state._replace(hidden=jnp.asarray(before[2].hidden))
    same(everything(stream), before)
    twin = stream_of(learner, 2)
    for t in (0, 1, 2, 3):
        a = twin.feed(xs[t], YS[t])
    for t in (2, 3):
        b = stream.feed(xs[t], YS[t])
    same((a, everything(twin)), (b, everything(stream)))


# A window of one sample is one program: there the step runs once.
@pytest.mark.parametrize(("window", "call"), [(1, 1), (2, 1), (2, 2)])
def test_a_callback_that_raises_while_the_step_runs(window, call):
    """What fails on the device, after everything was handed over: in the step (the first call), or in the update."""
    calls = [-1000]

    def look(a):
        calls[0] += 1
        if calls[0] == call:
            raise RuntimeError("the sensor is gone")
        return np.asarray(a)

    def sensed(p, h, x):
        x = jax.pure_callback(look, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
        return cell(p, h, jax.lax.stop_gradient(x))

    learner = learner_of(sensed)
    stream = stream_of(learner, window)
    found = [stream.feed(XS[t], YS[t]).output for t in range(window)]
    before = everything(stream)
    if call == 2:  # the update is that of the last sample of a window
        for t in range(window, 2 * window - 1):
            stream.feed(XS[t], YS[t])
    calls[0] = 0
    with pytest.raises(Exception, match="the sensor is gone"):
        stream.feed(XS[0], YS[0])
    calls[0] = -1000
    same(everything(stream), before)
    found += [stream.feed(XS[t], YS[t]).output for t in range(window, 4)]
    outputs, want = clean(learner, window, range(4))
    same((found, everything(stream)), (outputs, want))


@pytest.mark.parametrize("window", [1, 3])
def test_an_interrupt_at_any_line(window):
    """Ctrl-C before, inside and after the update: a sample that was not taken is fed again, and nothing differs."""
    learner = learner_of()
    stream = stream_of(learner, window)
    for t in range(window):
        stream.feed(XS[t], YS[t])  # compiled
    reached = {name: set() for name in ("_online.py", "_learner.py", "_functions.py", "_checks.py")}

    def interrupt(frame, event, _):
        name = frame.f_code.co_filename.rpartition("/")[2]
        if name not in reached or "etrax" not in frame.f_code.co_filename:
            return None
        line = (frame.f_code.co_name, frame.f_lineno)
        if event == "line" and line not in reached[name]:
            reached[name].add(line)
            raise KeyboardInterrupt
        return interrupt

    while stream.step < T:
        sys.settrace(interrupt)
        try:
            stream.feed(XS[stream.step], YS[stream.step])
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
    update = "_learn_at_once" if window == 1 else "_learn"
    assert {"feed", update} <= {name for name, _ in reached["_online.py"]}
    same(everything(stream), clean(learner, window, range(T))[1])


@pytest.mark.parametrize("window", [1, 4])
def test_four_threads(window):
    """Samples of four threads are taken one after the other, each whole: as many updates, in one of their orders."""
    learner = learner_of()
    stream = stream_of(learner, window)
    taken, errors = [], []
    name, lock = "_take" if window == 1 else "_step", threading.Lock()
    run = getattr(stream, name)

    def noting(*args):
        with lock:
            taken.append(int(jax.tree.leaves(args)[-1][0, 0]))  # the target
        return run(*args)

    setattr(stream, name, noting)
    label = lambda n: jnp.full((B, 2), float(n))

    def work(first):
        try:
            for n in range(first, first + 10):
                stream.feed(XS[n % T], label(n))
        except Exception as error:  # seen by the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(taken) == 40 and int(stream.state.step) == 40
    alone = stream_of(learner, window)
    for n in taken:
        alone.feed(XS[n % T], label(n))
    same(everything(stream), everything(alone))


@pytest.mark.parametrize("window", [1, 3])
def test_an_assigned_state_is_that_of_the_next_output(window):
    learner = learner_of()
    stream = stream_of(learner, window)
    first = learner.init()
    for t in range(4):
        stream.feed(XS[t], YS[t])
    for _ in range(2):  # the same state again: the stream keeps a copy
        stream.state, params = first, stream.params
        output = stream.feed(XS[5], YS[5]).output
        np.testing.assert_allclose(output, cell(params, jnp.zeros((B, H)), XS[5])[1], rtol=1e-12)
    with pytest.raises(etrax.ArgumentTypeError, match="hidden states alone"):
        stream.state = first.hidden
    with pytest.raises(etrax.ArgumentError, match="shape"):
        stream.state = first._replace(hidden=jnp.zeros((B + 1, H)))
    with pytest.raises(etrax.ArgumentError, match="opt_state"):
        stream.opt_state = ()
    with pytest.raises(etrax.ArgumentError, match="params"):
        stream.params = {}
    stream.params, stream.opt_state = PARAMS, optax.adam(1e-2).init(PARAMS)
    stream.state = first
    outputs = [stream.feed(XS[t], YS[t]).output for t in range(4)]
    same((outputs, everything(stream)), clean(learner, window, range(4)))


@pytest.mark.parametrize("window", [1, 3])
def test_a_buffer_that_is_filled_again(window):
    """Samples that wait are those that were fed, also if all of them came in one array of numpy."""
    learner = learner_of()
    stream, x, y = stream_of(learner, window), np.zeros((B, I)), np.zeros((B, 2))
    outputs = []
    for t in range(6):
        x[:], y[:] = XS[t], YS[t]
        outputs.append(stream.feed(x, y).output)
    same((outputs, everything(stream)), clean(learner, window, range(6)))


def aligned(a):
    """Numbers at an address that lets JAX read them where they are, without a copy."""
    a = np.asarray(a)
    memory = np.zeros(a.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    there = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    there[...] = a
    return there


def test_numbers_that_a_stream_begins_with_are_those_of_then():
    learner = learner_of()
    opt_state = optax.adam(1e-2).init(PARAMS)
    given = jax.tree.map(aligned, (PARAMS, learner.init(), opt_state))
    begun = learner.online(optax.adam(1e-2), loss, params=given[0], state=given[1], opt_state=given[2])
    assigned = stream_of(learner)
    assigned.params, assigned.state, assigned.opt_state = given
    for a in jax.tree.leaves(given):
        a[...] = 7
    for stream in (begun, assigned):
        stream.feed(XS[0], YS[0])
        same(everything(stream), clean(learner, 1, [0])[1])


def test_the_state_that_resets_of_a_window_return_to_is_that_of_then():
    learner, ends = learner_of(), []
    for change in (0, 5):
        stream, initial = stream_of(learner, 4), aligned(np.full((B, H), 0.5))
        stream.feed(XS[0], YS[0], reset=True, initial=initial)
        stream.feed(XS[1], YS[1], reset=True, initial=initial)  # the same numbers
        initial += change
        if change:
            with pytest.raises(etrax.ArgumentError, match="return to one `initial` state"):
                stream.feed(XS[2], YS[2], reset=True, initial=initial)
        for t in (2, 3):
            stream.feed(XS[t], YS[t])
        ends.append(everything(stream))
    same(*ends)


def test_a_stream_that_gives_its_state_away_says_so():
    learner = learner_of(check_finite=True)
    stream = stream_of(learner, donate=True)
    stream.feed(XS[0], YS[0])
    bad = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan) if a.dtype == jnp.float64 else a, stream.state.trace)
    stream.state = stream.state._replace(trace=bad)
    with pytest.raises(NonFiniteError):
        stream.feed(XS[1], YS[1])
    with pytest.raises(etrax.ArgumentError, match="to continue, assign a new one"):
        stream.feed(XS[1], YS[1])
    stream.state = learner.init(stream.params)
    stream.feed(XS[1], YS[1])


def test_a_stream_that_was_interrupted_after_it_gave_its_state_away_says_so(monkeypatch):
    """Reading says it too; an interrupt leaves samples that wait, from which `flush` cannot learn either."""
    learner = learner_of()
    stream = stream_of(learner, 2, donate=True)
    train = stream._train

    def interrupted(*args):
        train(*args)
        raise KeyboardInterrupt

    stream.feed(XS[0], YS[0])
    monkeypatch.setattr(stream, "_train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.feed(XS[1], YS[1])
    monkeypatch.setattr(stream, "_train", train)
    for read in (lambda: stream.step, lambda: stream.state, stream.flush, lambda: stream.feed(XS[1], YS[1])):
        with pytest.raises(etrax.ArgumentError, match="to continue, assign a new one"):
            read()
    stream.state = learner.init(stream.params)
    assert stream.step == 0 and stream.flush() is None
    for t in range(2):
        stream.feed(XS[t], YS[t])
    same(everything(stream), clean(learner, 2, range(2))[1])


def test_an_array_that_is_deleted_while_it_waits():
    learner = learner_of()
    stream = stream_of(learner, 2)
    for t in range(2):
        stream.feed(XS[t], YS[t])
    before, fed = everything(stream), jnp.copy(XS[2])
    stream.feed(fed, YS[2])
    fed.delete()
    with pytest.raises(etrax.ArgumentError, match="was deleted or donated"):
        stream.feed(XS[3], YS[3])
    same(everything(stream), before)


def euclidean(output, target):
    """A distance of zero, whatever the output is: it is finite and its derivative is not."""
    return jnp.sqrt((0 * (output - target) ** 2).sum())


BROKEN_UPDATES = {
    "a derivative of the loss": (optax.sgd(0.1), euclidean),
    "zero by zero in the optimizer": (optax.adam(0.1, eps=0.0), lambda o, y: (0 * o).sum()),
    "a rate without end": (optax.sgd(jnp.inf), loss),
}


@pytest.mark.parametrize("what", BROKEN_UPDATES)
@pytest.mark.parametrize("window", [1, 2])
def test_an_update_that_breaks_the_parameters_fails(window, what):
    """States, traces and the loss are finite; parameters would be NaN from here on."""
    optimizer, loss_fn = BROKEN_UPDATES[what]
    learner = learner_of(check_finite=True)
    stream = learner.online(optimizer, loss_fn, window=window)
    before = everything(stream)
    for t in range(window - 1):
        stream.feed(XS[t], YS[t])
    with pytest.raises(NonFiniteError, match="by an update within the steps up to"):
        stream.feed(XS[window - 1], YS[window - 1])
    same(everything(stream), before)
    train = learner.train(optimizer, loss_fn, window=window)
    with pytest.raises(NonFiniteError, match="by an update"):
        train(PARAMS, optimizer.init(PARAMS), learner.init(), XS[:window], YS[:window])
