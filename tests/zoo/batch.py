"""One cell with the same numbers, batched in every way: gradients must agree.

``leading``, ``vmapped``, ``batch_last`` and ``input_mask`` with nothing masked agree with each other, ``single`` with
``unbatched``.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .model import EXACT, B, Draw, Family, H, I

family = Family("batch")
EXPECT = {"w": EXACT, "b": EXACT, "a": EXACT, "out": EXACT}


def cell(params, h, x):
    h = jax.nn.sigmoid(params["a"]) * h + jnp.tanh(x @ params["w"] + params["b"])
    return h, h @ params["out"]


def numbers():
    """Parameters and the hidden state (B, H)."""
    draw = Draw("batch")
    return {"w": draw(I, H), "b": draw(H), "a": 1 + draw(H), "out": draw(H, 2)}, draw(B, H)


def sequence(T, seed):
    """Inputs (T, B, I) and targets (T, B, 2)."""
    rng = np.random.RandomState(seed)
    return jnp.asarray(rng.standard_normal((T, B, I))), jnp.asarray(rng.standard_normal((T, B, 2)))


def select(samples):
    """``make_inputs`` and ``make_target`` for some of the samples."""
    return (lambda T, seed: (sequence(T, seed)[0][:, samples],)), (lambda T, seed: sequence(T, seed)[1][:, samples])


@family(EXPECT)
def leading(draw):
    """A leading batch axis."""
    params, h = numbers()
    return cell, params, h, *select(slice(None))


@family(EXPECT)
def vmapped(draw):
    """jax.vmap of the step for one sample."""
    params, h = numbers()
    return jax.vmap(cell, in_axes=(None, 0, 0)), params, h, *select(slice(None))


@family(EXPECT)
def single(draw):
    """A batch of one."""
    params, h = numbers()
    return cell, params, h[:1], *select(slice(0, 1))


@family(EXPECT)
def unbatched(draw):
    """No batch axis at all."""
    params, h = numbers()
    return cell, params, h[0], *select(0)


@family(EXPECT)
def batch_last(draw):
    """The batch as the last axis of every array."""

    def step(params, h, x):
        h, output = cell(params, h.T, x.T)
        return h.T, output.T

    params, h = numbers()
    make_inputs = lambda T, seed: (sequence(T, seed)[0].transpose(0, 2, 1),)
    return step, params, h.T, make_inputs, lambda T, seed: sequence(T, seed)[1].transpose(0, 2, 1)


def make_mask(T, seed):
    """Sample b ends b steps before the last."""
    return jnp.asarray(np.arange(T)[:, None] < T - np.arange(B), float)


@family(EXPECT)
def input_mask(draw):
    """A mask per sample as an input: a sample that has ended keeps its state."""

    def step(params, h, x, mask):
        new, _ = cell(params, h, x)
        h = jnp.where(mask[:, None] > 0, new, h)
        return h, h @ params["out"]

    params, h = numbers()
    make_inputs = lambda T, seed: (sequence(T, seed)[0], make_mask(T, seed))
    return step, params, h, make_inputs, lambda T, seed: sequence(T, seed)[1]


@family(EXPECT, make_mask=make_mask)
def loss_mask(draw):
    """A mask per sample on the loss."""
    params, h = numbers()
    return cell, params, h, *select(slice(None))
