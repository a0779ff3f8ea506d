"""One-step recurrent layers after their published equations, in the spellings that public code uses for them.

Each function takes a drawing of weights and returns `step, params, hidden`; `tokens` marks those whose input is one
token for each sample instead of features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

B, I, H, N, TAPS = 2, 5, 6, 3, 4  # samples, features, channels, states a channel, taps of a short convolution
Draw = Callable[..., Any]
Build = Callable[[Draw], tuple[Callable[..., Any], dict[str, Any], Any]]
MODELS: dict[str, Build] = {}
TOKENS: dict[str, int] = {}  # models that read tokens, and how many there are


def model(build: Build) -> Build:
    MODELS[build.__name__.replace("_", " ")] = build
    return build


def tokens(count: int) -> Callable[[Build], Build]:
    def mark(build: Build) -> Build:
        TOKENS[build.__name__.replace("_", " ")] = count
        return model(build)

    return mark


def zeros(*shape: int) -> Any:
    return jnp.zeros((B, *shape))


def rms(x: Any, scale: Any = 1.0) -> Any:
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-2) * scale


def unit(x: Any) -> Any:
    return x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-2)


@jax.custom_jvp
def spike(v: Any) -> Any:
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda v, t: (spike(v[0]), t[0] / (1 + 3 * jnp.abs(v[0])) ** 2))


# --- short convolutions over the last inputs, in three spellings; the taps are (TAPS, channels) ---


def conv_by_sum(state: Any, x: Any, taps: Any) -> tuple[Any, Any]:
    window = jnp.concatenate([state, x[:, None]], 1)
    return window[:, 1:], (window * taps).sum(1)


def conv_by_einsum(state: Any, x: Any, taps: Any) -> tuple[Any, Any]:
    window = jnp.concatenate([state, x[:, None]], 1)
    return window[:, 1:], jnp.einsum("btc,tc->bc", window, taps)


def conv_by_lax(state: Any, x: Any, taps: Any) -> tuple[Any, Any]:
    """Depthwise: one group for each channel."""
    window = jnp.concatenate([state, x[:, None]], 1)
    y = lax.conv_general_dilated(
        window, taps[:, None, :], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=window.shape[-1],
    )  # fmt: skip
    return window[:, 1:], y[:, 0]


def conv_padded(state: Any, x: Any, taps: Any) -> tuple[Any, Any]:
    """Channels first, causal over the whole window, of which the last place is read."""
    window = jnp.concatenate([state, x[:, None]], 1)
    y = lax.conv_general_dilated(
        window.transpose(0, 2, 1), taps.T[:, None, :], (1,), [(TAPS - 1, 0)],
        dimension_numbers=("NCW", "OIW", "NCW"), feature_group_count=window.shape[-1],
    )  # fmt: skip
    return window[:, 1:], y[:, :, -1]


# --- selective state spaces ---


def _mamba(conv: Callable[..., Any], discretise: Callable[..., Any]) -> Build:
    """Gu and Dao 2023: in_proj, short convolution, x_proj → Δ, B, C, selective scan, gate, out_proj."""

    def build(draw):
        def step(p, s, x):
            u, z = jnp.split(rms(x, p["norm"]) @ p["in"], 2, -1)
            window, u = conv(s["conv"], u, p["taps"])
            u = jax.nn.silu(u + p["conv_bias"])
            low, b, c = jnp.split(u @ p["x"], [2, 2 + N], -1)
            dt = jax.nn.softplus(low @ p["dt"] + p["dt_bias"])
            keep, write = discretise(dt, -jnp.exp(p["A"]), b, u)
            h = keep * s["h"] + write
            y = jnp.einsum("bdn,bn->bd", h, c) + p["D"] * u
            return {"conv": window, "h": h}, (y * jax.nn.silu(z)) @ p["out"]

        shapes = {
            "norm": (I,), "in": (I, 2 * H), "taps": (TAPS, H), "conv_bias": (H,), "x": (H, 2 + 2 * N), "dt": (2, H),
            "dt_bias": (H,), "A": (H, N), "D": (H,), "out": (H, I),
        }  # fmt: skip
        return step, {k: draw(*v) for k, v in shapes.items()}, {"conv": zeros(TAPS - 1, H), "h": zeros(H, N)}

    return build


def _by_product(dt, A, b, u):
    return jnp.exp(dt[..., None] * A), (dt * u)[..., None] * b[:, None, :]


def _by_einsum(dt, A, b, u):
    return jnp.exp(jnp.einsum("bd,dn->bdn", dt, A)), jnp.einsum("bd,bn,bd->bdn", dt, b, u)


def _by_vmap(dt, A, b, u):
    one = jax.vmap(lambda d, b, u: (jnp.exp(jnp.einsum("d,dn->dn", d, A)), jnp.einsum("d,n->dn", d * u, b)))
    return one(dt, b, u)


MODELS["Mamba, products and sums"] = _mamba(conv_by_sum, _by_product)
MODELS["Mamba, einsum"] = _mamba(conv_by_einsum, _by_einsum)
MODELS["Mamba, lax.conv"] = _mamba(conv_by_lax, _by_product)
MODELS["Mamba, padded conv, vmapped einsum"] = _mamba(conv_padded, _by_vmap)


@model
def Mamba_2(draw):
    """Dao and Gu 2024: one decay and one Δ a head, B and C shared by heads, one convolution for x, B and C."""
    heads, dim = 2, H // 2

    def step(p, s, x):
        z, xbc, dt = jnp.split(x @ p["in"], [H, 2 * H + 2 * N], -1)
        window, xbc = conv_by_lax(s["conv"], xbc, p["taps"])
        v, b, c = jnp.split(jax.nn.silu(xbc + p["conv_bias"]), [H, H + N], -1)
        v = v.reshape(B, heads, dim)
        dt = jax.nn.softplus(dt + p["dt_bias"])
        keep = jnp.exp(-dt * jnp.exp(p["A"]))
        h = keep[..., None, None] * s["h"] + jnp.einsum("bh,bhp,bn->bhpn", dt, v, b)
        y = jnp.einsum("bhpn,bn->bhp", h, c) + p["D"][:, None] * v
        return {"conv": window, "h": h}, rms(y.reshape(B, H) * jax.nn.silu(z), p["norm"]) @ p["out"]

    wide = H + 2 * N
    shapes = {
        "in": (I, H + wide + heads), "taps": (TAPS, wide), "conv_bias": (wide,), "dt_bias": (heads,), "A": (heads,),
        "D": (heads,), "norm": (H,), "out": (H, I),
    }  # fmt: skip
    hidden = {"conv": zeros(TAPS - 1, wide), "h": zeros(heads, dim, N)}
    return step, {k: draw(*v) for k, v in shapes.items()}, hidden


def _griffin(conv: Callable[..., Any], gate: Callable[..., Any], shape: tuple[int, ...]) -> Build:
    """De et al. 2024: a short convolution, gates of its output, the RG-LRU, times a GeLU branch."""

    def build(draw):
        def step(p, s, x):
            window, u = conv(s["conv"], x @ p["in"], p["taps"])
            u = u + p["conv_bias"]
            r, i = (jax.nn.sigmoid(gate(u, p[k]) + p[k + "_bias"]) for k in ("r", "i"))
            a = jnp.exp(-8 * jax.nn.softplus(p["a"]) * r)
            h = a * s["h"] + jnp.sqrt(1 - a**2) * (i * u)
            return {"conv": window, "h": h}, (h * jax.nn.gelu(x @ p["gelu"])) @ p["out"]

        shapes = {
            "in": (I, H), "taps": (TAPS, H), "conv_bias": (H,), "r": shape, "r_bias": (H,), "i": shape, "i_bias": (H,),
            "a": (H,), "gelu": (I, H), "out": (H, I),
        }  # fmt: skip
        return step, {k: draw(*v) for k, v in shapes.items()}, {"conv": zeros(TAPS - 1, H), "h": zeros(H)}

    return build


def _blocks(u, w):
    return jnp.einsum("bhi,hij->bhj", u.reshape(B, 2, H // 2), w).reshape(B, H)


MODELS["Griffin, einsum"] = _griffin(conv_by_einsum, lambda u, w: u @ w, (H, H))
MODELS["Griffin, lax.conv, gates in blocks"] = _griffin(conv_by_lax, _blocks, (2, H // 2, H // 2))


@model
def convolution_before_gates(draw):
    """A short convolution of the input, dense gates of it, a diagonal state: the convolution has no parameter below."""

    def step(p, s, x):
        window, u = conv_by_lax(s["conv"], x, p["taps"])
        f = jax.nn.sigmoid(u @ p["f"])
        h = f * s["h"] + (1 - f) * jnp.tanh(u @ p["z"])
        return {"conv": window, "h": h}, h @ p["out"]

    shapes = {"taps": (TAPS, I), "f": (I, H), "z": (I, H), "out": (H, I)}
    return step, {k: draw(*v) for k, v in shapes.items()}, {"conv": zeros(TAPS - 1, I), "h": zeros(H)}


# --- diagonal recurrences ---


@model
def S5(draw):
    """Smith et al. 2023: a complex diagonal recurrence with a step size for each state, and a gated readout."""

    def step(p, s, x):
        A = -jnp.exp(p["re"]) + 1j * p["im"]
        keep = jnp.exp(A * jnp.exp(p["dt"]))
        b = (p["B_re"] + 1j * p["B_im"]) * ((keep - 1) / A)[:, None]
        h = keep * s + jnp.einsum("nd,bd->bn", b, x + 0j)
        y = jax.nn.gelu(jnp.einsum("dn,bn->bd", p["C_re"] + 1j * p["C_im"], h).real + p["D"] * x)
        return h, x + y * jax.nn.sigmoid(y @ p["glu"])

    shapes = {
        "re": (H,), "im": (H,), "dt": (H,), "B_re": (H, I), "B_im": (H, I), "C_re": (I, H), "C_im": (I, H), "D": (I,),
        "glu": (I, I),
    }  # fmt: skip
    return step, {k: draw(*v) for k, v in shapes.items()}, zeros(H) + 0j


@model
def S5_under_a_norm(draw):
    """One sample at a time, with a scale of a norm before a complex input matrix that is stored as real pairs."""

    def one(p, h, x):
        u = rms(x, p["norm"])
        A, dt = -jnp.exp(p["re"]) + 1j * p["im"], jnp.exp(p["dt"])
        keep, b = jnp.exp(A * dt), p["B"][..., 0] + 1j * p["B"][..., 1]
        h = keep * h + (((keep - 1) / A)[:, None] * b) @ u
        y = jax.nn.gelu(2 * ((p["C"][..., 0] + 1j * p["C"][..., 1]) @ h).real + p["D"] * u)
        return h, x + y * jax.nn.sigmoid(p["glu"] @ y)

    shapes = {
        "norm": (I,), "re": (H,), "im": (H,), "dt": (H,), "B": (H, I, 2), "C": (I, H, 2), "D": (I,), "glu": (I, I),
    }  # fmt: skip
    return jax.vmap(one, (None, 0, 0)), {k: draw(*v) for k, v in shapes.items()}, zeros(H) + 0j


@tokens(7)
def minGRU_of_tokens(draw):
    """Feng et al. 2024, above an embedding."""

    def step(p, s, token):
        x = p["embed"][token]
        z = jax.nn.sigmoid(x @ p["z"] + p["z_bias"])
        h = (1 - z) * s + z * (x @ p["h"])
        return h, h @ p["out"]

    shapes = {"embed": (7, I), "z": (I, H), "z_bias": (H,), "h": (I, H), "out": (H, 7)}
    return step, {k: draw(*v) for k, v in shapes.items()}, zeros(H)


@model
def diagonal_matrix(draw):
    """A diagonal recurrence that is written as a product with a matrix."""

    def step(p, s, x):
        h = jnp.tanh(s @ jnp.diag(p["a"]) + x @ p["in"] + p["bias"])
        return h, h @ p["out"]

    return step, {"a": draw(H), "in": draw(I, H), "bias": draw(H), "out": draw(H, I)}, zeros(H)


@model
def diagonal_matrix_of_one_sample(draw):
    """h' = diag(a) h, one sample at a time."""

    def one(p, s, x):
        h = jnp.diag(jax.nn.sigmoid(p["a"])) @ s + p["in"] @ x
        return h, p["out"] @ jnp.tanh(h)

    step = jax.vmap(one, (None, 0, 0))
    return step, {"a": draw(H), "in": draw(H, I), "out": draw(I, H)}, zeros(H)


