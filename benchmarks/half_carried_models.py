"""Models in which one weight op has a trace to one state and reaches another state by a path that no trace follows.

Each function takes a drawing of weights and returns `step, params, hidden`; `w` is the parameter that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

B, I, H, V = 2, 3, 4, 3
Draw = Callable[..., Any]
Build = Callable[[Draw], tuple[Callable[..., Any], dict[str, Any], Any]]
MODELS: dict[str, Build] = {}
MIX = jnp.asarray(np.random.RandomState(7).standard_normal((H, H)) / np.sqrt(H))


def model(build: Build) -> Build:
    MODELS[build.__name__.replace("_", " ")] = build
    return build


def zeros(*shape: int) -> Any:
    return jnp.zeros((B, *shape))


def normalised(y: Any) -> Any:
    y = y - y.mean(-1, keepdims=True)
    return y / jnp.sqrt((y**2).mean(-1, keepdims=True) + 0.1)


def outer(k: Any, v: Any) -> Any:
    return k[:, :, None] * v[:, None, :]


def read(q: Any, S: Any) -> Any:
    return jnp.einsum("bk,bkv->bv", q, S)


def positive(y: Any) -> Any:
    return jax.nn.elu(y) + 1.1


@jax.custom_jvp
def spike(v: Any) -> Any:
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda v, t: (spike(v[0]), t[0] / (1 + 3 * jnp.abs(v[0])) ** 2))


# --- the op drives an accumulator of its own outputs and, beside it, a memory over which each output spreads ---


def _attention(p: Any, s: Any, x: Any, decay: Any, gain: Any, floor: float) -> Any:
    q, k, v = positive(x @ p["q"]), positive(x @ p["w"]) * gain, x @ p["v"]
    s = {"S": decay * s["S"] + outer(k, v), "z": jnp.squeeze(decay, -1) * s["z"] + k}
    return s, read(q, s["S"]) / jnp.maximum((q * s["z"]).sum(-1, keepdims=True), floor)


@model
def linear_attention(draw):
    p = {"q": draw(I, H), "w": draw(I, H), "v": draw(I, V)}
    return lambda p, s, x: _attention(p, s, x, jnp.full((1, 1, 1), 0.9), 1.0, 0.0), p, {"S": zeros(H, V), "z": zeros(H)}


@model
def linear_attention_signed_keys(draw):
    def step(p, s, x):
        q, k, v = x @ p["q"], x @ p["w"], x @ p["v"]
        s = {"S": 0.9 * s["S"] + outer(k, v), "z": 0.9 * s["z"] + k}
        return s, read(q, s["S"]) / jnp.maximum(jnp.abs((q * s["z"]).sum(-1, keepdims=True)), 1.0)

    return step, {"q": draw(I, H), "w": draw(I, H), "v": draw(I, V)}, {"S": zeros(H, V), "z": zeros(H)}


@model
def mLSTM(draw):
    def step(p, s, x):
        f, i = jax.nn.sigmoid(x @ p["f"] + 2), jnp.exp(jnp.tanh(x @ p["i"]))
        q, k, v = x @ p["q"], x @ p["w"], x @ p["v"]
        s = {"C": f[..., None] * s["C"] + i[..., None] * outer(k, v), "n": f * s["n"] + i * k}
        out = read(q, s["C"]) / jnp.maximum(jnp.abs((q * s["n"]).sum(-1, keepdims=True)), 1.0)
        return s, out * jax.nn.sigmoid(x @ p["o"])

    shapes = {"q": (I, H), "w": (I, H), "v": (I, V), "f": (I, 1), "i": (I, 1), "o": (I, V)}
    return step, {k: draw(*s) for k, s in shapes.items()}, {"C": zeros(H, V), "n": zeros(H)}


@model
def attention_and_mean_key(draw):
    def step(p, s, x):
        q, k, v = x @ p["q"], jnp.tanh(x @ p["w"]), x @ p["v"]
        s = {"S": 0.9 * s["S"] + outer(k, v), "m": 0.9 * s["m"] + 0.1 * k}
        return s, read(q, s["S"]) + s["m"] @ p["o"]

    return step, {"q": draw(I, H), "w": draw(I, H), "v": draw(I, V), "o": draw(H, V)}, {"S": zeros(H, V), "m": zeros(H)}


@model
def memory_with_usage(draw):
    """A memory whose slots are written by an address and fade where they are in use."""

    def step(p, s, x):
        a, v = jax.nn.sigmoid(x @ p["w"]), jnp.tanh(x @ p["v"])
        s = {
            "M": s["M"] * (1 - 0.3 * a[..., None]) + outer(a * jnp.exp(-s["u"]), v),
            "u": 0.8 * s["u"] + 0.2 * a,
        }
        return s, read(jax.nn.softmax(x @ p["q"]), s["M"])

    return step, {"q": draw(I, H), "w": draw(I, H), "v": draw(I, V)}, {"M": zeros(H, V), "u": zeros(H)}


@model
def delta_rule_with_key_norm(draw):
    def step(p, s, x):
        q, k, v = x @ p["q"], 0.5 * jnp.tanh(x @ p["w"]), x @ p["v"]
        s = {"S": s["S"] + outer(k, v - read(k, s["S"])), "n": 0.9 * s["n"] + 0.1 * k**2}
        return s, read(q / (0.3 + jnp.sqrt(s["n"])), s["S"])

    return step, {"q": draw(I, H), "w": draw(I, H), "v": draw(I, V)}, {"S": zeros(H, V), "n": zeros(H) + 0.01}


@model
def fast_weights(draw):
    """Ba et al. 2016: activity writes a matrix that acts on later activity."""

    def step(p, s, x):
        h = 0.8 * s["h"] + jnp.tanh(x @ p["w"] + 0.3 * read(s["h"], s["A"]))
        return {"h": h, "A": 0.9 * s["A"] + 0.2 * outer(h, h)}, h @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"h": zeros(H), "A": zeros(H, H)}


@model
def selective_state_space(draw):
    """Δ of a selective state space reaches N states a channel, and a slow trace of itself."""

    def step(p, s, x):
        d = jax.nn.softplus(x @ p["w"])
        a = jnp.exp(-d[..., None] * jnp.asarray([0.1, 0.3, 1.0]))
        s = {"h": a * s["h"] + outer(d * (x @ p["x"]), x @ p["b"]), "m": 0.9 * s["m"] + 0.1 * d}
        return s, jnp.einsum("bhn,bn->bh", s["h"], x @ p["c"]) / (0.5 + s["m"])

    shapes = {"w": (I, H), "x": (I, H), "b": (I, 3), "c": (I, 3)}
    return step, {k: draw(*s) for k, s in shapes.items()}, {"h": zeros(H, 3), "m": zeros(H)}


@model
def one_gate_of_a_layer(draw):
    def step(p, s, x):
        g = jax.nn.sigmoid(x @ p["w"] + 1)
        s = {"h": g * s["h"] + (1 - g) * jnp.tanh(x @ p["x"]), "c": 0.9 * s["c"] + g}
        return s, (s["h"] @ p["o"]) / (1 + s["c"])

    return step, {"w": draw(I, 1), "x": draw(I, H), "o": draw(H, V)}, {"h": zeros(H), "c": zeros(1)}


# --- two paths into two leaky states, one of them across positions ---


def _two_paths(tail: Callable[[Any], Any], size: int) -> Build:
    def build(draw):
        def step(p, s, x):
            y = x @ p["w"]
            s = {"a": 0.9 * s["a"] + y, "b": 0.9 * s["b"] + tail(y)}
            return s, jnp.tanh(s["a"]) @ p["o"] + jnp.tanh(s["b"]) @ p["r"]

        return step, {"w": draw(I, H), "o": draw(H, V), "r": draw(size, V)}, {"a": zeros(H), "b": zeros(size)}

    return build


MODELS["LayerNorm on one of two paths"] = _two_paths(normalised, H)
MODELS["softmax on one of two paths"] = _two_paths(jax.nn.softmax, H)
MODELS["a fixed mixing on one of two paths"] = _two_paths(lambda y: jnp.tanh(y @ MIX), H)
MODELS["overlapping pools on one of two paths"] = _two_paths(lambda y: y[:, 1:] + y[:, :-1], H - 1)


@model
def divisive_normalisation(draw):
    """A layer divided by the activity of all, with a slow gain of each neuron's own."""

    def step(p, s, x):
        y = jax.nn.softplus(x @ p["w"])
        s = {"h": 0.9 * s["h"] + y / (0.5 + y.sum(-1, keepdims=True)), "g": 0.95 * s["g"] + 0.05 * y}
        return s, (s["h"] * jnp.exp(-s["g"])) @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"h": zeros(H), "g": zeros(H)}


