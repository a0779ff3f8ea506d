"""Sparse products: the stored values are the parameter, the indices are constant."""

import jax
import jax.numpy as jnp

from .model import EXACT, REPORTED, B, Family, H, I, coins, inputs, normal

family = Family("ops")

# Nine connections from I = 4 inputs to H = 5 units, sorted by input.
PRE = (0, 0, 0, 1, 1, 2, 2, 3, 3)
POST = (0, 2, 4, 1, 2, 0, 3, 3, 4)

# Eight connections among the H units.
FROM = (0, 0, 1, 2, 3, 3, 4, 4)
TO = (1, 3, 2, 0, 4, 1, 0, 2)


def gather_and_sum(x, values, pre, post):
    """The sparse product (B, inputs) -> (B, H), connection by connection."""
    messages = x[:, jnp.asarray(pre)] * values
    return jax.ops.segment_sum(messages.T, jnp.asarray(post), num_segments=H).T


@family({"w": EXACT})
def bcoo(draw):
    """A product with a BCOO matrix."""
    from jax.experimental.sparse import BCOO

    indices = jnp.stack([jnp.asarray(PRE), jnp.asarray(POST)], axis=1)

    def step(params, h, x):
        matrix = BCOO((params["w"], indices), shape=(I, H))
        h = 0.9 * h + x @ matrix
        return h, h

    return step, {"w": draw(9)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def segment_sum(draw):
    """Messages along connections, summed at their targets."""

    def step(params, h, x):
        h = 0.9 * h + gather_and_sum(x, params["w"], PRE, POST)
        return h, h

    return step, {"w": draw(9)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT})
def scatter_add(draw):
    """The same with .at[].add"""

    def step(params, h, x):
        h = (0.9 * h).at[:, jnp.asarray(POST)].add(x[:, jnp.asarray(PRE)] * params["w"])
        return h, h

    return step, {"w": draw(9)}, draw(B, H), inputs(normal(B, I))


@family({"w": REPORTED, "r": REPORTED, "out": EXACT})
def segment_sum_recurrent(draw):
    """Sparse recurrent connections."""

    def step(params, h, x):
        recurrent = gather_and_sum(h, params["r"], FROM, TO)
        h = 0.9 * h + jnp.tanh(recurrent + x @ params["w"])
        return h, h @ params["out"]

    return step, {"w": draw(I, H), "r": draw(8), "out": draw(H, 2)}, draw(B, H), inputs(normal(B, I))


def csr_from():
    """A function from stored values to a brainevent CSR matrix."""
    import brainevent

    brainevent.config.set_backend("cpu", "jax_raw")
    indices, indptr = jnp.asarray(POST, jnp.int32), jnp.asarray([0, 3, 5, 7, 9], jnp.int32)
    return lambda values: brainevent.CSR((values, indices, indptr), shape=(I, H))


@family({"w": EXACT}, needs=("brainevent",))
def csr(draw):
    """A product with a brainevent CSR matrix."""
    matrix = csr_from()

    def step(params, h, x):
        h = 0.9 * h + x @ matrix(params["w"])
        return h, h

    return step, {"w": draw(9)}, draw(B, H), inputs(normal(B, I))


@family({"w": EXACT}, needs=("brainevent",))
def csr_events(draw):
    """Spikes from outside times a brainevent CSR matrix, event by event."""
    from brainevent import BinaryArray

    matrix = csr_from()

    def step(params, h, spikes):
        h = 0.9 * h + BinaryArray(spikes) @ matrix(params["w"])
        return h, h

    return step, {"w": draw(9)}, draw(B, H), inputs(lambda rng, T: coins(B, I)(rng, T).astype(float))
