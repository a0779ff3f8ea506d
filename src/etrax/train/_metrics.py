"""Metrics of a batch of sequences.

A metric is `f(outputs, targets, mask)` with time-major arrays: outputs and targets (T, B, …), mask (T, B). It returns
values of shape (T, B), which are averaged with the mask as weights, or (B,), which are averaged over samples. Both
averages run over the whole data set, so they do not depend on how it is cut into batches.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .._arguments import struct_of
from .._errors import ArgumentError, ArgumentTypeError


def accuracy(outputs: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """One answer per sequence: is the class with the largest output, summed over the steps that count, the right one?

        ŷ_b = argmax_c Σ_t m_tb o_tbc

    The right class is the target at the last step that counts. Targets are class numbers (T, B), or one-hot (T, B, C).
    Where each step has a target of its own (the next character), `step_accuracy` is the one to take.
    With a mask that is non-zero at one step only (`pad(..., count="last")`) it is the accuracy of that step.

    >>> import jax.numpy as jnp
    >>> outputs = jnp.array([[[2.0, 0.0]], [[0.0, 1.0]]])  # two steps, one sample, two classes
    >>> accuracy(outputs, jnp.array([[0], [0]]), jnp.ones((2, 1))).tolist()
    [True]
    """
    _check("accuracy", outputs, targets, mask)
    total = (outputs * mask[..., None].astype(outputs.dtype)).sum(0)
    last = mask.shape[0] - 1 - jnp.argmax(mask[::-1] != 0, axis=0)
    right = jnp.take_along_axis(_classes(outputs, targets), last[None], axis=0)[0]
    return total.argmax(-1) == right


def step_accuracy(outputs: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    """One answer per step: is the class with the largest output the right one? Averaged over the steps that count.

    >>> import jax.numpy as jnp
    >>> outputs = jnp.array([[[2.0, 0.0]], [[0.0, 1.0]]])
    >>> step_accuracy(outputs, jnp.array([[0], [0]]), jnp.ones((2, 1))).tolist()
    [[True], [False]]
    """
    _check("step_accuracy", outputs, targets, mask)
    return outputs.argmax(-1) == _classes(outputs, targets)


def _check(what: str, outputs: jax.Array, targets: jax.Array, mask: jax.Array) -> None:
    """One array each, (T, B, C), (T, B) or (T, B, C), and (T, B)."""
    arrays = {"outputs": outputs, "targets": targets, "mask": mask}
    for name, a in arrays.items():
        if not isinstance(a, jax.Array | np.ndarray):
            raise ArgumentTypeError(f"`{what}` takes an array as `{name}`, got a {type(a).__name__}.")
        struct_of(f"`{name}`", a)
    fits = outputs.ndim == 3 and targets.shape in (outputs.shape, outputs.shape[:2]) and mask.shape == outputs.shape[:2]
    if not fits or not outputs.size or jnp.iscomplexobj(outputs):
        shapes = ", ".join(f"{name} {list(a.shape)}" for name, a in arrays.items())
        raise ArgumentError(
            f"`{what}` takes real outputs (T, B, C), targets (T, B) or (T, B, C) and a mask (T, B); got {shapes}."
        )


def _classes(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return targets.argmax(-1) if targets.ndim == outputs.ndim else targets