@model
def LIF_with_inhibition_of_its_own_step(draw):
    def step(p, s, x):
        i = x @ p["w"]
        g = 0.8 * s["g"] + 0.3 * jax.nn.relu(i).sum(-1, keepdims=True)
        v = 0.9 * s["v"] * (1 - spike(s["v"] - 1)) + i - 0.5 * g
        return {"v": v, "g": g}, spike(v - 1) @ p["o"]

    return step, {"w": 2 * draw(I, H), "o": draw(H, V)}, {"v": zeros(H), "g": zeros(1)}


@model
def depressing_synapse_behind_fixed_weights(draw):
    def step(p, s, x):
        z = jax.nn.sigmoid(x @ p["w"])
        s = {"r": s["r"] + 0.2 * (1 - s["r"]) - 0.5 * s["r"] * z, "v": 0.9 * s["v"] + (s["r"] * z) @ MIX}
        return s, jnp.tanh(s["v"]) @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"r": zeros(H) + 1, "v": zeros(H)}


@model
def leaky_layer_before_a_fixed_reservoir(draw):
    def step(p, s, x):
        a = 0.8 * s["a"] + x @ p["w"]
        r = jnp.tanh(0.5 * s["r"] + a @ MIX)
        return {"a": a, "r": r}, r @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"a": zeros(H), "r": zeros(H)}


