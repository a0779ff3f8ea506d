"""Memories that are written by a delta rule, S' = S A + β v kᵀ with one A for all rows: DeltaNet, KDA, RWKV-7, TTT.

A row of S is a position, its states act on each other. Values and gates drive rows; a key drives all of them.
"""

import jax
import jax.numpy as jnp

from .model import EXACT, REPORTED, B, Family, I, inputs, normal

family = Family("delta_rules")
HEADS, KEYS, VALUES = 2, 3, 4
MANY_KEYS = 9  # more than the elements of one op that meet at a position by default
TAPS = 3

GATED = {"q": (KEYS,), "k": (KEYS,), "v": (VALUES,), "alpha": (), "beta": ()}
ALL_EXACT = dict.fromkeys(GATED, EXACT)


def unit(k):
    return k / jnp.sqrt((k * k).sum(-1, keepdims=True) + 1e-3)


def gate(p, x, name):
    return jax.nn.sigmoid(x @ p[name])


def layer(step, widths, *memory, batch=(B,)):
    """A layer with a weight (I, width) for every name, and a drawn memory."""

    def parts(draw):
        params = {name: draw(I, *width) for name, width in widths.items()}
        return step, params, draw(*batch, *memory), inputs(normal(*batch, I))

    return parts


def write(S, k, v, beta):
    """What the key holds is taken out, and v written in its place."""
    return S - beta * jnp.outer(S @ k, k) + beta * jnp.outer(v, k)


