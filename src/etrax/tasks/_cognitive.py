"""Tasks of the laboratory, as spike trains: delayed match-to-sample, and accumulation of evidence.

Each kind of input has a population of channels that spike at random, with a probability per step of `rate` while the
input is on and of `noise` otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._shared import Key, check_probability, check_room, check_sizes, generator
from ._task import Task, TaskError, labelled


def delayed_match(
    key: Key, size: int, stimuli: int = 2, cue: int = 6, delay: int = 12, channels: int = 10, rate: float = 0.5,
    noise: float = 0.0,
) -> Task:  # fmt: skip
    """Was the second stimulus the same as the first?

    `cue` steps of one stimulus, `delay` steps of nothing, `cue` steps of the same stimulus (half of the sequences,
    label 1) or of another (label 0). The steps of the second stimulus count.

    >>> task = delayed_match(key=0, size=16)
    >>> task.inputs.shape, task.classes, int(task.mask[:, 0].sum())
    ((24, 16, 20), 2, 6)
    """
    check_sizes("delayed_match", size=size, cue=cue, channels=channels)
    check_sizes("delayed_match", 0, delay=delay)
    check_sizes("delayed_match", 2, stimuli=stimuli)
    check_probability("delayed_match", rate=rate, noise=noise)
    check_room("delayed_match", 2 * cue + delay, size, stimuli, channels)
    check_room("delayed_match", stimuli, stimuli)
    rng = generator("delayed_match", key)
    sample, same = rng.integers(stimuli, size=size), rng.integers(2, size=size)
    probe = np.where(same == 1, sample, (sample + rng.integers(1, stimuli, size=size)) % stimuli)
    on = np.zeros((2 * cue + delay, size, stimuli), bool)
    on[:cue] = np.eye(stimuli, dtype=bool)[sample]
    on[cue + delay :] = np.eye(stimuli, dtype=bool)[probe]
    mask = np.zeros(on.shape[:2], bool)
    mask[cue + delay :] = True
    return labelled(_spikes(rng, on, channels, rate, noise), same, 2, mask)


def evidence(
    key: Key, size: int, cues: int = 7, cue: int = 100, gap: int = 50, delay: int = 1050, recall: int = 150,
    channels: int = 10, rate: float = 0.04, noise: float = 0.01,
) -> Task:  # fmt: skip
    """Which side had more cues? An odd number of cues, left or right, then a delay, then the question.

        label = 1 if Σ_i (right_i − left_i) > 0 else 0

    Four populations: left cue, right cue, the question (on for the last `recall` steps, which count), and one that
    spikes with the probability `noise` at every step. A silent `gap` comes before each cue. Each sequence prefers a
    side, by a fair coin, and a cue is on that side with probability 0.7.

    The task is that of Morcos and Harvey, "History-dependent variability in population dynamics during evidence
    accumulation in cortex", Nature Neuroscience 19, 2016, in the form and at the size in which e-prop was shown on it.

    >>> task = evidence(key=0, size=4)
    >>> task.inputs.shape, task.classes, int(task.mask[:, 0].sum())
    ((2250, 4, 40), 2, 150)
    """
    shape = _Evidence(cues, gap, cue, 0, delay, recall)
    return _evidence("evidence", key, size, shape, channels, rate, (0.0, 0.0, 0.0, noise))


def short_evidence(
    key: Key, size: int, cues: int = 5, cue: int = 4, gap: int = 2, delay: int = 20, recall: int = 5,
    channels: int = 10, rate: float = 0.4, noise: float = 0.02,
) -> Task:  # fmt: skip
    """`evidence` with fewer and denser steps, for models that learn it in a minute.

    The silent `gap` comes after each cue, and all four populations spike with the probability `noise` while they are
    not on.

    >>> task = short_evidence(key=0, size=16)
    >>> task.inputs.shape, task.classes, int(task.mask[:, 0].sum())
    ((55, 16, 40), 2, 5)
    """
    shape = _Evidence(cues, 0, cue, gap, delay, recall)
    return _evidence("short_evidence", key, size, shape, channels, rate, (noise,) * 4)


class _Evidence(NamedTuple):
    """Steps of each part: for each of the cues silence, the cue, silence; then the delay and the question."""

    cues: int
    before: int
    cue: int
    after: int
    delay: int
    recall: int


def _evidence(
    name: str, key: Key, size: int, parts: _Evidence, channels: int, rate: float, noise: tuple[float, ...]
) -> Task:
    cues, before, cue, after, delay, recall = parts
    check_sizes(name, size=size, cues=cues, cue=cue, recall=recall, channels=channels)
    check_sizes(name, 0, gap=before, delay=delay)
    check_sizes(name, 0, gap=after)
    check_probability(name, rate=rate, noise=noise[-1])
    if cues % 2 == 0:
        raise TaskError(f"`{name}` takes an odd number of `cues`, so that one side has more; got {cues}.")
    period = before + cue + after
    steps = cues * period + delay + recall
    check_room(name, steps, size, 4, channels)
    check_room(name, cues, size)
    rng = generator(name, key)
    prefers_right = rng.integers(2, size=size)
    right = np.where(rng.random((cues, size)) < 0.7, prefers_right, 1 - prefers_right)
    on = np.zeros((steps, size, 4), bool)
    for i in range(cues):
        start = i * period + before
        on[start : start + cue, :, :2] = np.eye(2, dtype=bool)[right[i]]
    on[steps - recall :, :, 2] = True
    label = (right.sum(0) > cues / 2).astype(np.int32)
    return labelled(_spikes(rng, on, channels, rate, noise), label, 2, on[:, :, 2])


def _spikes(
    rng: np.random.Generator, on: np.ndarray, channels: int, rate: float, noise: float | tuple[float, ...]
) -> np.ndarray:
    """Populations of channels, one per input kind; `noise` is one probability or one for each kind."""
    chance = np.repeat(np.where(on, rate, noise), channels, axis=-1)
    return (rng.random(chance.shape) < chance).astype(np.float32)
