"""What the network hears: currents, their length, the step that counts, and what stands in for missing speech."""

import numpy as np
import pytest

from demo import data
from etrax import tasks


def small_task(features: int = 3) -> tasks.Task:
    rng = np.random.default_rng(0)
    mask = np.arange(6)[:, None] < rng.integers(2, 7, size=20)
    return tasks.labelled(rng.standard_normal((6, 20, features)), rng.integers(10, size=20), 10, mask)


def absent(*_):
    raise tasks.MissingDataError("`spoken_digits` finds nothing.")


def test_currents_tell_the_signal_and_never_change_sign(monkeypatch):
    monkeypatch.setattr(tasks, "spoken_digits", lambda longest: small_task())
    digits = data.load("speech")
    train, _ = tasks.standardise(*tasks.split(small_task(), test=0.2, seed=0))
    assert digits.train.inputs.min() >= 0
    np.testing.assert_array_equal(digits.train.inputs[::3, :, :3] - digits.train.inputs[::3, :, 3:], train.inputs)
    np.testing.assert_array_equal(digits.train.inputs[::3], digits.train.inputs[2::3])
    assert (digits.steps, digits.channels, digits.train.inputs.shape[1], digits.test.inputs.shape[1]) == (18, 6, 16, 4)


def test_only_the_last_step_of_a_word_counts(monkeypatch):
    monkeypatch.setattr(tasks, "spoken_digits", lambda longest: small_task())
    digits = data.load("speech")
    train, _ = tasks.split(small_task(), test=0.2, seed=0)
    assert (digits.train.mask.sum(0) == 1).all()
    np.testing.assert_array_equal(digits.train.mask.argmax(0), 3 * train.mask.sum(0) - 1)
    np.testing.assert_array_equal(digits.train.targets[0], train.targets[0])


def test_images_stand_in_for_missing_speech_and_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr(tasks, "spoken_digits", absent)
    monkeypatch.setattr(tasks, "small_digits", lambda order: small_task(8))
    digits = data.load()
    assert (digits.name, digits.channels) == ("handwritten digits", 16)
    said = capsys.readouterr().out
    assert "finds nothing" in said and "scikit-learn are learned instead" in said


def test_speech_that_was_asked_for_is_not_replaced(monkeypatch):
    monkeypatch.setattr(tasks, "spoken_digits", absent)
    with pytest.raises(tasks.MissingDataError, match="finds nothing"):
        data.load("speech")


def test_fewer_samples(monkeypatch):
    monkeypatch.setattr(tasks, "spoken_digits", lambda longest: small_task())
    digits = data.load("speech", samples=10)
    assert digits.train.inputs.shape[1] + digits.test.inputs.shape[1] == 10
