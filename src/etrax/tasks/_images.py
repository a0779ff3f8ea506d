"""Images as streams: row by row, pixel by pixel, or whole (for an encoder)."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from .._arguments import short
from .._install import install_advice
from ._shared import MissingDataError, check_sizes
from ._task import Task, TaskError, labelled

# Where the Debian package puts its files.
FASHION = Path(os.sep, "usr", "share", "datasets", "fashion-mnist")


def small_digits(order: str = "rows") -> Task:
    """1,797 handwritten digits of 8 × 8 pixels, from scikit-learn; values from 0 to 1.

    `order`: "rows" (8 steps of 8), "pixels" (64 steps of 1) or "whole" (one step of 64). Every step counts; see
    `last_only`.

    >>> small_digits("pixels").inputs.shape  # doctest: +SKIP
    (64, 1797, 1)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as e:
        raise MissingDataError(
            "`small_digits` reads its images from scikit-learn, which is not installed: `pip install scikit-learn`, or "
            f"{install_advice('tasks')}."
        ) from e
    pixels, labels = load_digits(return_X_y=True)
    return _stream(pixels.reshape(-1, 8, 8) / 16, labels, order)


def fashion_mnist(
    part: str = "train", order: str = "rows", size: int | None = None, directory: str | None = None
) -> Task:
    """Pictures of clothes, 28 × 28 pixels, ten kinds; values from 0 to 1. The Debian package `dataset-fashion-mnist`.

    `part`: "train" (60,000) or "test" (10,000); `size` keeps the first ones only. `order`: "rows" (28 steps of 28),
    "pixels" (784 steps of 1) or "whole". Every step counts; see `last_only`. `directory` holds the four files
    `*-ubyte.gz` where they are not in the package's own place.

    Xiao, Rasul and Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", 2017.

    >>> fashion_mnist("test", size=100).inputs.shape  # doctest: +SKIP
    (28, 100, 28)
    """
    if not isinstance(part, str) or part not in ("train", "test"):
        raise TaskError(f"`fashion_mnist` has the parts 'train' and 'test', not {short(part)}.")
    start = {"train": "train", "test": "t10k"}[part]
    if size is not None:
        check_sizes("fashion_mnist", size=size)
    if directory is not None and not isinstance(directory, str | Path):
        raise TaskError(f"`directory` is {short(directory)}; expected the name of a folder.")
    folder = FASHION if directory is None else Path(directory)
    images = _idx(folder / f"{start}-images-idx3-ubyte.gz", 16, size)
    labels = _idx(folder / f"{start}-labels-idx1-ubyte.gz", 8, size)
    return _stream(images / np.float32(255), labels, order)


def _idx(file: Path, header: int, size: int | None) -> np.ndarray:
    """The array of an IDX file of bytes: a header of big-endian sizes, then the numbers."""
    if not file.is_file():
        raise MissingDataError(
            f"`fashion_mnist` found no file {file.name} in {file.parent}: `apt-get install dataset-fashion-mnist`, or "
            "pass `directory=`, the folder that holds it."
        )
    with gzip.open(file) as stream:
        shape = np.frombuffer(stream.read(header)[4:], ">u4").astype(int)
        shape[0] = shape[0] if size is None else min(size, shape[0])
        return np.frombuffer(stream.read(int(shape.prod())), np.uint8).reshape(shape)


def _stream(images: np.ndarray, labels: np.ndarray, order: str) -> Task:
    """Images (N, height, width) as time-major inputs."""
    n, height, width = images.shape
    shapes = {"rows": (n, height, width), "pixels": (n, height * width, 1), "whole": (n, 1, height * width)}
    if not isinstance(order, str) or order not in shapes:
        raise TaskError(f"`order` is {short(order)}; expected 'rows', 'pixels' or 'whole'.")
    inputs = np.ascontiguousarray(images.astype(np.float32).reshape(shapes[order]).swapaxes(0, 1))
    return labelled(inputs, labels, 10)
