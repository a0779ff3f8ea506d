"""What every benchmark measures: a one-step model with its start values and its data, written once for all rivals.

A step takes the weight ops as its first argument. Plain JAX ones serve `jax.grad` and Etrax; a library that asks for
ops of its own gets the same mathematics through them. Everything is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Tree = dict[str, Array]
F32 = jnp.float32
NHWC = ("NHWC", "HWIO", "NHWC")


class Connections(NamedTuple):
    """Synapses of a sparse matrix from `sources` to `targets` neurons, sorted by source."""

    name: str
    pre: np.ndarray
    post: np.ndarray
    sources: int
    targets: int


class Ops(NamedTuple):
    """`matmul(x, w, b=None)`, `conv(x, w, stride)`, `sparse(x, values, connections)`; `each(w)` is w itself, for
    every position its own.
    """

    matmul: Callable[..., Array]
    conv: Callable[[Array, Array, int], Array]
    sparse: Callable[[Array, Array, Connections], Array]
    each: Callable[[Array], Array]


class Workload(NamedTuple):
    """`step(ops, params, hidden, x) -> (hidden, output)`; `data(steps)` draws inputs and targets, time first.

    `products` counts the multiply-adds of the weight ops in one step of one sample. A library without complex states
    runs `real_step` from `real_hidden` instead.
    """

    step: Callable[[Ops, Tree, Tree, Array], tuple[Tree, Array]]
    params: Tree
    hidden: Tree
    data: Callable[[int], tuple[Array, Array]]
    batch: int
    products: int
    real_step: Callable[[Ops, Tree, Tree, Array], tuple[Tree, Array]] | None = None
    real_hidden: Tree | None = None


def _matmul(x: Array, w: Array, b: Array | None = None) -> Array:
    return x @ w if b is None else x @ w + b


def _conv(x: Array, kernel: Array, stride: int) -> Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=NHWC)


def _sparse(x: Array, values: Array, at: Connections) -> Array:
    from jax.experimental.sparse import BCOO

    indices = jnp.stack([jnp.asarray(at.pre), jnp.asarray(at.post)], 1)
    return x @ BCOO((values, indices), shape=(at.sources, at.targets), indices_sorted=True)


PLAIN = Ops(_matmul, _conv, _sparse, lambda w: w)


def loss(output: Array, target: Array) -> Array:
    """The mean squared error of one step."""
    return jnp.mean((output - target) ** 2)


def matrix(key: Array, rows: int, columns: int, gain: float = 1.0) -> Array:
    return gain * rows**-0.5 * jax.random.normal(key, (rows, columns), F32)


def gaussian(batch: int, inputs: int, outputs: int) -> Callable[[int], tuple[Array, Array]]:
    """Normal inputs and targets."""

    def data(steps: int) -> tuple[Array, Array]:
        k = jax.random.split(jax.random.key(1), 2)
        return (
            jax.random.normal(k[0], (steps, batch, inputs), F32),
            jax.random.normal(k[1], (steps, batch, outputs), F32),
        )

    return data


def cue(batch: int, inputs: int, outputs: int, shown: int = 8) -> Callable[[int], tuple[Array, Array]]:
    """Normal inputs for a few steps, then none; what is asked for at every step is a number of the whole sequence.

    From the second window on, all that the input weights owe has come from before.
    """

    def data(steps: int) -> tuple[Array, Array]:
        x, target = gaussian(batch, inputs, outputs)(steps)
        return jnp.where(jnp.arange(steps)[:, None, None] < shown, x, 0), jnp.broadcast_to(target[:1], target.shape)

    return data


def spikes(shape: tuple[int, ...], rate: float, outputs: int) -> Callable[[int], tuple[Array, Array]]:
    """Inputs of `shape` (batch first) that are one with probability `rate`, else zero; normal targets."""

    def data(steps: int) -> tuple[Array, Array]:
        k = jax.random.split(jax.random.key(1), 2)
        return (
            jax.random.bernoulli(k[0], rate, (steps, *shape)).astype(F32),
            jax.random.normal(k[1], (steps, shape[0], outputs), F32),
        )

    return data


@jax.custom_jvp
def spike(v: Array) -> Array:
    """One above zero; its derivative is taken to be a triangle of height 0.3."""
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _spike_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (v,), (dv,) = primals, tangents
    return spike(v), 0.3 * jnp.maximum(0, 1 - jnp.abs(v)) * dv
