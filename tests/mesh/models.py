"""Small models for many devices: step, parameters, hidden state."""

import jax
import jax.numpy as jnp
import numpy as np

B, I, H, O = 8, 3, 16, 2
FAN_IN = 4
MANY = 96  # few enough connections for so many units that no product with them is a dense one


def draw(**shapes):
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(0.4 * rng.standard_normal(shape)) for name, shape in shapes.items()}


def gru():
    def step(p, h, x):
        z = jax.nn.sigmoid(x @ p["wz"] + h @ p["uz"] + p["b"])
        r = jax.nn.sigmoid(x @ p["wr"] + h @ p["ur"])
        h = (1 - z) * h + z * jnp.tanh(x @ p["wn"] + (r * h) @ p["un"])
        return h, h @ p["out"]

    inner = {f"w{g}": (I, H) for g in "zrn"} | {f"u{g}": (H, H) for g in "zrn"}
    return step, draw(**inner, b=(H,), out=(H, O)), jnp.zeros((B, H))


def rnn():
    """Leaky units, a surrogate spike and a leaky readout: states of two layers, of which the second is not cut."""

    def step(p, hidden, x):
        v, r = hidden
        z = spike(v - 0.1)
        v = 0.9 * v * (1 - jax.lax.stop_gradient(z)) + x @ p["w"] + z @ p["u"] + p["b"]
        r = 0.8 * r + spike(v - 0.1) @ p["out"]
        return (v, r), r

    hidden = (jnp.zeros((B, H)), jnp.zeros((B, O)))
    return step, draw(w=(I, H), u=(H, H), b=(H,), out=(H, O)), hidden


@jax.custom_vjp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defvjp(lambda v: (spike(v), v), lambda v, g: (g / (1 + jnp.abs(v)) ** 2,))


def connections():
    """Equally many connections for each row, sorted by row: from, to."""
    rng = np.random.default_rng(1)
    return rng.integers(0, MANY, MANY * FAN_IN), np.repeat(np.arange(MANY), FAN_IN)


def sparse(product):
    """Leaky units; `product(r, h)` is what the connections with weights r give of the activities h (units, batch)."""

    def step(p, h, x):
        h = 0.9 * h + jnp.tanh(product(p["r"], h.T).T + x @ p["w"])
        return h, h @ p["out"]

    return step, draw(w=(I, MANY), r=(MANY * FAN_IN,), out=(MANY, O)), jnp.zeros((B, MANY))


def segments():
    pre, post = connections()
    return sparse(lambda r, h: jax.ops.segment_sum(h[pre] * r[:, None], post, MANY))


def bcoo():
    from jax.experimental.sparse import BCOO

    pre, post = connections()
    indices = jnp.asarray(np.stack([post, pre], 1))
    return sparse(lambda r, h: BCOO((r, indices), shape=(MANY, MANY)) @ h)


def csr():
    from jax.experimental.sparse import CSR

    pre, _ = connections()
    starts = jnp.arange(MANY + 1) * FAN_IN
    return sparse(lambda r, h: CSR((r, jnp.asarray(pre), starts), shape=(MANY, MANY)) @ h)


MODELS = {f.__name__: f for f in (gru, rnn, segments, bcoo, csr)}
