"""The stream of the demo: words in a row, learned while they run by."""

import numpy as np

from demo import runs, stream

SETTINGS = runs.Settings(neurons=4, batch=4, window=4, epochs=1)


def test_words_stand_in_a_row(digits):
    inputs, answers, mask = stream.concatenated(digits, batch=1)
    ends = np.argmax(digits.train.mask, axis=0) + 1
    assert inputs.shape == (ends.sum(), 1, 2) and mask.sum() == len(ends)
    order = np.random.default_rng(0).permutation(len(ends))
    np.testing.assert_array_equal(np.flatnonzero(mask[:, 0]) + 1, np.cumsum(ends[order]))
    np.testing.assert_array_equal(answers[mask[:, 0] > 0, 0], digits.train.targets[0, order])


def test_it_learns_and_says_so(digits, monkeypatch):
    monkeypatch.setattr(stream, "PARTS", 3)
    said = []
    heard = stream.listen(SETTINGS, digits, 2, "d_rtrl", said.append)
    assert len(heard.shares) == len(said) == 3 and heard.steps > 0


def test_memory_of_bptt_grows_alone(digits):
    found = stream.memory(SETTINGS, digits, (40, 400))
    assert found["BPTT"][1] > 5 * found["BPTT"][0] and found["d_rtrl"][1] < 1.5 * found["d_rtrl"][0]
