"""From numbers to spikes: by rate, by time, by change."""

from __future__ import annotations

import numpy as np

from .._arguments import as_numbers, short
from ._shared import Key, TaskError, check_sizes, generator, is_number


def rate_spikes(values: np.ndarray, steps: int, key: Key, max_rate: float = 1.0) -> np.ndarray:
    """Random spikes whose rate is the value.

        P(spike at t) = max_rate · value,   independently at each of `steps` steps; values from 0 to 1

    >>> rate_spikes(np.array([0.0, 1.0]), steps=3, key=0).tolist()
    [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    check_sizes("rate_spikes", steps=steps)
    values = _unit("rate_spikes", values)
    if not is_number(max_rate) or not 0 < max_rate <= 1:
        raise TaskError(f"`rate_spikes` takes a `max_rate` above 0, up to 1, got {short(max_rate)}.")
    drawn = generator("rate_spikes", key).random((steps, *values.shape))
    return (drawn < max_rate * values).astype(np.float32)


def latency_spikes(values: np.ndarray, steps: int) -> np.ndarray:
    """One spike each, the earlier the larger the value.

        t = round((1 − value) · (steps − 1)),   values from 0 to 1

    >>> latency_spikes(np.array([0.0, 0.5, 1.0]), steps=3).tolist()
    [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    check_sizes("latency_spikes", steps=steps)
    values = _unit("latency_spikes", values)
    when = np.rint((1 - values) * (steps - 1)).astype(int)
    clock = np.arange(steps).reshape(steps, *[1] * values.ndim)
    return (clock == when).astype(np.float32)


def delta_spikes(signal: np.ndarray, threshold: float) -> np.ndarray:
    """Spikes when a signal has moved: time-major (T, ..., features) to (T, ..., 2 · features), up then down.

        up_t = x_t − r_{t−1} ≥ threshold,   down_t = r_{t−1} − x_t ≥ threshold
        r_t  = r_{t−1} + threshold · (up_t − down_t)

    r starts at x_0. A signal that moves by at most `threshold` a step stays within `threshold` of r, which the spikes
    tell.

    >>> delta_spikes(np.array([[0.0], [1.0], [1.0], [0.0]]), threshold=1.0).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    """
    if not is_number(threshold) or not 0 < threshold < np.inf:
        raise TaskError(f"`delta_spikes` takes a `threshold` above 0, got {short(threshold)}.")
    signal = _real("delta_spikes", signal)
    if signal.ndim < 2 or not signal.shape[0]:
        raise TaskError(
            f"`delta_spikes` takes a signal of shape (T, ..., features) with T ≥ 1, got {list(signal.shape)}."
        )
    level, spikes = signal[0].astype(np.float64), []
    for now in signal:
        up, down = now - level >= threshold, level - now >= threshold
        level = level + threshold * (up.astype(float) - down)
        spikes.append(np.concatenate([up, down], axis=-1))
    return np.stack(spikes).astype(np.float32)


def _unit(what: str, values: np.ndarray) -> np.ndarray:
    values = _real(what, values)
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise TaskError(
            f"`{what}` takes values from 0 to 1, got {values.min():g} to {values.max():g}: scale them first."
        )
    return values


def _real(what: str, values: np.ndarray) -> np.ndarray:
    numbers = as_numbers(f"the first argument of `{what}`", values)
    if np.iscomplexobj(numbers):
        raise TaskError(f"`{what}` takes real numbers, got {numbers.dtype}.")
    return numbers.astype(np.float64)
