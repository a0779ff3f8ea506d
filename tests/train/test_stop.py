"""The ways in which a run ends: epochs, patience, a callback, Ctrl-C, and numbers that are none."""

import dataclasses
import pickle
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.train.common import B, H, I, class_trainer, data, loss, params, same, step, trainer

import etrax
from etrax.train import Dataset, Diverged, Interrupted, Trainer, _data


def test_history_and_callback():
    seen = []
    result = trainer().fit(data(), 3, validation=data(2), progress=False, callback=seen.append)
    assert [e.epoch for e in seen] == [1, 2, 3] and [e.step for e in seen] == [3, 6, 9]
    assert tuple(seen) == result.history and result.reason == "epochs"
    assert all(e.seconds > 0 and e.samples_per_second > 0 for e in seen)
    assert list(seen[0].metrics) == ["loss", "val_loss"]
    same(seen[-1].params, result.last_params)
    assert result.history[-1].params is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen[0].epoch = 5
    assert pickle.loads(pickle.dumps(result)).history == result.history


def test_updates_and_samples_are_counted():
    """A window in which no target counts makes no update; a schedule counts updates."""
    found = data()
    mask = np.array(found.mask)
    mask[2:4] = 0  # of 6 steps in windows of 2, the second window never counts
    made = trainer(optimizer=optax.inject_hyperparams(optax.sgd)(lambda count: 0.1 + 0.0 * count))
    result = made.fit(Dataset(found.inputs, found.targets, mask), 2, shuffle=False, progress=False)
    per_batch = [int(m[:2].any()) + int(m[4:].any()) for m in (mask[:, :3], mask[:, 3:6], mask[:, 6:])]
    assert [e.updates for e in result.history] == [sum(per_batch), 2 * sum(per_batch)]
    assert [e.samples for e in result.history] == [7, 14]
    assert int(result.opt_state.count) == result.history[-1].updates
    whole = trainer(update="sequence").fit(data(), 1, progress=False)
    assert whole.history[0].updates == 3


def test_why_it_ended_is_said(capsys):
    made, train, judge = drifting()
    result = made.fit(train, 50, validation=judge, patience=3)
    end = capsys.readouterr().out.splitlines()[-1]
    done = len(result.history)
    assert end == (
        f"stopped after epoch {done} of 50: no better val_loss for 3 epochs; the best val_loss is that of epoch "
        f"{result.best}"
    )
    assert repr(result).startswith(f"Result({done} epochs, ended by 'patience'; best epoch {result.best}: loss ")
    made.fit(train, 2, callback=lambda e: True)
    assert capsys.readouterr().out.endswith("stopped after epoch 1 of 2: the callback asked for it\n")


def test_callback_ends_the_run():
    made = trainer()
    result = made.fit(data(), 9, progress=False, callback=lambda e: e.epoch == 2)
    assert result.reason == "callback" and len(result.history) == 2
    for other in (1, "yes", [0], None):  # only True ends it: a callback may return what it likes
        assert len(made.fit(data(), 2, progress=False, callback=lambda e, o=other: o).history) == 2
    assert len(made.fit(data(), 2, progress=False, callback=lambda e: np.bool_(True)).history) == 1


def test_without_validation_the_last_parameters_are_returned():
    result = trainer().fit(data(), 2, progress=False)
    assert result.best is None
    same(result.params, result.last_params)


def drifting():
    """Trained towards 1 from 0, judged by the distance to 1/2: it gets better, then worse."""
    step = lambda p, h, x: (h, p + 0.0 * x)
    made = etrax.compile(step, "tbptt", jnp.zeros(()), params=jnp.zeros(()), hidden=jnp.zeros(()))
    train, judge = (Dataset(np.zeros((1, 1)), np.full((1, 1), y)) for y in (1.0, 0.5))
    metrics = {"score": lambda o, t, m: -jnp.abs(o - t)}
    return Trainer(made, optax.sgd(0.05), lambda o, t: (o - t) ** 2, metrics=metrics), train, judge


