"""Tasks of pure memory: a running sum, and a list to repeat."""

from __future__ import annotations

import numpy as np

from .._arguments import short
from ._shared import Key, check_room, check_sizes, generator, is_number
from ._task import Task, TaskError


def integrator(
    key: Key, size: int, steps: int = 50, hold: int = 0, distractors: int = 0, rate: float = 0.2
) -> Task:  # fmt: skip
    """Count events up and events down, and tell the balance.

        y_t = (Σ_{s ≤ t} x_s[0] − x_s[1]) / √(2 · rate · (1 − rate) · steps)

    Channels of 0/1 events with probability `rate`, for `steps` steps: up, down, and `distractors` that do not count.
    y has unit variance at their end. With `hold > 0` that many silent steps follow and only they count in the loss:
    the balance must be kept.

    >>> task = integrator(key=0, size=16, steps=20, hold=5)
    >>> task.inputs.shape, task.targets.shape, int(task.mask[:, 0].sum())
    ((25, 16, 2), (25, 16, 1), 5)
    """
    check_sizes("integrator", size=size, steps=steps)
    check_sizes("integrator", 0, hold=hold, distractors=distractors)
    if not is_number(rate) or not 0 < rate < 1:
        raise TaskError(f"`integrator` takes a `rate` between 0 and 1, got {short(rate)}.")
    check_room("integrator", steps + hold, size, 2 + distractors)
    inputs = np.zeros((steps + hold, size, 2 + distractors), np.float32)
    inputs[:steps] = generator("integrator", key).random((steps, *inputs.shape[1:])) < rate
    balance = np.cumsum(inputs[..., :1] - inputs[..., 1:2], axis=0)
    mask = np.ones(inputs.shape[:2], bool)
    mask[:steps] = hold == 0
    return Task(inputs, balance / np.float32(np.sqrt(2 * rate * (1 - rate) * steps)), mask)


def copy(key: Key, size: int, length: int = 3, delay: int = 10, symbols: int = 4) -> Task:
    """See a list of symbols, wait, and repeat it on command.

        target at step length + delay + i  =  the symbol of step i

    One-hot symbols for `length` steps, `delay` silent steps, then `length` steps with the command channel (the last)
    on; only these count.

    >>> task = copy(key=0, size=16, length=3, delay=10, symbols=4)
    >>> task.inputs.shape, task.classes
    ((16, 16, 5), 4)
    >>> bool((task.inputs[:3, :, :4].argmax(-1) == task.targets[13:]).all())
    True
    """
    check_sizes("copy", size=size, length=length)
    check_sizes("copy", 0, delay=delay)
    check_sizes("copy", 2, symbols=symbols)
    check_room("copy", 2 * length + delay, size, symbols + 1)
    check_room("copy", symbols, symbols)
    shown = generator("copy", key).integers(symbols, size=(length, size))
    recall = length + delay
    inputs = np.zeros((recall + length, size, symbols + 1), np.float32)
    inputs[:length, :, :symbols] = np.eye(symbols)[shown]
    inputs[recall:, :, symbols] = 1
    targets = np.zeros((recall + length, size), np.int32)
    targets[recall:] = shown
    mask = np.zeros((recall + length, size), bool)
    mask[recall:] = True
    return Task(inputs, targets, mask, symbols)