# --- memories that are matrices ---


@model
def gated_DeltaNet(draw):
    """Yang et al. 2024, one head: S' = α S (I - β k kᵀ) + β v kᵀ, with short convolutions."""
    dk, dv = N, H

    def step(p, s, x):
        windows, qkv = conv_by_lax(s["conv"], jnp.concatenate([x @ p["q"], x @ p["k"], x @ p["v"]], -1), p["taps"])
        q, k, v = jnp.split(jax.nn.silu(qkv), [dk, 2 * dk], -1)
        q, k = unit(q), unit(k)
        alpha = jnp.exp(-jnp.exp(p["A"]) * jax.nn.softplus(x @ p["a"] + p["a_bias"]))
        beta = jax.nn.sigmoid(x @ p["b"])
        S = alpha[:, None, None] * s["S"]
        S = S + beta[:, None, None] * jnp.einsum("bv,bk->bvk", v - jnp.einsum("bvk,bk->bv", S, k), k)
        y = jnp.einsum("bvk,bk->bv", S, q)
        return {"conv": windows, "S": S}, (rms(y, p["norm"]) * jax.nn.silu(x @ p["g"])) @ p["out"]

    shapes = {
        "q": (I, dk), "k": (I, dk), "v": (I, dv), "taps": (TAPS, 2 * dk + dv), "A": (), "a": (I,), "a_bias": (),
        "b": (I,), "norm": (dv,), "g": (I, dv), "out": (dv, I),
    }  # fmt: skip
    hidden = {"conv": zeros(TAPS - 1, 2 * dk + dv), "S": zeros(dv, dk)}
    return step, {k: draw(*v) for k, v in shapes.items()}, hidden


