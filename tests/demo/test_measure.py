"""The figures of the table: updates, memory, cosines."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demo import measure, model, runs

SETTINGS = runs.Settings(neurons=5, batch=6, window=4, epochs=2)


def test_updates_of_sequences(digits):
    assert runs.updates(SETTINGS, digits, "sequence") == 2 * 4


def test_updates_of_windows_are_those_of_random_batches(digits):
    rng, ends = np.random.default_rng(0), digits.train.mask.argmax(0)
    drawn = [len(set(ends[rng.integers(24, size=6)] // 4)) for _ in range(4000)]
    assert runs.updates(SETTINGS, digits, "window") == round(8 * np.mean(drawn))


def by_hand(params, x, y, mask):
    """The loss of whole sequences, one step after the other."""
    hidden, total = model.silence(x.shape[1], 5), 0.0
    for now, target, weight in zip(x, y, mask, strict=True):
        hidden, output = model.step(params, hidden, now)
        total += (weight * optax.softmax_cross_entropy_with_integer_labels(output, jnp.asarray(target))).sum()
    return total / mask.sum()


@pytest.mark.slow
def test_gradients_against_the_sequence_by_hand(digits):
    one, whole = (runs.method(name, SETTINGS, digits) for name in ("tbptt", "bptt"))
    x, y, mask = runs.first_batch(SETTINGS, digits.train)
    want = jax.grad(by_hand)(one.learner.params, x, y, mask)
    bptt, cut = (measure.gradient(m, SETTINGS, digits).compile()(one.learner.params, x, y, mask) for m in (whole, one))
    for name in want:
        np.testing.assert_allclose(bptt[name], want[name], rtol=1e-3, atol=1e-5)
    assert measure.cosine(bptt, want).least > 0.9999
    assert measure.cosine(cut, want).least < 0.999  # the window cuts something off


def test_cosine_by_hand():
    a = {"a": np.array([1.0, 0.0]), "b": np.zeros(2), "c": np.array([[2.0]])}
    b = {"a": np.array([1.0, 1.0]), "b": np.ones(2), "c": np.array([[3.0]])}
    found = measure.cosine(a, b)
    assert found == pytest.approx(((2**-0.5 + 0 + 1) / 3, 0.0))


@pytest.mark.slow
def test_memory_of_a_trace_does_not_grow_with_the_sequence(digits):
    online, bptt = (runs.method(name, SETTINGS, digits) for name in ("d_rtrl", "bptt"))
    assert (online.label, bptt.label) == ("d_rtrl", "BPTT")
    held = [
        [measure.planned_bytes(measure.gradient(one, SETTINGS, digits, times).compile()) for times in (1, 20)]
        for one in (online, bptt)
    ]
    grows = [long - short for short, long in held]
    # BPTT keeps four states of five neurons, six samples, for each of 228 more steps, at the least.
    assert grows[1] > 228 * 4 * 5 * 6 * 4 / 2
    assert grows[0] < 0.05 * grows[1]
