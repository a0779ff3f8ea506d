"""Interrupt and resume: the resumed run is the uninterrupted one, bit for bit, and another run is refused."""

import os
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import optax
import pytest
from tests.train.common import B, H, I, data, params, same, trainer
from tests.train.test_stop import interrupt

import etrax
from etrax.train import CheckpointError, Interrupted, Trainer

adam = optax.adam(0.03)


def metrics(result):
    return [(e.epoch, e.step, dict(e.metrics)) for e in result.history]


def equal(a, b):
    same((a.params, a.last_params, a.opt_state), (b.params, b.last_params, b.opt_state))
    assert (metrics(a), a.best, a.reason) == (metrics(b), b.best, b.reason)


@pytest.mark.parametrize(("rule", "update"), [("d_rtrl", "window"), ("d_rtrl", "sequence"), ("synthetic", "window")])
def test_resumed_run_is_the_uninterrupted_one(tmp_path, monkeypatch, rule, update):
    made = trainer(rule, optimizer=adam, update=update)
    call = lambda **more: made.fit(data(), 4, validation=data(2), key=5, progress=False, **more)
    whole = call()
    with monkeypatch.context() as patch:
        interrupt(patch, epoch=3, batch=2)
        with pytest.raises(Interrupted, match=r"2 finished and saved in .*the same call continues from there"):
            call(checkpoint=tmp_path / "run")
    again = []
    equal(call(checkpoint=tmp_path / "run", callback=lambda e: again.append(e.epoch)), whole)
    assert again == [3, 4]
    equal(call(checkpoint=str(tmp_path / "run"), callback=lambda e: again.append(e.epoch)), whole)
    assert again == [3, 4]  # nothing left to do


def test_more_epochs_go_on_and_patience_holds(tmp_path):
    made = trainer(optimizer=adam)
    call = lambda epochs, **more: made.fit(data(), epochs, validation=data(2), progress=False, **more)
    call(2, checkpoint=tmp_path)
    equal(call(5, checkpoint=tmp_path), call(5))
    frozen = trainer(optimizer=optax.sgd(0.0))
    stop = lambda: frozen.fit(data(), 9, validation=data(2), patience=2, checkpoint=tmp_path / "p", progress=False)
    first = stop()
    assert first.reason == "patience" and len(first.history) == 3
    equal(stop(), first)


def test_without_anything_to_monitor(tmp_path):
    made = trainer(optimizer=adam)
    made.fit(data(), 1, checkpoint=tmp_path, progress=False)
    equal(made.fit(data(), 3, checkpoint=tmp_path, progress=False), made.fit(data(), 3, progress=False))


def test_keys_and_empty_arrays_are_kept(tmp_path):
    """Parameters of size zero, and an optimizer whose state holds a key."""

    def step(p, h, x):
        h = 0.5 * h + x @ p["w"]
        return h, h + p["none"].sum()

    def update(g, state, p):
        key, later = jax.random.split(state["key"])
        return jax.tree.map(lambda a: -0.1 * a + 0.01 * jax.random.normal(key, a.shape), g), {"key": later}

    p = {"w": params()["w"], "none": jnp.zeros((0, 2))}
    made = etrax.compile(step, "d_rtrl", jnp.zeros((B, I)), params=p, hidden=jnp.zeros((B, H)))
    noisy = optax.GradientTransformation(lambda p: {"key": jax.random.key(3)}, update)
    fit = Trainer(made, noisy, lambda o, t: (o**2).mean(), window=3).fit
    fit(data(), 1, checkpoint=tmp_path, progress=False)
    resumed, whole = fit(data(), 2, checkpoint=tmp_path, progress=False), fit(data(), 2, progress=False)
    same(resumed.params, whole.params)
    same(*(jax.random.key_data(r.opt_state["key"]) for r in (resumed, whole)))


