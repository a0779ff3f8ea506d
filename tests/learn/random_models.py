"""Random one-step models: a chain of layers of several kinds, each with its weights dressed up in some way."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from tests.learn.cases import spike_jvp, spike_vjp

B, I, O = 2, 3, 2


class Layer(NamedTuple):
    kind: str
    width: int
    dress: str
    tail: str
    skip: bool


# What a model may do to its weights before it uses them.
DRESS = {
    "plain": lambda w: w,
    "abs": jnp.abs,
    "twice transposed": lambda w: (w.T * 1.1).T,
    "masked": lambda w: w * (np.arange(w.size).reshape(w.shape) % 3 > 0),
    "normalised": lambda w: w / jnp.sqrt(1 + (w**2).sum(0, keepdims=True)),
    "halves swapped": lambda w: jnp.concatenate([w[:, 1:], w[:, :1]], 1),
}
# What may stand between a weight op and the state. The last two mix positions.
TAILS = {
    "tanh": jnp.tanh,
    "softsign": lambda a: a / (1 + jnp.abs(a)),
    "reversed": lambda a: jnp.tanh(a)[:, ::-1],
    "layer norm": lambda a: (a - a.mean(-1, keepdims=True)) / jnp.sqrt(a.var(-1, keepdims=True) + 0.1),
    "softmax": lambda a: jax.nn.softmax(a) * 2,
}


def feed_forward(p, s, x, f):
    return {"h": 0.7 * s["h"] + f(x @ p["w"] + p["b"])}, lambda s: s["h"]


def vanilla(p, s, x, f):
    return {"h": f(x @ p["w"] + s["h"] @ p["u"] + p["b"])}, lambda s: s["h"]


def leaky(p, s, x, f):
    a = jax.nn.sigmoid(p["b"])
    return {"h": a * s["h"] + (1 - a) * f(x @ p["w"])}, lambda s: s["h"]


def gated(p, s, x, f):
    z, n = jnp.split(x @ p["w2"] + p["b2"], 2, -1)
    z = jax.nn.sigmoid(z)
    return {"h": z * s["h"] + (1 - z) * f(n)}, lambda s: s["h"]


def spiking(spike, recurrent):
    def cell(p, s, x, f):
        back = s["z"] @ p["u"] if recurrent else 0.0
        v = 0.8 * s["v"] * (1 - s["z"]) + f(x @ p["w"]) + back + p["b"]
        a = 0.9 * s["a"] + 0.3 * s["z"]
        return {"v": v, "a": a, "z": spike(v - 0.2 - a)}, lambda s: s["z"]

    return cell


def chained(p, s, x, f):
    c = 0.6 * s["c"] + f(x @ p["w"])
    return {"c": c, "v": 0.8 * s["v"] + c * p["b"]}, lambda s: s["v"]


KINDS = {
    "feed forward": (feed_forward, "h"), "vanilla": (vanilla, "h"), "leaky": (leaky, "h"), "gated": (gated, "h"),
    "lif vjp": (spiking(spike_vjp, False), "vaz"), "alif jvp": (spiking(spike_jvp, True), "vaz"),
    "chained": (chained, "cv"),
}  # fmt: skip

layers = st.builds(
    Layer,
    st.sampled_from(list(KINDS)),
    st.integers(2, 4),
    st.sampled_from(list(DRESS)),
    st.sampled_from(list(TAILS)),
    st.booleans(),
)
models = st.lists(layers, min_size=1, max_size=3)


class Model(NamedTuple):
    """What `tests.learn.oracle.bptt` and `etrax.compile` take."""

    step: Any
    params: Any
    hidden: Any
    loss: Any


def build(spec) -> Model:
    rng = np.random.RandomState(7)
    draw = lambda *s: jnp.asarray(0.6 * rng.standard_normal(s))
    params, hidden, n_in = [], [], I
    for layer in spec:
        n = layer.width
        shapes = {"w": (n_in, n), "u": (n, n), "b": (n,), "w2": (n_in, 2 * n), "b2": (2 * n,)}
        params.append({k: draw(*s) for k, s in shapes.items()})
        hidden.append({k: 0.1 * draw(B, n) for k in KINDS[layer.kind][1]})
        n_in = n + (I if layer.skip else 0)
    params.append({"out": draw(n_in, O), "bias": draw(O)})

    def step(params, hidden, x):
        new, y = [], x
        for layer, p, s in zip(spec, params, hidden, strict=False):
            dressed = {k: DRESS[layer.dress](w) if w.ndim == 2 else w for k, w in p.items()}
            s, show = KINDS[layer.kind][0](dressed, s, y, TAILS[layer.tail])
            y = jnp.concatenate([show(s), x], -1) if layer.skip else show(s)
            new.append(s)
        return new, y @ params[-1]["out"] + params[-1]["bias"]

    def loss(output, target):
        return ((output - target) ** 2).mean() + 0.1 * jnp.sin(output).sum()

    return Model(step, params, hidden, loss)


def data(steps):
    rng = np.random.RandomState(3)
    return jnp.asarray(rng.standard_normal((steps, B, I))), jnp.asarray(rng.standard_normal((steps, B, O)))
