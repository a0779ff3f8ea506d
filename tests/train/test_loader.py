"""`fit` over iterables of batches, numbers that are logged, and parameters that are projected after every update."""

import csv
import queue
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.train.common import B, C, I, T, class_trainer, close, data, learner, loss, params, same, trainer

import etrax
from etrax.train import DataError, Dataset, accuracy, projected

SAMPLES = 2 * B + 1  # the last batch is shorter


def cut(d, lead=lambda a: a):
    """The batches of a data set, in order, as tuples of arrays (T, B, …)."""
    parts = [d.inputs, d.targets, d.mask]
    return [tuple(lead(a[:, i : i + B]) for a in parts) for i in range(0, d.inputs.shape[1], B)]


def fitted(source, epochs=2, **options):
    return trainer().fit(source, epochs, progress=False, **options)


FORMS = {
    "a list": lambda d: (cut(d), {}),
    "dictionaries": lambda d: ([dict(zip(Dataset._fields, b, strict=False)) for b in cut(d)], {}),
    "data sets": lambda d: ([Dataset(*b) for b in cut(d)], {}),
    "a function that makes a generator": lambda d: (lambda: (b for b in cut(d)), {}),
    "batches first": lambda d: (cut(d, lambda a: np.swapaxes(a, 0, 1)), {"batch_first": True}),
    "an endless generator": lambda d: ((b for _ in range(9) for b in cut(d)), {"batches": 3}),
    "arrays of JAX": lambda d: ([tuple(map(jnp.asarray, b)) for b in cut(d)], {}),
    "resets that are never set": lambda d: ([(*b, np.zeros(b[2].shape, bool)) for b in cut(d)], {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_iterable_is_trained_on_as_the_data_set_that_it_cuts(form):
    d = data(samples=SAMPLES)
    want = fitted(d, shuffle=False)
    batches, options = FORMS[form](d)
    result = fitted(batches, **options)
    close(result.params, want.params)
    assert [e.step for e in result.history] == [3, 6]
    np.testing.assert_allclose(*([e.metrics["loss"] for e in r.history] for r in (result, want)), rtol=1e-12)
    assert result.history[0].samples_per_second > 0


def test_evaluation_and_validation_of_iterables():
    d = data(samples=SAMPLES)
    made = trainer()
    want = made.evaluate(params(), d)
    close(made.evaluate(params(), cut(d)), want)
    close(made.evaluate(params(), cut(d, lambda a: np.swapaxes(a, 0, 1)), batch_first=True), want)
    result = made.fit(cut(d), 1, validation=cut(d), progress=False)
    close(result.history[0].metrics["val_loss"], made.evaluate(result.params, d)["loss"])


def test_one_target_for_a_sequence():
    rng = np.random.default_rng(0)
    xs, labels = rng.standard_normal((T, 2 * B, I)), np.arange(2 * B) % C
    want = class_trainer().fit(Dataset.labelled(xs, labels), 2, shuffle=False, progress=False)
    batches = [(np.swapaxes(xs[:, i : i + B], 0, 1), labels[i : i + B]) for i in (0, B)]
    result = class_trainer().fit(batches, 2, batch_first=True, progress=False)
    close(result.params, want.params)
    assert "accuracy" in result.history[0].metrics


def test_batches_of_different_lengths():
    d = data(samples=2 * B)
    short = tuple(a[:4] for a in cut(d)[1])
    result = fitted([cut(d)[0], short], 1)
    first = trainer().fit(Dataset(*cut(d)[0]), 1, shuffle=False, progress=False)
    want = trainer().fit(
        Dataset(*short), 1, params=first.params, opt_state=first.opt_state, shuffle=False, progress=False
    )
    close(result.params, want.params)


def test_a_learner_without_a_batch_axis_takes_one_sequence_at_a_time():
    d = data(samples=2)
    alone = trainer(batch=None)
    want = alone.fit(d, 1, shuffle=False, progress=False)
    result = alone.fit(
        [tuple(a[:, n : n + 1] for a in (d.inputs, d.targets, d.mask)) for n in (0, 1)], 1, progress=False
    )
    close(result.params, want.params)


def broken(d, failure):
    """Two good batches, and then something else."""
    yield from cut(d)[:2]
    yield from failure()


def raising(error):
    def failure():
        raise error
        yield

    return failure


class Closed(Exception):
    """What a queue raises that was shut down."""


BREAKS = {
    "it raises": (raising(OSError("the disk is gone")), "raised OSError at batch 3: the disk is gone"),
    "a closed queue": (raising(Closed()), "raised Closed at batch 3"),
    "other inputs": (lambda: [(np.zeros((T, B, I + 1)), np.zeros((T, B, C)))], r"batch 3 of `data`: .*has shape"),
    "another type": (lambda: [(np.zeros((T, B, I), int), np.zeros((T, B, C)))], "batch 3 .*but the model was compiled"),
    "other targets": (lambda: [(np.zeros((T, B, I)), np.zeros((T + 1, B, C)))], "batch 3 .*targets"),
    "a reset of another shape": (
        lambda: [(np.zeros((T, B, I)), np.zeros((T, B, C)), np.ones((T, B)), np.zeros((B, T), bool))],
        r"batch 3 .*reset.*expected \(6, 3\)",
    ),
    "too many samples": (lambda: [(np.zeros((T, B + 1, I)), np.zeros((T, B + 1, C)))], "holds 4 samples.*for 3"),
    "no batch": (lambda: [3.0], "batch 3 .* is a float; expected"),
    "text": (lambda: [("a", "b")], "batch 3 "),
    "a dictionary of other names": (lambda: [{"x": np.zeros((T, B, I))}], "a dictionary with x; expected inputs"),
    "it ends early": (lambda: [], "ended after 2 of the 3 batches"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_an_iterable_that_breaks_leaves_the_parameters_before(name):
    failure, text = BREAKS[name]
    d = data(samples=SAMPLES)
    want = fitted(cut(d)[:2], 1)
    with pytest.raises(DataError, match=f"(?s){text}") as caught:
        fitted(broken(d, failure), 1, batches=3)
    assert caught.value.result.reason == "data" and str(caught.value).count("\n") == 0
    same(caught.value.result.last_params, want.last_params)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="queues can be shut down since Python 3.13")
def test_a_queue_that_is_shut_down():
    d, samples = data(samples=SAMPLES), queue.Queue()
    for batch in cut(d)[:2]:
        samples.put(batch)
    samples.shutdown()
    with pytest.raises(DataError, match="raised ShutDown at batch 3"):
        fitted(iter(samples.get, None), 1, batches=3)


def test_an_iterator_is_read_once():
    d = data(samples=SAMPLES)
    with pytest.raises(DataError, match="gave no batch in this epoch: an iterator is read once") as caught:
        fitted(iter(cut(d)), 2)
    assert len(caught.value.result.history) == 1
    with pytest.raises(etrax.ArgumentError, match="`validation` is read after every epoch"):
        fitted(cut(d), 1, validation=iter(cut(d)))
    with pytest.raises(etrax.ArgumentError, match="`train_metrics` reads"):
        fitted(iter(cut(d)), 1, train_metrics=True)
    with pytest.raises(etrax.ArgumentError, match="`data` holds no batch"):
        fitted([], 1)
    with pytest.raises(etrax.ArgumentError, match="is a data set"):
        fitted(d, 1, batches=2)
    with pytest.raises(etrax.ArgumentError, match="nothing to iterate over"):
        fitted(lambda: None, 1)


class Tensor:
    """An array of another library, of which only numpy knows how to read it."""

    def __init__(self, a):
        self.a = a

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.a, dtype)


def test_tensors_of_other_libraries():
    d = data(samples=SAMPLES)
    batches = [list(map(Tensor, batch)) for batch in cut(d)]  # torch gives lists
    close(fitted(batches).params, fitted(d, shuffle=False).params)


def test_a_loader_of_torch():
    torch = pytest.importorskip("torch")
    d = data(samples=SAMPLES)
    x, y, m = (torch.from_numpy(np.swapaxes(np.asarray(a), 0, 1).copy()) for a in (d.inputs, d.targets, d.mask))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y, m), batch_size=B)
    close(fitted(loader, batch_first=True).params, fitted(d, shuffle=False).params)


def test_a_loader_of_grain():
    grain = pytest.importorskip("grain.python")
    d = data(samples=SAMPLES)
    rows = [tuple(np.asarray(a)[:, n] for a in (d.inputs, d.targets, d.mask)) for n in range(SAMPLES)]
    loader = grain.MapDataset.source(rows).batch(B, drop_remainder=False)
    close(fitted(loader, batch_first=True).params, fitted(d, shuffle=False).params)


def test_what_is_logged(tmp_path):
    d, rows = data(samples=SAMPLES), []
    result = fitted(d, log=rows.append, log_every=2, validation=d)
    batches, epochs = ([r for r in rows if ("seconds" in r) == whole] for whole in (False, True))
    assert [(r["epoch"], r["step"]) for r in batches] == [(1, 2), (2, 5)]
    assert [(r["epoch"], r["step"]) for r in epochs] == [(1, 3), (2, 6)]
    assert [r["val_loss"] for r in epochs] == [e.metrics["val_loss"] for e in result.history]
    assert all(isinstance(v, int | float) for r in rows for v in r.values())
    with open(tmp_path / "run.csv", "w", newline="") as file:
        table = csv.DictWriter(file, ["epoch", "step", "loss"], extrasaction="ignore")
        table.writeheader()
        fitted(d, log=table.writerow)
    with open(tmp_path / "run.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]
    with pytest.raises(etrax.ArgumentError, match="pass `log`"):
        fitted(d, log_every=2)


def clamped(p):
    return {**p, "w": jnp.clip(p["w"], -0.3, 0.7), "leak": jnp.minimum(p["leak"], 0.1)}


@pytest.mark.parametrize("update", ["window", "sequence"])
def test_a_projection_after_every_update(update):
    """The oracle: one window or sequence at a time, projected by hand in between."""
    d = data(samples=B)
    result = trainer(update=update, window=2).fit(d, 1, project=clamped, shuffle=False, progress=False)
    assert float(result.params["w"].max()) <= 0.7 and float(result.params["w"].min()) >= -0.3
    small, sgd = learner(), optax.sgd(0.1)
    p, opt, state = params(), sgd.init(params()), small.init()
    if update == "sequence":
        (_, grads), _ = small.value_and_grad(loss, window=2)(p, state, d.inputs, d.targets, d.mask)
        p = clamped(optax.apply_updates(p, sgd.update(grads, opt)[0]))
    else:
        run = small.train(sgd, loss, window=2)
        for t in range(0, T, 2):
            part = slice(t, t + 2)
            if d.mask[part].any():
                p, opt, state, _ = run(p, opt, state, d.inputs[part], d.targets[part], d.mask[part])
                p = clamped(p)
    close(result.params, p)


def test_an_optimizer_with_a_projection_goes_wherever_one_goes():
    adam = projected(optax.adam(0.1), clamped)
    small, d = learner(), data(samples=B)
    stream = small.online(adam, loss)
    for t in range(T):
        stream.feed(d.inputs[t], d.targets[t])
    assert float(stream.params["w"].max()) <= 0.7
    grads = jax.tree.map(jnp.ones_like, params())
    updates, _ = adam.update(grads, adam.init(params()), params())
    inner, _ = optax.adam(0.1).update(grads, adam.init(params()), params())
    close(optax.apply_updates(params(), updates), clamped(optax.apply_updates(params(), inner)))
    with pytest.raises(etrax.ArgumentError, match="`project` returned"):
        small.online(projected(optax.sgd(0.1), lambda p: p["w"]), loss).feed(d.inputs[0], d.targets[0])
    with pytest.raises(etrax.ArgumentError, match="needs the parameters"):
        adam.update(grads, adam.init(params()))
    with pytest.raises(etrax.EtraxError, match="`project`"):
        fitted(d, 1, project=3)


def test_a_checkpoint_of_another_projection_is_refused(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    d = data(samples=B)
    fitted(d, 1, project=clamped, checkpoint=tmp_path / "run")
    with pytest.raises(etrax.train.CheckpointError, match="optimizer"):
        fitted(d, 2, checkpoint=tmp_path / "run")
    result = fitted(cut(d), 1, checkpoint=tmp_path / "other", project=clamped)
    again = fitted(cut(d), 2, checkpoint=tmp_path / "other", project=clamped)
    assert len(again.history) == 2 and again.history[0] == result.history[0]


def test_the_metric_of_an_iterable():
    d = data(samples=B)
    ones = Dataset.labelled(d.inputs, np.zeros(B, int))
    made = class_trainer(metrics={"accuracy": accuracy})
    close(made.evaluate(params(), [(ones.inputs, ones.targets)]), made.evaluate(params(), ones))