def test_a_save_that_was_cut_short_does_not_count(tmp_path):
    made = trainer(optimizer=adam)
    made.fit(data(), 1, checkpoint=tmp_path, progress=False)
    (tmp_path / "2.orbax-checkpoint-tmp").mkdir()
    equal(made.fit(data(), 2, checkpoint=tmp_path, progress=False), made.fit(data(), 2, progress=False))


def wide():
    p = {**params(), "out": jnp.ones((H, 5))}
    made = etrax.compile(lambda p, h, x: (h + x @ p["w"], h @ p["out"]), "d_rtrl", jnp.zeros((B, I)),
                         params=p, hidden=jnp.zeros((B, H)))  # fmt: skip
    return Trainer(made, adam, lambda o, t: (o**2).mean(), window=2)


OTHERS = {
    "model": (wide, {}, r"params\['out'\]: float64\[4, 2\] there, float64\[4, 5\] here"),
    "optimizer": (lambda: trainer(optimizer=optax.sgd(0.1)), {}, r"opt_state\[0\]\.mu\['w'\]: .* there, absent here"),
    "rule": (lambda: trainer("pp_prop", optimizer=adam), {}, r"rule: d_rtrl\(\) there, pp_prop\(decay=0.9\) here"),
    "window": (lambda: trainer(optimizer=adam, window=3), {}, "window: 2 there, 3 here"),
    "update": (lambda: trainer(optimizer=adam, update="sequence"), {}, "update: window there, sequence here"),
    "key": (lambda: trainer(optimizer=adam), {"key": 1}, r"key: \[0, 0\] there, \[0, 1\] here"),
    "data": (
        lambda: trainer(optimizer=adam),
        {"data": data(samples=9)},
        "data: 7 samples of 6 steps, digest .* there, 9 samples of 6 steps, digest .* here",
    ),
    "monitor": (lambda: trainer(optimizer=adam), {"monitor": "loss"}, "monitor: None there, min loss here"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    trainer(optimizer=adam).fit(data(), 1, checkpoint=directory, progress=False)
    return directory


@pytest.mark.parametrize("what", OTHERS)
def test_another_run_is_refused(saved, what):
    make, options, message = OTHERS[what]
    options = {"data": data(), **options}
    with pytest.raises(CheckpointError, match=f"belongs to a different run:(?s:.*){message}"):
        make().fit(epochs=2, checkpoint=saved, progress=False, **options)


def test_orbax_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r"orbax-checkpoint.*\[train\]"):
        trainer().fit(data(), 1, checkpoint=tmp_path, progress=False)


def test_checkpoint_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="is a file; expected a directory"):
        trainer().fit(data(), 1, checkpoint=tmp_path / "file", progress=False)


SCRIPT = """
    import sys, jax, numpy as np, optax
    jax.config.update("jax_enable_x64", True)
    from tests.train.common import data, trainer
    made = trainer(optimizer=optax.adam(0.03))
    told = lambda e: print("epoch", e.epoch, flush=True)
    epochs, *more = sys.argv[1:]
    result = made.fit(data(), int(epochs), progress=False, callback=told, checkpoint=more[0] if more else None)
    print("sum", repr([float(a.sum()) for a in jax.tree.leaves(result.params)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_process_that_is_stopped(tmp_path, by):
    """Stopped from outside at any moment, another process goes on where this one was."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    run = lambda *a: subprocess.Popen([*command, *a], stdout=subprocess.PIPE, text=True, env=environment)
    first = run("100000", str(tmp_path))
    for line in first.stdout:
        if line.strip() == "epoch 3":
            first.send_signal(by)
            break
    rest = first.stdout.read()
    first.stdout.close()
    assert first.wait() != 0 and "sum" not in rest
    done = len(rest.split("epoch")) - 1 + 3
    resumed, _ = run(str(done + 3), str(tmp_path)).communicate()
    whole, _ = run(str(done + 3)).communicate()
    assert "epoch 1\n" not in resumed
    assert resumed.splitlines()[-1] == whole.splitlines()[-1] and whole.startswith("epoch 1\n")
