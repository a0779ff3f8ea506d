"""Constraints on weights, applied inside the step: what is learned is free, what is used obeys."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import ArgumentError


@dataclass(frozen=True)
class Dale:
    r"""Dale's law: a unit excites or inhibits, whatever is learned: :math:`|W| \odot s`, with a sign for each sender.

    The first `excitatory` of the rows of a weight are positive, the others negative (Song et al., 2016).

    >>> import jax.numpy as jnp
    >>> Dale(excitatory=0.5)(jnp.array([[1.0, -2.0], [3.0, -4.0]])).tolist()
    [[1.0, 2.0], [-3.0, -4.0]]
    """

    excitatory: float = 0.8

    def __post_init__(self):
        _share("excitatory", self.excitatory)

    def __call__(self, weight: jax.Array) -> jax.Array:
        excites = np.arange(weight.shape[0]) < round(self.excitatory * weight.shape[0])
        return jnp.abs(weight) * jnp.where(excites, 1, -1).astype(weight.dtype)[:, None]


@dataclass(frozen=True)
class Sparse:
    r"""Random connections, fixed by `seed`: :math:`M \odot W` with a mask M in which a share `density` is one.

    A weight that is used nowhere has gradient zero. Constraints compose: `lambda w: Dale()(Sparse(0.1)(w))`.

    >>> import jax.numpy as jnp
    >>> round(Sparse(0.1)(jnp.ones((100, 100))).mean().item(), 1)
    0.1
    """

    density: float
    seed: int = 0

    def __post_init__(self):
        _share("density", self.density)

    def __call__(self, weight: jax.Array) -> jax.Array:
        mask = np.random.default_rng(self.seed).random(weight.shape) < self.density
        return jnp.where(mask, weight, jnp.zeros((), weight.dtype))


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ArgumentError(f"`{name}` is {value}; expected a share between 0 and 1.")