@model
def RWKV_7(draw):
    """Peng et al. 2025, time mix of one layer: S' = S (diag w - k̂ (a k̂)ᵀ) + v kᵀ, with one token shift."""
    heads, dim = 2, N

    def step(p, s, x):
        def of(name, u):
            return (u @ p[name]).reshape(B, heads, dim)

        u = x + (s["x"] - x) * p["mu"]
        r, k, v, key = of("r", x), of("k", x), of("v", u), unit(of("kk", x))
        w = jnp.exp(-0.6 * jax.nn.sigmoid(p["w0"] + of("w", x)))
        a = jax.nn.sigmoid(of("a", x))
        turned = jnp.einsum("bhvk,bhk->bhv", s["S"], key)[..., None] * (a * key)[..., None, :]
        S = s["S"] * w[..., None, :] - turned + v[..., :, None] * k[..., None, :]
        return {"x": x, "S": S}, jnp.einsum("bhvk,bhk->bhv", S, r).reshape(B, -1) @ p["out"]

    wide = heads * dim
    shapes = {n: (I, wide) for n in ("r", "k", "v", "kk", "w", "a")}
    shapes |= {"mu": (I,), "w0": (heads, dim), "out": (wide, I)}
    return step, {k: draw(*v) for k, v in shapes.items()}, {"x": zeros(I), "S": zeros(heads, dim, dim)}


