"""Every driver that users call in a loop compiles at its first calls, and then no more; what it holds does not grow.

Each is called as a loop does, with everything asked for anew. Compilations are counted by JAX's own events.
"""

import gc
import warnings
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import etrax

XS, YS = jnp.ones((10, 2, 3)), jnp.zeros((10, 2, 4))
# Some drivers compile at the first call and at the end of the first window.
WARM, CALLS = 9, 100


@contextmanager
def compilations():
    """A list that grows by one with every compilation."""
    found = []

    def note(event, seconds, **more):
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield found
    jax.monitoring.unregister_event_duration_listener(note)


def loss(output, target):
    return jnp.mean((output - target) ** 2)


def leaky(params, h, x):
    h = jnp.tanh(0.9 * h + x @ params["w"])
    return h, h


def plain():
    params = {"w": jnp.full((3, 4), 0.1)}
    return etrax.compile(leaky, "d_rtrl", XS[0], params=params, hidden=jnp.zeros((2, 4))), params


def value_and_grad():
    learner, params = plain()
    return lambda: learner.value_and_grad(loss, window=4)(params, learner.init(), XS, YS)


def train():
    learner, params = plain()
    adam = optax.adam(1e-3)
    return lambda: learner.train(adam, loss, window=4)(params, adam.init(params), learner.init(), XS, YS)


def step():
    learner, params = plain()
    now = [learner.init()]

    def run():
        now[0], output = learner.step(params, now[0], XS[0])
        return output

    return run


def feed():
    learner, _ = plain()
    stream = learner.online(optax.adam(1e-3), loss, window=4)
    return lambda: stream.feed(XS[0], YS[0])


def bptt():
    learner, params = plain()
    return lambda: etrax.testing.bptt(learner, loss)(params, learner.hidden, XS, YS)


def evaluate():
    learner, params = plain()
    trainer = etrax.Trainer(learner, optax.adam(1e-3), loss, window=4)
    data = etrax.train.Dataset(np.ones((10, 4, 3)), np.zeros((10, 4, 4)))
    return lambda: trainer.evaluate(params, data)


def fit():
    learner, _ = plain()
    trainer = etrax.Trainer(learner, optax.adam(1e-3), loss, window=4)
    data = etrax.train.Dataset(np.ones((10, 4, 3)), np.zeros((10, 4, 4)))
    return lambda: trainer.fit(data, 1, progress=False)


def of_brainstate():
    """`online(x)`, and the gradient of a function that calls it, neither under `jit`."""
    brainstate = pytest.importorskip("brainstate")
    cell = brainstate.nn.GRUCell(3, 4)
    online = etrax.Stateful(cell, "d_rtrl", XS[0], batch_size=2)
    weights = cell.states(brainstate.ParamState)

    def run():
        online(XS[0])
        return brainstate.transform.grad(lambda: loss(online(XS[0]), YS[0]), weights)()

    return run


def of_nnx():
    nnx = pytest.importorskip("flax.nnx")
    online = etrax.Stateful(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)), "d_rtrl", XS[0], hidden=jnp.zeros((2, 4)))

    def run():
        online(XS[0])
        return nnx.grad(lambda m: loss(m(XS[0]), YS[0]))(online)

    return run


def artifact(tmp_path):
    learner, params = plain()
    adam = optax.adam(1e-3)
    learner.export(tmp_path / "artifact", adam, loss)
    update = etrax.load(tmp_path / "artifact")
    return lambda: update(params, adam.init(params), learner.init(), XS[0], YS[0])


DRIVERS = (value_and_grad, train, step, feed, bptt, evaluate, fit, of_brainstate, of_nnx, artifact)


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda f: f.__name__)
@pytest.mark.fast_seconds(5)
def test_a_loop_compiles_once_and_holds_no_more(driver, tmp_path):
    run = driver(tmp_path) if driver is artifact else driver()
    with compilations() as found:
        for _ in range(WARM if driver not in (of_brainstate, of_nnx) else 3):
            run()
        first = len(found)
        gc.collect()
        held = len(jax.live_arrays())
        assert first, "no compilation was seen: the counter counts nothing"
        for call in range(CALLS if driver not in (of_brainstate, of_nnx) else 8):  # whose `grad` traces every time
            run()
            assert len(found) == first, call
    gc.collect()
    assert len(jax.live_arrays()) <= held + 4  # the samples of a window that has begun


@pytest.mark.parametrize("how", ["value_and_grad", "train"])
def test_a_loss_defined_in_a_loop_is_told_of(how, monkeypatch):
    from etrax.learn import _warnings

    monkeypatch.setattr(_warnings, "MANY", 3)
    learner, _ = plain()
    sgd = optax.sgd(0.1)

    def asked(loss_fn):
        return learner.value_and_grad(loss_fn, window=4) if how == "value_and_grad" else learner.train(sgd, loss_fn, 4)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            asked(loss)
        for k in range(2, 7):
            learner.value_and_grad(lambda o, t: loss(o, t), window=k)  # another window is another program anyway
    with pytest.warns(UserWarning, match=r"test_compilations\.py:\d+ .*Define the loss once") as told:
        for _ in range(8):
            asked(lambda o, t: loss(o, t))
    assert len(told) == 1
    assert told[0].filename == __file__


def test_sequences_outside_of_jit_are_told_of(monkeypatch):
    brainstate = pytest.importorskip("brainstate")
    from etrax.stateful import _online

    monkeypatch.setattr(_online, "MANY_OUTSIDE", 2)
    online = etrax.Stateful(brainstate.nn.ValinaRNNCell(3, 4), "d_rtrl", XS[0], batch_size=2)
    with pytest.warns(UserWarning, match=r"brainstate\.transform\.jit") as told:
        for _ in range(3):
            online.etrace_evolve(XS[:2])
    assert [w.filename for w in told] == [__file__]
    inside = brainstate.transform.jit(lambda xs: online.etrace_evolve(xs, return_outputs=True))
    with compilations() as found:
        inside(XS[:2])
        once = len(found)
        for _ in range(10):
            inside(XS[:2])
        assert once
        assert len(found) == once
