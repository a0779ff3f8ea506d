"""Small models whose estimates are averaged over many keys."""

import jax.numpy as jnp
from tests.learn.cases import spike_vjp


def rate(params, h, x):
    h = jnp.tanh(x @ params["wi"] + h @ params["wh"] + params["b"])
    return h, h @ params["wo"]


def spiking(params, v, x):
    v = 0.8 * v + x @ params["wi"] + spike_vjp(v - 0.2) @ params["wh"] + params["b"]
    return v, spike_vjp(v - 0.2) @ params["wo"]


def linear(params, h, x):
    h = jnp.exp(1j * params["b"] - 0.1) * h + x.astype(complex) @ params["wi"] + h.conj() @ params["wh"]
    return h, (h @ params["wo"]).real
