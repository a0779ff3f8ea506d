"""States of several numbers at a channel under a short convolution: ops that reach these alone, and near misses."""

import jax
import jax.numpy as jnp

from .model import EXACT, B, Family, H, I, inputs, normal

family = Family("subgroups")

TAPS, N = 3, 4


def by_sum(window, taps):
    return (window * taps).sum(1)


def by_einsum(window, taps):
    return jnp.einsum("btd,td->bd", window, taps)


def by_conv(window, taps):
    """Depthwise, one group for each channel."""
    y = jax.lax.conv_general_dilated(
        window, taps[:, None, :], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=window.shape[-1],
    )  # fmt: skip
    return y[:, 0]


def layer(conv, states, back=lambda u, h: u):
    """A short convolution, and behind it N numbers for each channel; Δ and B are made of the input."""

    def parts(draw):
        def step(p, s, x):
            u = back(x @ p["in"], s["h"])
            window = jnp.concatenate([s["conv"], u[:, None]], 1)
            u = jnp.tanh(conv(window, p["taps"]) + p["bias"])
            dt = jax.nn.softplus(x @ p["dt"])[..., None]
            keep = jnp.exp(-dt * jnp.exp(p["A"]))
            h = states(keep, s["h"]) + (dt * u[..., None]) * (x @ p["B"])[:, None, :]
            return {"conv": window[:, 1:], "h": h}, (h * (x @ p["C"])[:, None, :]).sum(-1)

        params = {
            "in": draw(I, H), "taps": draw(TAPS, H), "bias": draw(H), "dt": draw(I, H), "A": draw(H, N),
            "B": draw(I, N), "C": draw(I, N),
        }  # fmt: skip
        return step, params, {"conv": draw(B, TAPS - 1, H), "h": draw(B, H, N)}, inputs(normal(B, I))

    return parts


NAMES = dict.fromkeys(("in", "taps", "bias", "dt", "A", "B", "C"), EXACT)


def apart(keep, h):
    return keep * h


def in_pairs(keep, h):
    """Two numbers of a channel turn into each other: a position of a subgroup has two of them."""
    even, odd = h[..., ::2], h[..., 1::2]
    return keep * jnp.stack([0.8 * even - 0.6 * odd, 0.6 * even + 0.8 * odd], -1).reshape(h.shape)


def together(keep, h):
    """Near miss: the numbers of a channel all act on each other."""
    return keep * (h + 0.1 * h.sum(-1, keepdims=True))


def fed_back(u, h):
    """Near miss: the convolution sees the states behind it, so that no op reaches these alone."""
    return u + 0.1 * h.sum(-1)


@family(NAMES)
def diagonal_by_sum(draw):
    return layer(by_sum, apart)(draw)


@family(NAMES)
def diagonal_by_einsum(draw):
    return layer(by_einsum, apart)(draw)


@family(NAMES)
def diagonal_by_conv(draw):
    return layer(by_conv, apart)(draw)


@family(NAMES)
def rotated_pairs(draw):
    return layer(by_sum, in_pairs)(draw)


@family(NAMES)
def all_together(draw):
    return layer(by_sum, together)(draw)


@family(NAMES)
def read_by_the_convolution(draw):
    return layer(by_sum, apart, fed_back)(draw)
