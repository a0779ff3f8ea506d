r"""Running means and variances of observations and rewards, one sample at a time (Welford, 1962)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .._arguments import check_decay, check_number
from .._compat import transfers_meant
from ..compiler.ir import PyTree


class Statistics(NamedTuple):
    """The number of samples, and per element their mean and sum of squared deviations."""

    samples: Array
    mean: PyTree
    deviations: PyTree


class Normaliser(NamedTuple):
    """`init(example) -> statistics`, `update(statistics, value, done=False) -> (statistics, normalised value)`."""

    init: Callable[..., NamedTuple]
    update: Callable[..., tuple[NamedTuple, PyTree]]


def normalise(epsilon: float = 1e-8) -> Normaliser:
    """Observations minus their running mean, over their running deviation.

    >>> import jax.numpy as jnp
    >>> rule = normalise()
    >>> statistics = rule.init(jnp.zeros(1))
    >>> for x in (1.0, 3.0):
    ...     statistics, y = rule.update(statistics, jnp.array([x]))
    >>> round(float(y[0]), 3)  # 3, of mean 2 and deviation √2
    0.707
    """
    epsilon = check_number("normalise", "epsilon", epsilon, 0, 1, "from 0 up to 1")

    @transfers_meant()
    def init(example: PyTree) -> Statistics:
        zeros = jax.tree.map(lambda a: jnp.zeros(jnp.shape(a)), example)
        return Statistics(jnp.zeros(()), zeros, zeros)

    @jax.jit
    def update(statistics: Statistics, value: PyTree, done: Array | bool = False) -> tuple[Statistics, PyTree]:
        statistics = _with_sample(statistics, value)
        variance = _variance(statistics)
        out = jax.tree.map(lambda x, m, v: (x - m) / jnp.sqrt(v + epsilon), value, statistics.mean, variance)
        return statistics, out

    return Normaliser(init, update)


class RewardScale(NamedTuple):
    """The discounted sum of rewards of this episode, and the statistics of such sums."""

    total: Array
    statistics: Statistics


def scale_rewards(discount: float, epsilon: float = 1e-8) -> Normaliser:
    """Rewards over the running deviation of their discounted sum, which keeps their sign.

    >>> import jax.numpy as jnp
    >>> rule = scale_rewards(0.9)
    >>> scale = rule.init()
    >>> scale, reward = rule.update(scale, jnp.float32(2.0))
    >>> scale, reward = rule.update(scale, jnp.float32(0.0), done=True)
    >>> float(scale.total)  # the next episode begins
    0.0
    """
    discount = check_decay("scale_rewards", "discount", discount, closed=True)
    epsilon = check_number("scale_rewards", "epsilon", epsilon, 0, 1, "from 0 up to 1")

    @transfers_meant()
    def init(example: PyTree = None) -> RewardScale:
        zero = jnp.zeros(())
        return RewardScale(zero, Statistics(zero, zero, zero))

    @jax.jit
    def update(scale: RewardScale, reward: Array, done: Array | bool = False) -> tuple[RewardScale, Array]:
        total = discount * scale.total + reward
        statistics = _with_sample(scale.statistics, total)
        out = reward / jnp.sqrt(_variance(statistics) + epsilon)
        return RewardScale(jnp.where(done, 0.0, total), statistics), out

    return Normaliser(init, update)


def _with_sample(statistics: Statistics, value: PyTree) -> Statistics:
    count = statistics.samples + 1
    mean = jax.tree.map(lambda m, x: m + (x - m) / count, statistics.mean, value)
    deviations = jax.tree.map(
        lambda d, x, old, new: d + (x - old) * (x - new), statistics.deviations, value, statistics.mean, mean
    )
    return Statistics(count, mean, deviations)


def _variance(statistics: Statistics) -> PyTree:
    """Of one sample it is not known: 1."""
    few = statistics.samples < 2
    return jax.tree.map(
        lambda d: jnp.where(few, 1.0, d / jnp.maximum(statistics.samples - 1, 1)), statistics.deviations
    )