@model
def attention_over_a_window(draw):
    """Heads over a cache of the last keys and values, newest last."""
    heads, dim, length = 2, N, 4

    def step(p, s, x):
        new = {n: jnp.einsum("bi,ihd->bhd", x, p[n]) for n in "qkv"}
        cache = {n: jnp.concatenate([s[n][:, 1:], new[n][:, None]], 1) for n in "kv"}
        scores = jnp.einsum("bhd,blhd->bhl", new["q"], cache["k"]) / dim**0.5
        y = jnp.einsum("bhl,blhd->bhd", jax.nn.softmax(scores), cache["v"])
        return cache, x + jnp.einsum("bhd,hdi->bi", y, p["out"])

    params = {n: draw(I, heads, dim) for n in "qkv"} | {"out": draw(heads, dim, I)}
    return step, params, {n: zeros(length, heads, dim) for n in "kv"}


@model
def mLSTM(draw):
    """Beck et al. 2024: a matrix memory a head, its normaliser, and one stabiliser a head."""
    heads, dim = 2, N

    def step(p, s, x):
        q, k, v = ((x @ p[n]).reshape(B, heads, dim) for n in "qkv")
        i, f = x @ p["i"] + p["i_bias"], jax.nn.log_sigmoid(x @ p["f"] + p["f_bias"] + 2)
        m = jnp.maximum(f + s["m"], i)
        keep, write = jnp.exp(f + s["m"] - m), jnp.exp(i - m)
        C = keep[..., None, None] * s["C"] + write[..., None, None] * v[..., :, None] * k[..., None, :]
        n = keep[..., None] * s["n"] + write[..., None] * k
        low = jnp.maximum(jnp.abs((n * q).sum(-1)), jnp.exp(-m))
        y = jnp.einsum("bhvk,bhk->bhv", C, q) / low[..., None]
        return {"C": C, "n": n, "m": m}, (jax.nn.sigmoid(x @ p["o"]) * y.reshape(B, -1)) @ p["out"]

    wide = heads * dim
    shapes = {
        "q": (I, wide), "k": (I, wide), "v": (I, wide), "i": (I, heads), "i_bias": (heads,), "f": (I, heads),
        "f_bias": (heads,), "o": (I, wide), "out": (wide, I),
    }  # fmt: skip
    hidden = {"C": zeros(heads, dim, dim), "n": zeros(heads, dim), "m": zeros(heads)}
    return step, {k: draw(*v) for k, v in shapes.items()}, hidden