@pytest.mark.parametrize("options", [{}, {"monitor": "val_score"}, {"monitor": "val_score", "mode": "max"}])
def test_patience_returns_the_best(options):
    made, train, judge = drifting()
    result = made.fit(train, 50, validation=judge, patience=3, progress=False, **options)
    path = 1 - 0.9 ** np.arange(1, 51)  # gradient descent on (p - 1)²
    best = int(np.abs(path - 0.5).argmin())
    assert result.reason == "patience" and result.best == best + 1 and len(result.history) == best + 4
    np.testing.assert_allclose(result.params, path[best], rtol=1e-12)
    np.testing.assert_allclose(result.last_params, path[best + 3], rtol=1e-12)


def test_mode_turns_the_comparison():
    made, train, judge = drifting()
    result = made.fit(train, 30, validation=judge, patience=3, monitor="val_score", mode="min", progress=False)
    assert result.best == 1 and len(result.history) == 4


def test_monitor_of_the_training_loss():
    made, train, _ = drifting()
    result = made.fit(train, 5, monitor="loss", patience=1, progress=False)
    assert result.best == 5 and result.reason == "epochs"


def test_loss_that_is_no_number_names_epoch_and_batch():
    d = data()
    d.inputs[0, 4] = np.nan  # in the second batch of three
    made = trainer()
    with pytest.raises(Diverged, match=r"the loss is nan in epoch 1, batch 2 of 3.*last_params") as caught:
        made.fit(d, 2, shuffle=False, progress=False)
    assert (caught.value.epoch, caught.value.batch) == (1, 2)
    first = made.fit(Dataset(*(a[:, :B] for a in d[:3])), 1, shuffle=False, progress=False)
    same(caught.value.result.last_params, first.params)
    assert caught.value.result.reason == "diverged" and isinstance(caught.value, FloatingPointError)


def test_watching_learner_names_the_step():
    d = data()
    d.inputs[2, 4, 1] = np.nan
    made = etrax.compile(
        step, "d_rtrl", jnp.zeros((B, I)), params=params(), hidden=jnp.zeros((B, H)), check_finite=True
    )
    with pytest.raises(Diverged, match=r"epoch 1, batch 2 of 3. NaN or infinity appeared at step 2 .* input"):
        Trainer(made, optax.sgd(0.1), loss, window=2).fit(d, 1, shuffle=False, progress=False)


def test_gradient_that_is_no_number_is_seen_at_once():
    """The loss is 0, its derivative is not a number: the next loss would be, one batch too late."""
    made, train, _ = drifting()
    made = Trainer(made.learner, optax.sgd(0.1), lambda o, t: jnp.sqrt(o * o))
    with pytest.raises(Diverged, match="parameters became NaN in epoch 1, batch 1 of 1") as caught:
        made.fit(train, 2, progress=False)
    assert caught.value.result.last_params == 0


def interrupt(monkeypatch, epoch, batch):
    """Ctrl-C just before a batch is drawn."""
    plain, calls = _data.Batches.epoch, []

    def epochs(self, order=None):
        calls.extend([()] if order is not None else [])
        for i, one in enumerate(plain(self, order), start=1):
            if order is not None and (len(calls), i) == (epoch, batch):
                signal.raise_signal(signal.SIGINT)
            yield one

    monkeypatch.setattr(_data.Batches, "epoch", epochs)


def test_interrupt_carries_what_was_learnt(monkeypatch):
    made = trainer()
    whole = made.fit(data(), 1, validation=data(2), progress=False)
    interrupt(monkeypatch, epoch=2, batch=3)
    with pytest.raises(KeyboardInterrupt, match="interrupted in epoch 2 of 4; 1 finished") as caught:
        made.fit(data(), 4, validation=data(2), progress=False)
    assert isinstance(caught.value, Interrupted)
    result = caught.value.result
    assert result.reason == "interrupted" and len(result.history) == 1 and result.best == 1
    same(result.params, whole.params)
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), result.last_params, whole.params)
    assert all(jax.tree.leaves(moved))  # two batches further


def test_accuracy_is_learnt():
    """Two classes told apart by the sign of the input's sum: the whole loop learns it."""
    xs = np.random.default_rng(0).standard_normal((8, 40, 3))
    xs += np.where(np.arange(40) % 2, 1.0, -1.0)[:, None]
    d = Dataset.labelled(xs, np.arange(40) % 2)
    result = class_trainer().fit(d, 15, validation=d, monitor="val_accuracy", progress=False)
    assert result.history[result.best - 1].metrics["val_accuracy"] == 1.0
    assert result.history[-1].metrics["loss"] < result.history[0].metrics["loss"] / 2
