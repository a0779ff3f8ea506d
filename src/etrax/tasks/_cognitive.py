"""Tasks of the laboratory, as spike trains: delayed match-to-sample, and accumulation of evidence.

Each kind of input has a population of channels that spike at random, with a probability per step of `rate` while the
input is on and of `noise` otherwise.
"""

from __future__ import annotations

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
    key: Key, size: int, cues: int = 5, cue: int = 4, gap: int = 2, delay: int = 20, recall: int = 5,
    channels: int = 10, rate: float = 0.4, noise: float = 0.02,
) -> Task:  # fmt: skip
    """Which side had more cues? An odd number of cues, left or right, then a delay, then the question.

        label = 1 if Σ_i (right_i − left_i) > 0 else 0

    Four populations: left cue, right cue, the question (on for the last `recall` steps, which count), and one that
    only makes noise. Each sequence prefers a side, by a fair coin, and a cue is on that side with probability 0.7.

    The task is that of Morcos and Harvey, "History-dependent variability in population dynamics during evidence
    accumulation in cortex", Nature Neuroscience 19, 2016, in the form in which e-prop was shown on it.

    >>> task = evidence(key=0, size=16)
    >>> task.inputs.shape, task.classes, int(task.mask[:, 0].sum())
    ((55, 16, 40), 2, 5)
    """
    check_sizes("evidence", size=size, cues=cues, cue=cue, recall=recall, channels=channels)
    check_sizes("evidence", 0, gap=gap, delay=delay)
    check_probability("evidence", rate=rate, noise=noise)
    if cues % 2 == 0:
        raise TaskError(f"`evidence` takes an odd number of `cues`, so that one side has more; got {cues}.")
    steps = cues * (cue + gap) + delay + recall
    check_room("evidence", steps, size, 4, channels)
    check_room("evidence", cues, size)
    rng = generator("evidence", key)
    prefers_right = rng.integers(2, size=size)
    right = np.where(rng.random((cues, size)) < 0.7, prefers_right, 1 - prefers_right)
    on = np.zeros((steps, size, 4), bool)
    for i in range(cues):
        start = i * (cue + gap)
        on[start : start + cue, :, :2] = np.eye(2, dtype=bool)[right[i]]
    on[steps - recall :, :, 2] = True
    label = (right.sum(0) > cues / 2).astype(np.int32)
    return labelled(_spikes(rng, on, channels, rate, noise), label, 2, on[:, :, 2])


def _spikes(rng: np.random.Generator, on: np.ndarray, channels: int, rate: float, noise: float) -> np.ndarray:
    """Populations of channels, one per input kind."""
    chance = np.repeat(np.where(on, rate, noise), channels, axis=-1)
    return (rng.random(chance.shape) < chance).astype(np.float32)
