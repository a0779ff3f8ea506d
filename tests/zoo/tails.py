"""What stands between a weight op and the state."""

import jax
import jax.numpy as jnp
from jax import lax

from .model import EXACT, B, Family, H, I, inputs, normal

family = Family("tails")


def tail(function, width=H):
    """h' = 0.9 h + function(x @ w)"""

    def parts(draw):
        def step(params, h, x):
            h = 0.9 * h + function(x @ params["w"])
            return h, h

        return step, {"w": draw(I, width)}, draw(B, H), inputs(normal(B, I))

    return parts


@family({"w": EXACT})
def tanh(draw):
    return tail(jnp.tanh)(draw)


@family({"w": EXACT})
def where(draw):
    return tail(lambda y: jnp.where(y > 0, y, 0.1 * y))(draw)


@family({"w": EXACT})
def clip(draw):
    return tail(lambda y: jnp.clip(y, -1.0, 1.0))(draw)


@family({"w": EXACT})
def gate_split(draw):
    """One fused matmul, split into value and gate."""

    def gated(y):
        value, gate = jnp.split(y, 2, axis=-1)
        return jnp.tanh(value) * jax.nn.sigmoid(gate)

    return tail(gated, 2 * H)(draw)


@family({"w": EXACT})
def reshape_transpose(draw):
    """The op's features are folded into two axes, then exchanged."""

    def step(params, h, x):
        h = 0.9 * h + (x @ params["w"]).reshape(B, 7, 2).transpose(0, 2, 1)
        return h, h

    return step, {"w": draw(I, 14)}, draw(B, 2, 7), inputs(normal(B, I))


@family({"w": EXACT})
def roll(draw):
    return tail(lambda y: jnp.roll(y, 1, axis=-1))(draw)


@family({"w": EXACT})
def flip(draw):
    return tail(lambda y: y[:, ::-1])(draw)


@family({"w": EXACT})
def permutation(draw):
    """Features reordered by a fixed list of indices."""
    order = jnp.asarray([3, 0, 4, 1, 2])
    return tail(lambda y: y[:, order])(draw)


@family({"w": EXACT, "u": EXACT})
def concatenation(draw):
    """Two ops fill two parts of one state."""

    def step(params, h, x):
        h = 0.9 * h + jnp.concatenate([x @ params["w"], jnp.tanh(x @ params["u"])], axis=-1)
        return h, h

    return step, {"w": draw(I, 2), "u": draw(I, H - 2)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def pool_reshape(draw):
    """Non-overlapping average pool by reshape and mean."""
    return tail(lambda y: y.reshape(B, H, 2).mean(axis=-1), 2 * H)(draw)


@family({"w": EXACT})
def pool_window(draw):
    """Non-overlapping average pool by reduce_window."""
    pool = lambda y: lax.reduce_window(y, 0.0, lax.add, (1, 2), (1, 2), "VALID") / 2
    return tail(pool, 2 * H)(draw)


@family({"w": EXACT})
def pool_max(draw):
    """Non-overlapping max pool."""
    return tail(lambda y: y.reshape(B, H, 2).max(axis=-1), 2 * H)(draw)


@family({"w": EXACT})
def pool_overlapping(draw):
    """Each element of y reaches two states."""
    pool = lambda y: lax.reduce_window(y, 0.0, lax.add, (1, 2), (1, 1), "VALID") / 2
    return tail(pool, H + 1)(draw)


@family({"w": EXACT})
def upsample(draw):
    """Each element of y is repeated in two states."""

    def step(params, h, x):
        h = h * jnp.linspace(0.6, 0.9, 14) + jnp.repeat(x @ params["w"], 2, axis=-1)
        return h, h

    return step, {"w": draw(I, 7)}, draw(B, 14), inputs(normal(B, I))


def standardise(y):
    return (y - y.mean(axis=-1, keepdims=True)) / jnp.sqrt(y.var(axis=-1, keepdims=True) + 1e-5)


@family({"w": EXACT, "scale": EXACT, "shift": EXACT})
def layer_norm(draw):
    """The weight acts before the norm, scale and shift after it."""

    def step(params, h, x):
        h = 0.9 * h + params["scale"] * standardise(x @ params["w"]) + params["shift"]
        return h, h

    params = {"w": draw(I, H), "scale": draw.uniform(0.5, 1.5, H), "shift": draw(H)}
    return step, params, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def softmax(draw):
    return tail(lambda y: jax.nn.softmax(3.0 * y))(draw)


@family({"w": EXACT})
def mean_subtraction(draw):
    return tail(lambda y: y - y.mean(axis=-1, keepdims=True))(draw)


@family({"w": EXACT, "b": EXACT})
def fixed_matrix(draw):
    """A fixed matrix after the weight, a bias after the matrix."""
    matrix = draw(7, H)

    def step(params, h, x):
        h = 0.9 * h + jnp.tanh(x @ params["w"]) @ matrix + params["b"]
        return h, h

    return step, {"w": draw(I, 7), "b": draw(H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def cumulative_sum(draw):
    """Each element of y reaches every later state."""

    def step(params, h, x):
        h = h * jnp.linspace(0.5, 0.9, H) + jnp.cumsum(x @ params["w"], axis=-1)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def sort(draw):
    """Which state an element of y reaches depends on the data."""

    def step(params, h, x):
        h = h * jnp.linspace(0.5, 0.9, H) + jnp.sort(x @ params["w"], axis=-1)
        return h, h

    return step, {"w": draw(I, H)}, draw(B, H), inputs(normal(B, I))


@family({"q": EXACT, "k": EXACT, "v": EXACT})
def normalised_attention(draw):
    """A key has one position of the normaliser, and a row of the memory."""

    def step(params, hidden, x):
        q, k = (jnp.exp(jnp.tanh(x @ params[name])) for name in "qk")
        memory = 0.9 * hidden["memory"] + k[:, :, None] * (x @ params["v"])[:, None, :]
        norm = 0.9 * hidden["norm"] + k
        return {"memory": memory, "norm": norm}, jnp.einsum("bk,bkv->bv", q, memory) / (q * norm).sum(-1, keepdims=True)

    params = {"q": draw(I, H), "k": draw(I, H), "v": draw(I, 2)}
    return step, params, {"memory": draw(B, H, 2), "norm": draw.uniform(1.0, 2.0, B, H)}, inputs(normal(B, I))
