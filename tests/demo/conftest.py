"""A tiny data set in the place of the digits: which of two channels is on at the start."""

import numpy as np
import pytest

from demo import data
from etrax.train import Dataset


@pytest.fixture
def digits():
    def part(count: int, seed: int) -> Dataset:
        rng = np.random.default_rng(seed)
        labels, lengths = rng.integers(2, size=count), rng.integers(3, 13, size=count)
        inputs = rng.uniform(0, 0.5, (12, count, 2)).astype(np.float32)
        inputs[0] += 2 * np.eye(2, dtype=np.float32)[labels]
        mask = np.arange(12)[:, None] == lengths - 1
        return Dataset(inputs, np.broadcast_to(labels.astype(np.int32), (12, count)).copy(), mask.astype(np.float32))

    return data.Digits("tiny digits", "nobody <b>", part(24, 0), part(8, 1), classes=2)