@model
def normalised_layer_above(draw):
    """A leaky layer, and above it one that integrates the layer below, normalised; both are read."""

    def step(p, s, x):
        a = 0.9 * s["a"] + x @ p["w"]
        b = 0.9 * s["b"] + normalised(a)
        return {"a": a, "b": b}, a @ p["o"] + b @ p["r"]

    return step, {"w": draw(I, H), "o": draw(H, V), "r": draw(H, V)}, {"a": zeros(H), "b": zeros(H)}


# --- the state across positions shows the state with the trace, and keeps nothing of its own ---


@model
def LayerNorm_LSTM(draw):
    """Ba et al. 2016: h = σ(o) tanh(LN(c))."""

    def step(p, s, x):
        i, f, g, o = jnp.split(x @ p["w"] + s["h"] @ p["u"], 4, -1)
        c = jax.nn.sigmoid(f + 1) * s["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(normalised(c))
        return {"c": c, "h": h}, h @ p["r"]

    return step, {"w": draw(I, 4 * H), "u": draw(H, 4 * H), "r": draw(H, V)}, {"c": zeros(H), "h": zeros(H)}


@model
def leaky_layer_and_its_softmax(draw):
    def step(p, s, x):
        a = 0.9 * s["a"] + x @ p["w"] + s["z"] @ p["u"]
        z = jax.nn.softmax(a)
        return {"a": a, "z": z}, z @ p["o"]

    return step, {"w": draw(I, H), "u": draw(H, H), "o": draw(H, V)}, {"a": zeros(H), "z": zeros(H)}


@model
def LIF_with_lateral_inhibition(draw):
    """Spikes of the last step inhibit all others by a fixed matrix, and are read with the potential."""

    def step(p, s, x):
        v = 0.9 * s["v"] * (1 - s["z"]) + x @ p["w"]
        z = spike(v - 0.5 * v.mean(-1, keepdims=True) - 0.5)
        return {"v": v, "z": z}, z @ p["o"]

    return step, {"w": 2 * draw(I, H), "o": draw(H, V)}, {"v": zeros(H), "z": zeros(H)}


# --- behind another weight op ---


@model
def two_LIF_layers(draw):
    def step(p, s, x):
        v = 0.9 * s["v"] * (1 - spike(s["v"] - 1)) + x @ p["w"]
        u = 0.9 * s["u"] * (1 - spike(s["u"] - 1)) + spike(v - 1) @ p["up"]
        return {"v": v, "u": u}, jnp.tanh(u) @ p["o"]

    return step, {"w": 2 * draw(I, H), "up": 2 * draw(H, H), "o": draw(H, V)}, {"v": zeros(H), "u": zeros(H)}


@model
def two_leaky_layers(draw):
    def step(p, s, x):
        a = 0.9 * s["a"] + jnp.tanh(x @ p["w"])
        b = 0.9 * s["b"] + jnp.tanh(a @ p["up"])
        return {"a": a, "b": b}, b @ p["o"]

    return step, {"w": draw(I, H), "up": draw(H, H), "o": draw(H, V)}, {"a": zeros(H), "b": zeros(H)}


@model
def LIF_and_leaky_readout(draw):
    def step(p, s, x):
        v = 0.9 * s["v"] * (1 - spike(s["v"] - 1)) + x @ p["w"]
        r = 0.9 * s["r"] + spike(v - 1) @ p["o"]
        return {"v": v, "r": r}, r

    return step, {"w": 2 * draw(I, H), "o": draw(H, V)}, {"v": zeros(H), "r": zeros(V)}


@model
def two_GRU_layers(draw):
    def gru(x, h, w, u):
        r, z, n = jnp.split(x @ w, 3, -1)
        a, b, c = jnp.split(h @ u, 3, -1)
        z = jax.nn.sigmoid(z + b)
        return z * h + (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + a) * c)

    def step(p, s, x):
        a = gru(x, s["a"], p["w"], p["u"])
        b = gru(a, s["b"], p["up"], p["ub"])
        return {"a": a, "b": b}, b @ p["o"]

    shapes = {"w": (I, 3 * H), "u": (H, 3 * H), "up": (H, 3 * H), "ub": (H, 3 * H), "o": (H, V)}
    return step, {k: draw(*s) for k, s in shapes.items()}, {"a": zeros(H), "b": zeros(H)}


