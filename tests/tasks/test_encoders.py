"""Spikes from numbers: each encoder's defining property."""

import numpy as np
import pytest

from etrax import tasks

VALUES = np.linspace(0, 1, 41).reshape(1, 41)


def test_rate_is_the_value():
    spikes = tasks.rate_spikes(VALUES, steps=4000, key=0, max_rate=0.5)
    assert spikes.shape == (4000, 1, 41) and set(np.unique(spikes)) == {0, 1}
    # Five standard errors of a mean of 4000 coins.
    np.testing.assert_allclose(spikes.mean(0), 0.5 * VALUES, atol=5 * 0.5 / np.sqrt(4000))
    # Independent in time: neighbours are not correlated.
    middle = spikes[:, 0, 20] - spikes[:, 0, 20].mean()
    assert abs((middle[1:] * middle[:-1]).mean() / middle.var()) < 5 / np.sqrt(4000)
    np.testing.assert_array_equal(spikes, tasks.rate_spikes(VALUES, steps=4000, key=0, max_rate=0.5))


def test_latency_is_one_spike_the_earlier_the_larger():
    spikes = tasks.latency_spikes(VALUES, steps=17)
    assert spikes.shape == (17, 1, 41)
    np.testing.assert_array_equal(spikes.sum(0), np.ones((1, 41)))
    when = spikes[:, 0].argmax(0)
    assert (np.diff(when) <= 0).all() and when[0] == 16 and when[-1] == 0
    assert len(np.unique(when)) == 17


def test_delta_spikes_tell_the_signal():
    rng = np.random.default_rng(0)
    signal = np.cumsum(rng.uniform(-0.1, 0.1, size=(200, 3, 2)), axis=0)
    spikes = tasks.delta_spikes(signal, threshold=0.1)
    assert spikes.shape == (200, 3, 4)
    up, down = spikes[..., :2], spikes[..., 2:]
    assert not (up * down).any() and up.any() and down.any()
    told = signal[0] + 0.1 * np.cumsum(up - down, axis=0, dtype=np.float64)
    assert abs(told - signal).max() < 0.1 + 1e-9


def test_a_still_signal_is_silent():
    assert not tasks.delta_spikes(np.full((9, 1), 3.0), threshold=0.1).any()


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: tasks.rate_spikes(np.array([2.0]), 3, key=0), "values from 0 to 1, got 2 to 2"),
        (lambda: tasks.rate_spikes(np.array([np.nan]), 3, key=0), "values from 0 to 1"),
        (lambda: tasks.rate_spikes(np.array([0.5]), 3, key=0, max_rate=0.0), "`max_rate`"),
        (lambda: tasks.latency_spikes(np.array([-1.0]), 3), "values from 0 to 1"),
        (lambda: tasks.latency_spikes(np.array([0.5]), 0), "`steps`"),
        (lambda: tasks.delta_spikes(np.zeros((3, 1)), 0.0), "`threshold`"),
        (lambda: tasks.delta_spikes(np.zeros(3), 0.1), "features"),
    ],
)
def test_bad_values_are_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()