@model
def sLSTM(draw):
    """Beck et al. 2024: scalar memories with a stabiliser each, and recurrent weights in blocks by head."""

    def step(p, s, x):
        gates = x @ p["w"] + _blocks4(s["h"], p["u"]) + p["bias"]
        i, f, z, o = jnp.split(gates, 4, -1)
        f = jax.nn.log_sigmoid(f + 2)
        m = jnp.maximum(f + s["m"], i)
        keep, write = jnp.exp(f + s["m"] - m), jnp.exp(i - m)
        c, n = keep * s["c"] + write * jnp.tanh(z), keep * s["n"] + write
        h = jax.nn.sigmoid(o) * c / n
        return {"c": c, "n": n, "m": m, "h": h}, h @ p["out"]

    def _blocks4(h, u):
        return jnp.einsum("bhi,hijg->bghj", h.reshape(B, 2, H // 2), u).reshape(B, 4 * H)

    params = {"w": draw(I, 4 * H), "u": draw(2, H // 2, H // 2, 4), "bias": draw(4 * H), "out": draw(H, I)}
    return step, params, {"c": zeros(H), "n": zeros(H) + 0.5, "m": zeros(H), "h": zeros(H)}


@model
def RWKV_6(draw):
    """Peng et al. 2024, time mix of one layer: token shift, a decay of low rank that depends on data, a head memory."""
    heads, dim = 2, N

    def step(p, s, x):
        def shifted(n):
            return x + (s["x"] - x) * p["mu_" + n]

        r, k, v = ((shifted(n) @ p[n]).reshape(B, heads, dim) for n in "rkv")
        w = jnp.exp(-jnp.exp(p["w0"] + jnp.tanh(shifted("w") @ p["wA"]) @ p["wB"])).reshape(B, heads, dim)
        new = jnp.einsum("bhk,bhv->bhkv", k, v)
        y = jnp.einsum("bhk,bhkv->bhv", r, s["S"] + p["u"][:, :, None] * new)
        S = w[..., None] * s["S"] + new
        return {"x": x, "S": S}, (y.reshape(B, -1) * jax.nn.silu(shifted("g") @ p["g"])) @ p["out"]

    wide = heads * dim
    shapes = {f"mu_{n}": (I,) for n in "rkvwg"} | {n: (I, wide) for n in "rkvg"}
    shapes |= {"w0": (wide,), "wA": (I, 2), "wB": (2, wide), "u": (heads, dim), "out": (wide, I)}
    return step, {k: draw(*v) for k, v in shapes.items()}, {"x": zeros(I), "S": zeros(heads, dim, dim)}


# --- spikes, timers ---


def _lif(leaks: Any) -> Build:
    """A LIF layer with a leak that each unit learns, under a leaky readout."""

    def build(draw):
        def step(p, s, x):
            leak = jax.nn.sigmoid(p["leak"])
            v = leak * s["v"] * (1 - spike(lax.stop_gradient(s["v"]) - 1)) + x @ p["in"]
            r = leaks * s["r"] + spike(v - 1) @ p["out"]
            return {"v": v, "r": r}, r

        return step, {"leak": draw(H), "in": 2 * draw(I, H), "out": draw(H, N)}, {"v": zeros(H), "r": zeros(N)}

    return build


MODELS["LIF, one leak of the readout"] = _lif(0.9)
MODELS["LIF, leaks of each readout"] = _lif(np.array([0.8, 0.9, 0.95]))


@model
def timer_under_a_root(draw):
    """A clock that no parameter reaches scales the input of a leaky layer by a dense map."""
    mix = jnp.asarray(np.random.RandomState(3).standard_normal((H, H)))

    def step(p, s, x):
        clock = s["clock"] + 1
        h = 0.9 * s["h"] + (x @ p["in"]) * jnp.tanh(jnp.sqrt(clock) @ mix)
        return {"h": h, "clock": clock}, h @ p["out"]

    return step, {"in": draw(I, H), "out": draw(H, I)}, {"h": zeros(H), "clock": zeros(H) + 1}
