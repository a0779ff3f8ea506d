r"""Surrogate gradients: a step function whose derivative is taken to be that of something smooth.

Each function here gives a spike function: one where x > 0, else zero, with the named curve for a derivative.

>>> import jax, jax.numpy as jnp
>>> spike = fast_sigmoid(slope=10.0)
>>> spike(jnp.array([-0.1, 0.1])).tolist(), round(jax.grad(spike)(-0.1).item(), 6)
([0.0, 1.0], 0.25)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp

Surrogate = Callable[[jax.Array], jax.Array]


def spike_with(derivative: Callable[[jax.Array], jax.Array]) -> Surrogate:
    """A spike function with this derivative.

    >>> import jax, jax.numpy as jnp
    >>> box = spike_with(lambda x: jnp.where(abs(x) < 0.5, 1.0, 0.0))
    >>> jax.grad(box)(0.2).item(), jax.grad(box)(0.7).item()
    (1.0, 0.0)
    """

    @jax.custom_jvp
    def spike(x: jax.Array) -> jax.Array:
        return jnp.asarray(x > 0, jnp.result_type(x))

    @spike.defjvp
    def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
        (x,), (dx,) = primals, tangents
        return spike(x), derivative(jnp.asarray(x)) * dx

    return spike


# Cached: the same options give the same function, so that nothing is compiled twice.


@cache
def triangle(gamma: float = 0.3) -> Surrogate:
    r"""A spike whose derivative is a triangle (Bellec et al., 2020).

    .. math:: \gamma \max(0, 1 - |x|)

    >>> import jax
    >>> jax.grad(triangle(0.5))(-0.5).item()
    0.25
    """
    return spike_with(lambda x: gamma * jnp.maximum(0.0, 1 - jnp.abs(x)))


@cache
def fast_sigmoid(slope: float = 25.0) -> Surrogate:
    r"""A spike whose derivative is that of a fast sigmoid of slope k (Zenke & Ganguli, 2018).

    .. math:: 1 / (1 + k |x|)^2

    >>> import jax
    >>> jax.grad(fast_sigmoid(1.0))(1.0).item()
    0.25
    """
    return spike_with(lambda x: 1 / (1 + slope * jnp.abs(x)) ** 2)


@cache
def arctan(alpha: float = 2.0) -> Surrogate:
    r"""A spike whose derivative is that of an arctangent (Fang et al., 2021).

    .. math:: \frac{\alpha}{2} / (1 + (\frac{\pi}{2} \alpha x)^2)

    >>> import jax
    >>> jax.grad(arctan(2.0))(0.0).item()
    1.0
    """
    return spike_with(lambda x: alpha / 2 / (1 + (jnp.pi / 2 * alpha * x) ** 2))


@cache
def sigmoid(slope: float = 4.0) -> Surrogate:
    r"""A spike whose derivative is that of a logistic function of slope k.

    .. math:: k\, \sigma(k x) (1 - \sigma(k x))

    >>> import jax
    >>> jax.grad(sigmoid(4.0))(0.0).item()
    1.0
    """
    return spike_with(lambda x: slope * jax.nn.sigmoid(slope * x) * jax.nn.sigmoid(-slope * x))


@cache
def gaussian(width: float = 0.5) -> Surrogate:
    r"""A spike whose derivative is a bell curve of width :math:`\sigma` (Yin et al., 2021).

    .. math:: e^{-x^2 / 2 \sigma^2} / \sqrt{2 \pi} \sigma

    >>> import jax
    >>> round(jax.grad(gaussian(0.5))(0.0).item(), 4)
    0.7979
    """
    return spike_with(lambda x: jax.scipy.stats.norm.pdf(x, scale=width))
