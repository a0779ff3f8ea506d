"""Metrics of a batch of sequences.

A metric is `f(outputs, targets, mask)` with time-major arrays: outputs and targets (T, B, …), mask (T, B). It returns
values of shape (T, B), which are averaged with the mask as weights, or (B,), which are averaged over samples. Both
averages run over the whole data set, so they do not depend on how it is cut into batches.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def accuracy(outputs: Any, targets: Any, mask: Any) -> Any:
    """One answer per sequence: is the class with the largest output, summed over the steps that count, the right one?

        ŷ_b = argmax_c Σ_t m_tb o_tbc

    The right class is the target at the last step that counts. Targets are class numbers (T, B), or one-hot (T, B, C).
    With a mask that is non-zero at one step only (`pad(..., count="last")`) it is the accuracy of that step.

    >>> import jax.numpy as jnp
    >>> outputs = jnp.array([[[2.0, 0.0]], [[0.0, 1.0]]])  # two steps, one sample, two classes
    >>> accuracy(outputs, jnp.array([[0], [0]]), jnp.ones((2, 1))).tolist()
    [True]
    """
    total = (outputs * mask[..., None].astype(outputs.dtype)).sum(0)
    last = mask.shape[0] - 1 - jnp.argmax(mask[::-1] != 0, axis=0)
    right = jnp.take_along_axis(_classes(outputs, targets), last[None], axis=0)[0]
    return total.argmax(-1) == right


def step_accuracy(outputs: Any, targets: Any, mask: Any) -> Any:
    """One answer per step: is the class with the largest output the right one? Averaged over the steps that count.

    >>> import jax.numpy as jnp
    >>> outputs = jnp.array([[[2.0, 0.0]], [[0.0, 1.0]]])
    >>> step_accuracy(outputs, jnp.array([[0], [0]]), jnp.ones((2, 1))).tolist()
    [[True], [False]]
    """
    return outputs.argmax(-1) == _classes(outputs, targets)


def _classes(outputs: Any, targets: Any) -> Any:
    return targets.argmax(-1) if targets.ndim == outputs.ndim else targets
