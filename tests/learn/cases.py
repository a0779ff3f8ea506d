"""Small models whose weight ops are named, so that a reference can cut, read and perturb them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

B, I, H, O, T = 2, 3, 4, 2, 6


def plain(name, u, w):
    """The weight op as the model has it."""
    return u @ w


@dataclass(frozen=True)
class Case:
    """`step(params, hidden, x, dot)` with every product written as `dot(name, data, weight)`."""

    name: str
    step: Callable
    params: Any
    hidden: Any
    x: Any
    targets: Any

    def model(self, params, hidden, x):
        return self.step(params, hidden, x, plain)


def loss(output, target):
    error = output - target
    return (error**2).sum(-1).mean() + 0.1 * (jnp.sin(output) * target).sum(-1).mean()


@jax.custom_vjp
def spike_vjp(v):
    return jnp.heaviside(v, jnp.zeros((), v.dtype))


def _bump(v):
    return 1 / (1 + 2 * jnp.abs(v)) ** 2


spike_vjp.defvjp(lambda v: (spike_vjp(v), v), lambda v, g: (g * _bump(v),))


@jax.custom_jvp
def spike_jvp(v):
    return jnp.heaviside(v, jnp.zeros((), v.dtype))


@spike_jvp.defjvp
def _(primals, tangents):
    return spike_jvp(*primals), _bump(primals[0]) * tangents[0]


def vanilla(p, h, x, dot):
    h = jnp.tanh(dot("in", x, p["wi"]) + dot("rec", h, p["wh"]) + p["b"])
    return h, dot("out", h, p["wo"]) + p["bo"]


def gru(p, h, x, dot):
    z = jax.nn.sigmoid(dot("iz", x, p["wz"]) + dot("hz", h, p["uz"]) + p["bz"])
    r = jax.nn.sigmoid(dot("ir", x, p["wr"]) + dot("hr", h, p["ur"]) + p["br"])
    n = jnp.tanh(dot("in", x, p["wn"]) + dot("hn", r * h, p["un"]) + p["bn"])
    h = z * h + (1 - z) * n
    return h, dot("out", h, p["wo"]) + p["bo"]


def lstm(p, s, x, dot):
    gates = dot("in", x, p["w"]) + dot("rec", s["h"], p["u"]) + p["b"]
    i, f, g, o = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(f) * s["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return {"h": h, "c": c}, dot("out", h, p["wo"]) + p["bo"]


def alif(spike):
    def step(p, s, x, dot):
        v = 0.8 * s["v"] * (1 - 0.5 * s["z"]) + dot("in", x, p["wi"]) + dot("rec", s["z"], p["wh"]) + p["b"]
        a = 0.9 * s["a"] + s["z"]
        z = spike(v - 0.3 - 0.2 * a)
        r = 0.7 * s["r"] + dot("out", z, p["wo"]) + p["bo"]
        return {"v": v, "a": a, "z": z, "r": r}, r

    return step


def two_layers(p, s, x, dot):
    h = jnp.tanh(dot("1", x, p["w1"]) + dot("r1", s["h"], p["u1"]) + p["b1"])
    k = jax.nn.sigmoid(p["leak"]) * s["k"] + jnp.tanh(dot("2", h, p["w2"]) + p["b2"])
    return {"h": h, "k": k}, dot("out", k, p["wo"]) + p["bo"]


def lru(p, s, x, dot):
    lam = jnp.exp(-jnp.exp(p["nu"]) + 1j * p["theta"])
    h = lam * s + dot("in", x + 0j, p["b"])
    return h, dot("out", h.real, p["wo"]) + dot("skip", x, p["d"])


def _case(name, step, shapes, hidden, scale=0.7, kinds=None):
    rng = np.random.RandomState(len(name) + 17)
    kinds = kinds or {}
    params = {}
    for k, shape in shapes.items():
        value = scale * rng.standard_normal(shape)
        params[k] = jnp.asarray(value + 1j * rng.standard_normal(shape) if kinds.get(k) == "complex" else value)
    hidden = jax.tree.map(lambda a: a + 0.1 * jnp.asarray(rng.standard_normal(a.shape)), hidden)
    x = jnp.asarray(rng.standard_normal((T, B, I)))
    targets = jnp.asarray(rng.standard_normal((T, B, O)))
    return Case(name, step, params, hidden, x, targets)


def _zeros(*names):
    return {n: jnp.zeros((B, H)) for n in names}


_READ = {"wo": (H, O), "bo": (O,)}
_GATES = {k + g: s for g in "zrn" for k, s in (("w", (I, H)), ("u", (H, H)), ("b", (H,)))}
_SPIKE = {"wi": (I, H), "wh": (H, H), "b": (H,), **_READ}

CASES = {
    c.name: c
    for c in (
        _case("vanilla", vanilla, {"wi": (I, H), "wh": (H, H), "b": (H,), **_READ}, jnp.zeros((B, H))),
        _case("gru", gru, {**_GATES, **_READ}, jnp.zeros((B, H))),
        _case("lstm", lstm, {"w": (I, 4 * H), "u": (H, 4 * H), "b": (4 * H,), **_READ}, _zeros("h", "c")),
        _case("alif_vjp", alif(spike_vjp), _SPIKE, {**_zeros("v", "a", "z"), "r": jnp.zeros((B, O))}),
        _case("alif_jvp", alif(spike_jvp), _SPIKE, {**_zeros("v", "a", "z"), "r": jnp.zeros((B, O))}),
        _case(
            "two_layers",
            two_layers,
            {"w1": (I, H), "u1": (H, H), "b1": (H,), "w2": (H, 5), "b2": (5,), "leak": (5,), "wo": (5, O), "bo": (O,)},
            {"h": jnp.zeros((B, H)), "k": jnp.zeros((B, 5))},
        ),
        _case(
            "lru",
            lru,
            {"nu": (H,), "theta": (H,), "b": (I, H), "wo": (H, O), "d": (I, O)},
            jnp.zeros((B, H), complex),
            kinds={"b": "complex"},
        ),
    )
}
