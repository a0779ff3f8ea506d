"""The record of a task: parts of it, held-out sequences, scaling, and the learner that takes it as it is."""

import jax.numpy as jnp
import numpy as np
import pytest

import etrax
from etrax import tasks


def numbered(n: int) -> tasks.Task:
    """Sequence i holds the number i everywhere."""
    inputs = np.broadcast_to(np.arange(n, dtype=np.float32)[None, :, None], (5, n, 2))
    return tasks.labelled(inputs, np.arange(n), classes=n)


def test_split_holds_out_a_random_share():
    train, test = tasks.split(numbered(50), test=0.2, seed=3)
    assert (train.size, test.size) == (40, 10)
    assert set(train.targets[0]) | set(test.targets[0]) == set(range(50))
    for part in (train, test):
        np.testing.assert_array_equal(part.inputs[..., 0], part.targets)
        assert part.mask.shape == (5, part.size) and part.classes == 50
    again, other = (tasks.split(numbered(50), test=0.2, seed=s)[1].targets[0].tolist() for s in (3, 4))
    assert again == test.targets[0].tolist() and other != again
    assert again != list(range(10)) and again != list(range(40, 50))


@pytest.mark.parametrize("share", [0.0, 1.0, 0.001])
def test_an_empty_part_is_refused(share):
    with pytest.raises(ValueError, match="both parts need one"):
        tasks.split(numbered(50), test=share)


def test_standardise_knows_the_training_frames_only():
    rng = np.random.default_rng(0)
    inputs = rng.normal(5, [2, 3], size=(6, 40, 2)).astype(np.float32)
    mask = np.arange(6)[:, None] < rng.integers(2, 7, size=40)
    whole = tasks.labelled(np.where(mask[..., None], inputs, 1e6), np.zeros(40, int), 2, mask)
    a, b = tasks.standardise(whole.take(slice(0, 30)), whole.take(slice(30, 40)))
    seen = inputs[:, :30][mask[:, :30]].astype(np.float64)
    np.testing.assert_allclose(a.inputs[a.mask].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(a.inputs[a.mask].std(0), 1, atol=1e-5)
    want = (inputs[:, 30:][mask[:, 30:]] - seen.mean(0)) / seen.std(0)
    np.testing.assert_allclose(b.inputs[b.mask], want, atol=1e-5)
    assert not a.inputs[~a.mask].any() and not b.inputs[~b.mask].any()


def test_last_only_marks_the_last_real_frame():
    mask = np.array([[True, True, False], [True, True, True], [False, True, False]])
    task = tasks.labelled(np.zeros((3, 3, 1)), np.zeros(3, int), 2, mask)
    want = [[False, False, False], [True, False, True], [False, True, False]]
    assert tasks.last_only(task).mask.tolist() == want


def test_a_data_set_is_no_task_and_a_task_shows_its_shapes():
    inputs = np.zeros((3, 4, 1), np.float32)
    with pytest.raises(tasks.TaskError, match=r"`split` takes a `Task`, got Dataset.*`etrax.tasks.labelled"):
        tasks.split(etrax.train.Dataset.labelled(inputs, np.zeros(4, int)))
    task = tasks.labelled(inputs, np.zeros(4, int), 2)
    assert repr(task) == "Task(inputs: float32[3, 4, 1]; targets: int32[3, 4]; every step counts; 2 classes)"
    assert "33% of the steps count" in repr(tasks.last_only(task))


def test_parts_must_fit():
    with pytest.raises(ValueError, match="`labels` has shape"):
        tasks.labelled(np.zeros((3, 4, 1)), np.zeros(3, int), 2)
    with pytest.raises(ValueError, match="`mask` has"):
        tasks.labelled(np.zeros((3, 4, 1)), np.zeros(4, int), 2, np.ones((3, 3), bool))


def test_a_learner_takes_a_task_as_it_is():
    """Padded sequences of one batch: the loss is that of the marked steps, computed by hand."""
    mask = np.array([[True, True], [True, False], [True, False]])
    inputs = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    task = tasks.labelled(inputs, np.array([0, 1]), 2, mask)

    def step(params, h, x):
        h = h + x @ params["w"]
        return h, h

    params, hidden = {"w": jnp.eye(2, dtype=jnp.float32)}, jnp.zeros((2, 2), jnp.float32)
    learner = etrax.compile(step, "d_rtrl", task.inputs[0], params=params, hidden=hidden)
    loss_fn = lambda o, y: jnp.take_along_axis(o, y[:, None], axis=-1).mean()
    (loss, grads), _ = learner.value_and_grad(loss_fn, window=1)(
        params, learner.init(), task.inputs, task.targets, task.mask
    )
    sums = np.cumsum(inputs, axis=0)
    marked = [sums[0, 0, 0], sums[1, 0, 0], sums[2, 0, 0], sums[0, 1, 1]]
    assert float(loss) == pytest.approx(np.mean(marked))
    by_hand = np.zeros((2, 2))
    by_hand[:, 0] = sums[:, 0].sum(0) / 4
    by_hand[:, 1] = sums[0, 1] / 4
    np.testing.assert_allclose(grads["w"], by_hand, rtol=1e-6)