@family(ALL_EXACT)
def products(draw):
    """One sample at a time, by products and outer products."""

    def one(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = write(gate(p, x, "alpha") * S, k, x @ p["v"], gate(p, x, "beta"))
        return S, S @ q

    return layer(jax.vmap(one, (None, 0, 0)), GATED, VALUES, KEYS)(draw)


@family(ALL_EXACT)
def einsum(draw):
    """Samples along the first axis, by einsum."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = gate(p, x, "alpha")[:, None, None] * S
        error = x @ p["v"] - jnp.einsum("bvk,bk->bv", S, k)
        S = S + jnp.einsum("b,bv,bk->bvk", gate(p, x, "beta"), error, k)
        return S, jnp.einsum("bvk,bk->bv", S, q)

    return layer(step, GATED, VALUES, KEYS)(draw)


@family(ALL_EXACT)
def matrix(draw):
    """The transition is made as a matrix, α (I - β k kᵀ), and one sample is all there is."""

    def step(p, S, x):
        q, k, beta = unit(x @ p["q"]), unit(x @ p["k"]), gate(p, x, "beta")
        transition = gate(p, x, "alpha") * (jnp.eye(KEYS) - beta * jnp.outer(k, k))
        S = S @ transition + beta * jnp.outer(x @ p["v"], k)
        return S, S @ q

    return layer(step, GATED, VALUES, KEYS, batch=())(draw)


@family(ALL_EXACT)
def key_major(draw):
    """Keys along the first axis of the memory, by products and sums, as flash-linear-attention's loop writes it."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = S * gate(p, x, "alpha")[:, None, None]
        error = x @ p["v"] - (S * k[..., None]).sum(-2)
        S = S + k[..., None] * (error * gate(p, x, "beta")[:, None])[..., None, :]
        return S, jnp.einsum("bk,bkv->bv", q, S)

    return layer(step, GATED, KEYS, VALUES)(draw)


@family(ALL_EXACT)
def heads(draw):
    """Heads are cut out of wide products by reshaping, and mapped over."""

    def head(S, q, k, v, alpha, beta):
        S = write(alpha * S, unit(k), v, beta)
        return S, S @ unit(q)

    def step(p, S, x):
        q, k, v = ((x @ p[n]).reshape(B, HEADS, -1) for n in "qkv")
        S, y = jax.vmap(jax.vmap(head))(S, q, k, v, gate(p, x, "alpha"), gate(p, x, "beta"))
        return S, y.reshape(B, -1)

    widths = {"q": (HEADS * KEYS,), "k": (HEADS * KEYS,), "v": (HEADS * VALUES,), "alpha": (HEADS,), "beta": (HEADS,)}
    return layer(step, widths, HEADS, VALUES, KEYS)(draw)


@family(ALL_EXACT)
def gate_per_key(draw):
    """Kimi Delta Attention: a decay for each key."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = gate(p, x, "alpha")[:, None, :] * S
        error = x @ p["v"] - jnp.einsum("bvk,bk->bv", S, k)
        S = S + gate(p, x, "beta")[:, None, None] * error[:, :, None] * k[:, None, :]
        return S, jnp.einsum("bvk,bk->bv", S, q)

    return layer(step, GATED | {"alpha": (KEYS,)}, VALUES, KEYS)(draw)


@family(dict.fromkeys(("r", "k", "v", "w", "a", "removal", "mix"), EXACT))
def rwkv7(draw):
    """RWKV-7: S' = S (diag(w) - κ (a ∘ κ)ᵀ) + v kᵀ, with a removal key κ of its own."""

    def step(p, S, x):
        r, k, v = (x @ p[n] for n in "rkv")
        w, a = jnp.exp(-0.606531 * gate(p, x, "w")), gate(p, x, "a")
        removal = unit(k * p["removal"])
        k = k * (1 + (a - 1) * p["mix"])
        held = jnp.einsum("bvk,bk->bv", S, -removal)
        S = S * w[:, None, :] + held[..., None] * (removal * a)[:, None, :] + v[..., None] * k[:, None, :]
        return S, jnp.einsum("bvk,bk->bv", S, r)

    widths = {"r": (KEYS,), "k": (KEYS,), "v": (VALUES,), "w": (KEYS,), "a": (KEYS,)}
    step, params, memory, make_inputs = layer(step, widths, VALUES, KEYS)(draw)
    return step, params | {"removal": 1 + draw(KEYS), "mix": draw(KEYS)}, memory, make_inputs


@family(dict.fromkeys(("q", "k", "v", "rate"), EXACT))
def ttt_linear(draw):
    """TTT-Linear: the memory is a linear model that takes one step of gradient descent for each input."""

    def loss(W, k, v):
        return 0.5 * ((k @ W - v) ** 2).sum()

    def step(p, W, x):
        q, k, v = (x @ p[n] for n in "qkv")
        W = W - gate(p, x, "rate")[:, None, None] * jax.vmap(jax.grad(loss))(W, k, v)
        return W, jnp.einsum("bk,bkv->bv", q, W)

    return layer(step, {"q": (KEYS,), "k": (KEYS,), "v": (VALUES,), "rate": ()}, KEYS, VALUES)(draw)


@family(ALL_EXACT | {"k": REPORTED})
def many_keys(draw):
    """A key of more elements than are pushed forward by default is not carried; values and gates are."""
    step, *_ = einsum(draw)
    return layer(step, GATED | {"q": (MANY_KEYS,), "k": (MANY_KEYS,)}, VALUES, MANY_KEYS)(draw)


@family(ALL_EXACT)
def norm_within_rows(draw):
    """Each row is divided by its norm: rows stay apart, but A differs between them."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = gate(p, x, "alpha")[:, None, None] * unit(S)
        S = jax.vmap(write)(S, k, x @ p["v"], gate(p, x, "beta"))
        return S, jnp.einsum("bvk,bk->bv", S, q)

    return layer(step, GATED, VALUES, KEYS)(draw)


@family(ALL_EXACT)
def gate_per_row(draw):
    """Near to a delta rule: the strength of writing differs between rows, so that A does."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = gate(p, x, "alpha")[:, None, None] * S
        error = x @ p["v"] - jnp.einsum("bvk,bk->bv", S, k)
        S = S + (gate(p, x, "beta") * error)[..., None] * k[:, None, :]
        return S, jnp.einsum("bvk,bk->bv", S, q)

    return layer(step, GATED | {"beta": (VALUES,)}, VALUES, KEYS)(draw)


MIXED = dict.fromkeys(GATED, REPORTED) | {"q": EXACT}


@family(MIXED)
def norm_over_rows(draw):
    """Near to a delta rule: a norm over the axis of values makes rows act on each other."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"])
        S = gate(p, x, "alpha")[:, None, None] * S / jnp.sqrt(1 + (S * S).sum(-2, keepdims=True))
        S = jax.vmap(write)(S, k, x @ p["v"], gate(p, x, "beta"))
        return S, jnp.einsum("bvk,bk->bv", S, q)

    return layer(step, GATED, VALUES, KEYS)(draw)


@family(MIXED)
def key_of_the_memory(draw):
    """Near to a delta rule: the key reads the memory, so that rows act on each other through it."""

    def step(p, S, x):
        q, k = unit(x @ p["q"]), unit(x @ p["k"] + 0.3 * S.sum(1))
        S = jax.vmap(write)(gate(p, x, "alpha")[:, None, None] * S, k, x @ p["v"], gate(p, x, "beta"))
        return S, jnp.einsum("bvk,bk->bv", S, q)

    return layer(step, GATED, VALUES, KEYS)(draw)


@family(ALL_EXACT | {"q_taps": EXACT, "k_taps": REPORTED, "v_taps": EXACT})
def short_convolutions(draw):
    """Gated DeltaNet as a layer: queries, keys and values pass short convolutions of their own."""

    def convolved(p, windows, x, name):
        window = jnp.concatenate([windows[name], (x @ p[name])[:, None]], 1)
        return window[:, 1:], jax.nn.silu((window * p[name + "_taps"]).sum(1))

    def step(p, s, x):
        windows, parts = {}, {}
        for name in "qkv":
            windows[name], parts[name] = convolved(p, s, x, name)
        q, k = unit(parts["q"]), unit(parts["k"])
        S = jax.vmap(write)(gate(p, x, "alpha")[:, None, None] * s["S"], k, parts["v"], gate(p, x, "beta"))
        return windows | {"S": S}, jnp.einsum("bvk,bk->bv", S, q)

    step, params, S, make_inputs = layer(step, GATED, VALUES, KEYS)(draw)
    widths = {"q": KEYS, "k": KEYS, "v": VALUES}
    params |= {f"{n}_taps": draw(TAPS, width) for n, width in widths.items()}
    return step, params, {n: draw(B, TAPS - 1, width) for n, width in widths.items()} | {"S": S}, make_inputs
