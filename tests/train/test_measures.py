"""Data sets and metrics, beside numpy over one sequence at a time."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.train.common import N, T, class_trainer, classes, data, outputs_of, params, trainer

import etrax
from etrax.train import Dataset, accuracy, pad, step_accuracy


def test_loss_is_the_mean_over_all_steps_that_count():
    d = data()
    each = [((outputs_of(params(), d.inputs[:, n]) - d.targets[:, n]) ** 2).mean(-1)[d.mask[:, n]] for n in range(N)]
    found = trainer().evaluate(params(), d)
    assert list(found) == ["loss"]
    np.testing.assert_allclose(found["loss"], np.concatenate(each).mean(), rtol=1e-12)
    np.testing.assert_allclose(trainer(batch=None).evaluate(params(), d)["loss"], found["loss"], rtol=1e-12)


def test_accuracy_of_sequences_and_of_steps():
    d = classes(samples=11)
    made = class_trainer(metrics={"accuracy": accuracy, "steps": step_accuracy, "first": lambda o, t, m: o[0, :, 0]})
    found = made.evaluate(params(), d)
    outs = [outputs_of(params(), d.inputs[:, n]) for n in range(11)]
    whole = [o[d.mask[:, n]].sum(0).argmax() == n % 2 for n, o in enumerate(outs)]
    steps = np.concatenate([(o.argmax(-1) == n % 2)[d.mask[:, n]] for n, o in enumerate(outs)])
    assert 0 < np.mean(whole) < 1 and 0 < steps.mean() < 1
    np.testing.assert_allclose(found["accuracy"], np.mean(whole), rtol=1e-6)
    np.testing.assert_allclose(found["steps"], steps.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["first"], np.mean([o[0, 0] for o in outs]), rtol=1e-6)


def test_metrics_without_a_batch_axis_see_one():
    d, shapes = classes(), []
    made = trainer(batch=None, metrics={"a": lambda o, t, m: (shapes.append((o.shape, t.shape, m.shape)), m[0])[1]})
    made.evaluate(params(), data())
    assert shapes == [((T, 1, 2), (T, 1, 2), (T, 1))]
    assert d.targets.shape == (T, N)


def test_one_hot_targets_and_the_last_step_that_counts():
    outputs = jnp.asarray(np.random.default_rng(0).standard_normal((T, 5, 3)))
    labels = np.random.default_rng(1).integers(0, 3, (T, 5))
    mask = np.zeros((T, 5))
    when = np.array([0, 1, 2, 5, 3])
    mask[when, np.arange(5)] = 1
    want = np.asarray(outputs).argmax(-1)[when, np.arange(5)] == labels[when, np.arange(5)]
    np.testing.assert_array_equal(accuracy(outputs, jnp.asarray(labels), jnp.asarray(mask)), want)
    np.testing.assert_array_equal(accuracy(outputs, jnp.eye(3)[labels], jnp.asarray(mask)), want)


def test_metrics_on_the_training_data():
    d = classes()
    made = class_trainer()
    result = made.fit(d, 2, train_metrics=True, progress=False)
    assert list(result.history[0].metrics) == ["loss", "accuracy"]
    assert result.history[-1].metrics["accuracy"] == made.evaluate(result.last_params, d)["accuracy"]


def test_metrics_without_validation_are_those_of_the_training_data():
    d, made = classes(), class_trainer()
    shown = lambda **options: list(made.fit(d, 1, progress=False, **options).history[0].metrics)
    assert shown() == ["loss", "accuracy"]
    assert shown(train_metrics=False) == ["loss"]
    assert shown(validation=d) == ["loss", "val_loss", "val_accuracy"]


@pytest.mark.parametrize("count", ["all", "last"])
def test_pad(count):
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal((n, 3)) for n in (4, 1, 6)]
    xs, mask = pad(sequences, count)
    assert xs.shape == (6, 3, 3) and mask.shape == (6, 3)
    for n, s in enumerate(sequences):
        np.testing.assert_array_equal(xs[: len(s), n], s)
        assert not xs[len(s) :, n].any()
        assert mask[:, n].nonzero()[0].tolist() == (list(range(len(s))) if count == "all" else [len(s) - 1])


def test_labels_take_no_memory():
    d = Dataset.labelled(np.zeros((1000, 4, 1)), {"a": np.arange(4)})
    assert d.targets["a"].strides[0] == 0
    np.testing.assert_array_equal(d.targets["a"][17], np.arange(4))


def test_another_learner_evaluates_what_this_one_trains():
    class Noisy(nnx.Module):
        def __init__(self, width=3):
            self.read, self.drop = nnx.Linear(2, width, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))

        def __call__(self, h, x):
            h = 0.5 * h + self.read(x)
            return h, self.drop(h)

    model, x, hidden = Noisy(), jnp.ones((4, 2)), jnp.zeros((4, 3))
    noisy = etrax.compile(model, "d_rtrl", x, hidden=hidden)
    model.eval()
    quiet = etrax.compile(model, "tbptt", x, hidden=hidden)
    made = etrax.Trainer(noisy, optax.sgd(0.1), lambda o, t: (o**2).mean(), evaluated=quiet)
    xs = np.random.default_rng(0).standard_normal((5, 4, 2))
    h, want = np.zeros((4, 3)), []
    for now in xs:
        h = 0.5 * h + now @ np.asarray(model.read.kernel[...])
        want.append((h**2).mean())
    np.testing.assert_allclose(made.evaluate(noisy.params, Dataset(xs))["loss"], np.mean(want), rtol=1e-5)
    assert made.fit(Dataset(xs), 1, validation=Dataset(xs), progress=False).history[0].metrics["val_loss"] > 0
    other = etrax.compile(Noisy(5), "tbptt", x, hidden=jnp.zeros((4, 5)))
    with pytest.raises(etrax.ArgumentError, match=r"another model: the parameter 'read.bias' is not the same"):
        etrax.Trainer(noisy, optax.sgd(0.1), lambda o, t: (o**2).mean(), evaluated=other)
    with pytest.raises(etrax.ArgumentError, match="`evaluated` is a Noisy; pass what"):
        etrax.Trainer(noisy, optax.sgd(0.1), lambda o, t: (o**2).mean(), evaluated=model)


def test_pad_takes_no_pairs():
    """Pairs of equal lengths would be read as sequences of two steps."""
    with pytest.raises(etrax.ArgumentError, match="pad inputs and targets apart"):
        pad([(np.zeros(4), np.zeros(4)), (np.zeros(4), np.zeros(4))])