@model
def encoder_with_a_leaky_trace(draw):
    """The first layer of an encoder, kept in a leaky state beside its way through the second."""

    def step(p, s, x):
        y = jnp.tanh(x @ p["w"])
        s = {"a": 0.9 * s["a"] + y, "b": 0.9 * s["b"] + y @ p["up"]}
        return s, (s["b"] / (1 + jnp.abs(s["a"]))) @ p["o"]

    return step, {"w": draw(I, H), "up": draw(H, H), "o": draw(H, V)}, {"a": zeros(H), "b": zeros(H)}


@model
def attention_with_a_projected_value(draw):
    """Keys by way of a leaky state; the memory is written behind another weight."""

    def step(p, s, x):
        k = positive(x @ p["w"])
        s = {"S": 0.9 * s["S"] + (k * (x @ p["v"])) @ p["up"], "z": 0.9 * s["z"] + k}
        return s, s["S"] / (1 + s["z"].sum(-1, keepdims=True))

    return step, {"w": draw(I, H), "v": draw(I, H), "up": draw(H, V)}, {"S": zeros(V), "z": zeros(H)}


# --- products and ratios of other kinds ---


@model
def forget_gate_of_attention(draw):
    def step(p, s, x):
        f, k = jax.nn.sigmoid(x @ p["w"] + 2), positive(x @ p["k"])
        s = {"S": f[..., None] * s["S"] + outer(k, x @ p["v"]), "z": f * s["z"] + k}
        q = positive(x @ p["q"])
        return s, read(q, s["S"]) / (q * s["z"]).sum(-1, keepdims=True)

    return step, {"q": draw(I, H), "k": draw(I, H), "w": draw(I, H), "v": draw(I, V)}, {"S": zeros(H, V), "z": zeros(H)}


@model
def two_paths_multiplied(draw):
    def step(p, s, x):
        y = x @ p["w"]
        s = {"a": 0.9 * s["a"] + y, "b": 0.9 * s["b"] + y @ MIX}
        return s, (jnp.tanh(s["a"]) * jnp.tanh(s["b"])) @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"a": zeros(H), "b": zeros(H)}


@model
def gain_of_its_own(draw):
    """A product of two things that grow together: normalised activity, and a slow gain of the same drive."""

    def step(p, s, x):
        y = jax.nn.softplus(x @ p["w"])
        s = {"h": 0.8 * s["h"] + jax.nn.softmax(y), "g": 0.9 * s["g"] + 0.1 * y}
        return s, (s["h"] * s["g"]) @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"h": zeros(H), "g": zeros(H)}


@model
def mean_over_deviation(draw):
    def step(p, s, x):
        y = x @ p["w"]
        s = {"m": 0.9 * s["m"] + 0.1 * (y @ MIX), "v": 0.9 * s["v"] + 0.1 * y**2}
        return s, (s["m"] / jnp.sqrt(s["v"] + 0.01)) @ p["o"]

    return step, {"w": draw(I, H), "o": draw(H, V)}, {"m": zeros(H), "v": zeros(H)}


@model
def gated_layers_with_a_skip(draw):
    def step(p, s, x):
        y = x @ p["w"]
        a = 0.9 * s["a"] + y
        c = jnp.tanh(a) + y
        b = jax.nn.sigmoid(c @ p["f"] + 1) * s["b"] + c @ p["up"]
        return {"a": a, "b": b}, jnp.tanh(b) @ p["o"]

    return step, {k: draw(I if k == "w" else H, V if k == "o" else H) for k in ("w", "f", "up", "o")}, {
        "a": zeros(H), "b": zeros(H),
    }  # fmt: skip


@model
def query_and_key_of_one_weight(draw):
    def step(p, s, x):
        k, v = positive(x @ p["w"]), x @ p["v"]
        s = {"S": 0.9 * s["S"] + outer(k, v), "z": 0.9 * s["z"] + k}
        return s, read(k, s["S"]) / (k * s["z"]).sum(-1, keepdims=True)

    return step, {"w": draw(I, H), "v": draw(I, V)}, {"S": zeros(H, V), "z": zeros(H)}
