"""Small models in float64, written once for two libraries: `new = advance(dot, p, s, x)`, `output = read(p, new)`.

`dot` is the product that a library traces: `@` here, an op of its own elsewhere. All else is plain JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

B, I, H, O, T = 2, 3, 4, 2, 7
Tree = dict[str, Any]


class Model(NamedTuple):
    """`smooth` models have finite differences; the others a surrogate derivative, which BPTT follows."""

    advance: Callable[[Callable[..., Any], Tree, Tree, Any], Tree]
    read: Callable[[Tree, Tree], Any]
    params: Tree
    hidden: Tree
    smooth: bool = True


@jax.custom_jvp
def spike(v: Any) -> Any:
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return spike(primals[0]), tangents[0] / (1 + 2 * jnp.abs(primals[0])) ** 2


def _params(**shapes: tuple[int, ...]) -> Tree:
    rng = np.random.RandomState(sum(map(len, shapes)))
    return {k: jnp.asarray(0.6 * rng.standard_normal(s)) for k, s in shapes.items()}


def _zeros(*names: str) -> Tree:
    return {k: jnp.zeros((B, H)) for k in names}


def _readout(name: str) -> Callable[[Tree, Tree], Any]:
    return lambda p, s: s[name] @ p["wo"]


def leaky(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    return {"h": 0.9 * s["h"] + dot(x, p["w"])}


def rate(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    return {"h": 0.8 * s["h"] + 0.2 * jnp.tanh(dot(x, p["w"]) + dot(s["h"], p["u"]))}


def vanilla(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    return {"h": jnp.tanh(dot(x, p["w"]) + dot(s["h"], p["u"]))}


def bias(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    return {"h": 0.9 * s["h"] + jnp.tanh(dot(x, p["w"]) + p["b"])}


def positive(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    return {"h": 0.9 * s["h"] + dot(x, jnp.abs(p["w"]))}


def centred(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    y = dot(x, p["w"])
    return {"h": 0.9 * s["h"] + y - y.mean(-1, keepdims=True)}


def chain(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    g = 0.7 * s["g"] + dot(x, p["w"])
    return {"g": g, "h": 0.9 * s["h"] + jnp.tanh(g)}


def gru(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    h = s["h"]
    z = jax.nn.sigmoid(dot(x, p["wz"]) + dot(h, p["uz"]))
    r = jax.nn.sigmoid(dot(x, p["wr"]) + dot(h, p["ur"]))
    n = jnp.tanh(dot(x, p["wn"]) + dot(r * h, p["un"]))
    return {"h": z * h + (1 - z) * n}


def lstm(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    i, f, g, o = (dot(jnp.concatenate([x, s["h"]], -1), p[k]) for k in ("wi", "wf", "wg", "wo_"))
    c = jax.nn.sigmoid(f) * s["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return {"c": c, "h": jax.nn.sigmoid(o) * jnp.tanh(c)}


def lif(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    return {"v": 0.9 * s["v"] + dot(x, p["w"]) + dot(spike(s["v"] - 0.5), p["u"])}


def alif(dot: Any, p: Tree, s: Tree, x: Any) -> Tree:
    v = 0.9 * s["v"] + dot(x, p["w"]) + dot(s["z"], p["u"]) - 0.5 * s["z"]
    a = 0.95 * s["a"] + s["z"]
    return {"a": a, "v": v, "z": spike(v - 0.5 - 0.2 * a)}


_W, _U, _OUT = {"w": (I, H)}, {"u": (H, H)}, {"wo": (H, O)}
_GATES = {k + g: n for g in "zrn" for k, n in (("w", (I, H)), ("u", (H, H)))}
_FOUR = {k: (I + H, H) for k in ("wi", "wf", "wg", "wo_")}

MODELS: dict[str, Model] = {
    "leaky": Model(leaky, _readout("h"), _params(**_W, **_OUT), _zeros("h")),
    "leaky, a bias": Model(bias, _readout("h"), _params(**_W, b=(H,), **_OUT), _zeros("h")),
    "leaky, |w|": Model(positive, _readout("h"), _params(**_W, **_OUT), _zeros("h")),
    "leaky, mean subtracted": Model(centred, _readout("h"), _params(**_W, **_OUT), _zeros("h")),
    "two states in a chain": Model(chain, _readout("h"), _params(**_W, **_OUT), _zeros("g", "h")),
    "vanilla RNN": Model(vanilla, _readout("h"), _params(**_W, **_U, **_OUT), _zeros("h")),
    "leaky RNN": Model(rate, _readout("h"), _params(**_W, **_U, **_OUT), _zeros("h")),
    "GRU": Model(gru, _readout("h"), _params(**_GATES, **_OUT), _zeros("h")),
    "LSTM": Model(lstm, _readout("h"), _params(**_FOUR, **_OUT), _zeros("c", "h")),
    "LIF": Model(lif, lambda p, s: spike(s["v"] - 0.5) @ p["wo"], _params(**_W, **_U, **_OUT), _zeros("v"), False),
    "ALIF": Model(alif, _readout("z"), _params(**_W, **_U, **_OUT), _zeros("a", "v", "z"), False),
}
