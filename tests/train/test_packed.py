"""Episodes laid one behind the other train as the same episodes do, each padded to the longest."""

from itertools import pairwise

import jax
import numpy as np
import optax
import pytest
from tests.train.common import B, C, I, learner, loss, params

from etrax.testing import bptt
from etrax.train import Dataset, Trainer, packed, pad

RNG = np.random.default_rng(0)
LENGTHS = (5, 1, 4, 3, 2, 2)
EPISODES = [(RNG.standard_normal((n, I)), RNG.standard_normal((n, C))) for n in LENGTHS]


def padded():
    xs, mask = pad([x for x, _ in EPISODES])
    return Dataset(xs, pad([y for _, y in EPISODES])[0], mask)


def fitted(data, batch, **options):
    """Parameters and losses after one batch, the only one."""
    trainer = Trainer(learner(batch=batch), optax.sgd(0.1), loss, **{"update": "sequence", "window": 2, **options})
    result = trainer.fit(data, 1, progress=False)
    return result.params, trainer.evaluate(params(), data)


def same(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), got, want)


@pytest.mark.parametrize("options", [{}, {"gradient": bptt}], ids=["rule", "bptt"])
def test_one_update_is_that_of_padded_episodes(options):
    """The model is exact under its rule: how episodes lie in windows does not matter."""
    same(fitted(packed(EPISODES, lanes=B), B, **options), fitted(padded(), len(EPISODES)))


def test_a_learner_of_one_sample():
    data = packed(EPISODES, lanes=1)
    assert data.inputs.shape == (sum(LENGTHS), 1, I) and data.mask is None
    same(fitted(data, None), fitted(padded(), len(EPISODES)))


@pytest.mark.parametrize("how", [{"lanes": 2}, {"lanes": 6}, {"length": 7}])
def test_every_episode_is_there_once(how):
    weights = [np.full(n, k + 1.0) for k, n in enumerate(LENGTHS)]
    data = packed([(e[0], e[1], w) for e, w in zip(EPISODES, weights, strict=True)], **how)
    found = []
    for lane in range(data.reset.shape[1]):
        starts = [*np.flatnonzero(data.reset[:, lane]), len(data.reset)]
        assert starts[0] == 0
        for a, b in pairwise(starts):
            n = int((data.mask[a:b, lane] > 0).sum())
            found.append((data.mask[a, lane], data.inputs[a : a + n, lane], data.targets[a : a + n, lane]))
            assert not data.mask[a + n : b, lane].any()
    assert sorted(k for k, _, _ in found) == [k + 1.0 for k in range(len(LENGTHS))]
    for k, x, y in found:
        same((x, y), EPISODES[int(k) - 1])


def test_few_steps_are_empty():
    rng = np.random.default_rng(1)
    episodes = [(np.ones((n, 1)),) for n in rng.integers(1, 100, 200)]
    total = sum(len(e[0]) for e in episodes)
    assert packed(episodes, lanes=8).reset.size < 1.02 * total
    assert packed(episodes, length=100).reset.size < 1.1 * total
