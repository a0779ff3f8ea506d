"""Each synthetic task has the property that defines it, read off its arrays alone."""

import jax
import numpy as np
import pytest

from etrax import tasks

MAKERS = {
    "integrator": tasks.integrator,
    "copy": tasks.copy,
    "delayed_match": tasks.delayed_match,
    "evidence": tasks.evidence,
    "short_evidence": tasks.short_evidence,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_task_is_a_function_of_its_key(name):
    make = MAKERS[name]
    one, same, other = make(0, 20), make(jax.random.key(0), 20), make(1, 20)
    np.testing.assert_array_equal(one.inputs, same.inputs)
    np.testing.assert_array_equal(one.targets, same.targets)
    assert (one.inputs != other.inputs).any()


@pytest.mark.parametrize("name", MAKERS)
def test_arrays_are_time_major_and_typed(name):
    task = MAKERS[name](0, 7)
    assert all(type(a) is np.ndarray for a in (task.inputs, task.targets, task.mask))
    assert (task.inputs.dtype, task.mask.dtype) == (np.float32, bool)
    assert task.inputs.shape[:2] == task.targets.shape[:2] == task.mask.shape == (task.steps, 7)
    assert task.mask.any(axis=0).all()
    # Spikes and events: inputs of constant sign.
    assert set(np.unique(task.inputs)) == {0, 1}
    if task.classes is not None:
        assert task.targets.dtype == np.int32
        assert set(np.unique(task.targets[task.mask])) <= set(range(task.classes))


def test_integrator_counts_up_minus_down():
    task = tasks.integrator(0, 400, steps=30, hold=6, distractors=3, rate=0.3)
    assert task.inputs.shape == (36, 400, 5)
    unit = np.sqrt(2 * 0.3 * 0.7 * 30)
    for n in range(5):
        balance = 0.0
        for t in range(36):
            balance += task.inputs[t, n, 0] - task.inputs[t, n, 1]
            assert task.targets[t, n, 0] * unit == pytest.approx(balance, abs=1e-4)
    assert not task.inputs[30:].any() and task.inputs[:30].any(axis=(0, 1)).all()
    assert task.mask[30:].all() and not task.mask[:30].any()
    # Four standard errors of a variance estimated from 400.
    assert task.targets[-1].var() == pytest.approx(1, abs=4 * np.sqrt(2 / 400))


def test_integrator_without_hold_counts_every_step():
    assert tasks.integrator(0, 3, steps=9).mask.all()


def test_copy_asks_for_what_was_shown():
    task = tasks.copy(0, 50, length=4, delay=6, symbols=5)
    assert task.inputs.shape == (14, 50, 6)
    for n in range(50):
        shown = [int(np.flatnonzero(task.inputs[t, n])[0]) for t in range(4)]
        assert task.targets[10:, n].tolist() == shown
    assert (task.inputs[:4].sum(-1) == 1).all() and not task.inputs[:4, :, 5].any()
    assert not task.inputs[4:10].any()
    np.testing.assert_array_equal(task.inputs[10:], np.broadcast_to(np.eye(6)[5], (4, 50, 6)))
    assert task.mask[10:].all() and not task.mask[:10].any()
    assert len(np.unique(task.targets[10:])) == 5


@pytest.mark.parametrize("stimuli", [2, 4])
def test_delayed_match_label_is_equality_of_the_stimuli(stimuli):
    task = tasks.delayed_match(0, 300, stimuli=stimuli, cue=5, delay=7, channels=3, rate=0.9)
    assert task.inputs.shape == (17, 300, 3 * stimuli)
    counts = task.inputs.reshape(17, 300, stimuli, 3).sum(-1)
    first, second = counts[:5].sum(0).argmax(-1), counts[12:].sum(0).argmax(-1)
    np.testing.assert_array_equal(task.targets[-1], first == second)
    assert (task.targets == task.targets[0]).all()
    assert not task.inputs[5:12].any()
    assert task.mask[12:].all() and not task.mask[:12].any()
    assert 0.35 < task.targets[0].mean() < 0.65
    assert len(np.unique(second[first != second])) == stimuli


def test_short_evidence_label_is_the_sign_of_the_difference_of_cues():
    task = tasks.short_evidence(0, 300, cues=7, cue=4, gap=1, delay=9, recall=3, channels=5, rate=0.9, noise=0.0)
    assert task.inputs.shape == (7 * 5 + 9 + 3, 300, 20)
    counts = task.inputs.reshape(task.steps, 300, 4, 5).sum(-1)
    starts = range(0, 35, 5)
    left, right = (sum((counts[s : s + 4, :, side].sum(0) > 0).astype(int) for s in starts) for side in (0, 1))
    assert (left + right == 7).all()
    np.testing.assert_array_equal(task.targets[-1], right > left)
    # Silence between the cues and in the delay; the question at the end, and only there.
    assert not any(counts[s + 4].any() for s in starts) and not counts[35:-3].any()
    assert (counts[-3:, :, 2].sum(0) > 0).all() and not counts[:-3, :, 2].any()
    assert task.mask[-3:].all() and not task.mask[:-3].any()
    assert 0.35 < task.targets[0].mean() < 0.65


def test_evidence_is_the_published_task():
    task = tasks.evidence(0, 40)
    assert task.inputs.shape == (2250, 40, 40) and task.mask[-150:].all() and not task.mask[:-150].any()
    left, right, recall, noise = np.moveaxis(task.inputs.reshape(2250, 40, 4, 10), 2, 0)
    assert not recall[:-150].any() and recall[-150:].mean() == pytest.approx(0.04, abs=0.002)
    assert noise.mean() == pytest.approx(0.01, abs=0.001) and not (left + right)[1050:].any()
    cues = np.arange(7)[:, None] * 150 + 50 + np.arange(100)
    silent = np.setdiff1d(np.arange(1050), cues)
    assert not (left + right)[silent].any()
    sides = [side[cues].sum((1, 3)) for side in (left, right)]  # spikes for each cue and sequence
    assert ((sides[0] > 0) != (sides[1] > 0)).all() and np.mean(sides) * 2 == pytest.approx(40, abs=1)
    np.testing.assert_array_equal(task.targets[-1], (sides[1] > 0).sum(0) > 3)


def test_short_evidence_noise_is_everywhere():
    task = tasks.short_evidence(0, 500, channels=5, noise=0.1)
    silent = task.inputs[:, :, 15:]
    assert silent.mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: tasks.integrator(0, 0), "`size`"),
        (lambda: tasks.integrator(0, 2, rate=1.0), "`rate`"),
        (lambda: tasks.copy(0, 2, symbols=1), "`symbols`"),
        (lambda: tasks.copy(0, 2, delay=-1), "`delay`"),
        (lambda: tasks.delayed_match(0, 2, noise=1.5), "`noise`"),
        (lambda: tasks.evidence(0, 2, cues=4), "`evidence` takes an odd number of `cues`"),
        (lambda: tasks.short_evidence(0, 2, cues=4), "`short_evidence` takes an odd number of `cues`"),
        (lambda: tasks.copy(None, 2), "`copy` needs `key="),
    ],
)
def test_bad_sizes_are_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()
