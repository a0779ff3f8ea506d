"""Models made to break the analysis: every verdict `exact` must hold, and none may be claimed where it cannot.

Weights sliced by a scan, chosen by data, carried through loops; complex states with maps that are not holomorphic;
states that swap, cross and roll; normalisation across samples; weights made of weights and data.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import etrax

B, I, H, L, T = 3, 4, 5, 2, 7
RNG = np.random.RandomState(0)
MODELS = {}


def draw(*shape):
    return jnp.asarray(RNG.standard_normal(shape) * 0.5)


XS = draw(T, B, I)


def model(params, hidden, xs=XS, exact=()):
    """Register a step; `exact` names the parameters that `d_rtrl` must prove exact."""

    def register(step):
        MODELS[step.__name__] = (step, params, hidden, xs, set(exact))
        return step

    return register


@model({"in": draw(I, H), "w": draw(L, H, H), "b": draw(L, H)}, draw(L, B, H))
def layers_by_scan(p, h, x):
    def layer(u, parts):
        w, b, h = parts
        h = 0.9 * h + jnp.tanh(u @ w + b)
        return h, h

    out, h = lax.scan(layer, x @ p["in"], (p["w"], p["b"], h))
    return h, out


@model({"w": draw(L, I, H)}, draw(L, B, H), exact="w")
def populations_by_scan(p, h, x):
    _, h = lax.scan(lambda c, wh: (c, 0.8 * wh[1] + x @ wh[0]), 0.0, (p["w"], h))
    return h, jnp.sin(h)


@model({"w": draw(L, I, H)}, draw(L, B, H), exact="w")
def populations_by_vmap(p, h, x):
    h = jax.vmap(lambda w, h: 0.8 * h + x @ w)(p["w"], h)
    return h, jnp.sin(h)


@model({"a": draw(I, H), "b": draw(I, H)}, draw(B, H), exact="ab")
def switch(p, h, x):
    k = (x[0, 0] > 0).astype(int) + (x[0, 1] > 0).astype(int)
    branches = [lambda: x @ p["a"], lambda: jnp.tanh(x @ p["b"]), lambda: x @ p["a"] * 0.5]
    h = 0.9 * h + lax.switch(k, branches)
    return h, h


@model({"a": draw(I, H), "b": draw(I, H)}, draw(B, H), exact="ab")
def weight_chosen_by_data(p, h, x):
    w = lax.cond(x[0, 0] > 0, lambda: p["a"], lambda: p["b"])
    h = 0.9 * h + x @ w
    return h, h


@model({"a": draw(I, H), "b": draw(I, H)}, draw(H), XS[:, 0], exact="ab")
def weight_chosen_unbatched(p, h, x):
    w = lax.cond(x[0] > 0, lambda: p["a"], lambda: p["b"])
    h = 0.9 * h + x @ w
    return h, h


@model({"w": draw(I, H)}, draw(B, H), exact="w")
def weight_carried_by_a_loop(p, h, x):
    w, h = lax.fori_loop(0, 3, lambda i, c: (c[0], 0.9 * c[1] + x @ c[0]), (p["w"], h))
    return h, h @ w.T


@model({"w": draw(I, H)}, draw(B, H), exact="w")
def weight_changed_by_a_loop(p, h, x):
    _, h = lax.fori_loop(0, 3, lambda i, c: (0.9 * c[0], 0.9 * c[1] + x @ c[0]), (p["w"], h))
    return h, h


@model({"t": draw(H), "w": draw(I, H), "b": draw(H)}, draw(B, H) + 1j * draw(B, H), exact="twb")
def modrelu(p, h, x):
    z = h * jnp.exp(1j * p["t"]) + x @ p["w"]
    size = jnp.abs(z)
    z = z * jax.nn.softplus(size + p["b"]) / (size + 0.1)
    return z, jnp.real(z)


@model({"t": draw(H), "w": draw(I, H)}, draw(B, H) + 1j * draw(B, H), exact="tw")
def conjugate(p, h, x):
    h = 0.9 * jnp.conj(h) * jnp.exp(1j * p["t"]) + x @ p["w"]
    return h, jnp.imag(h)


@model({"t": draw(H), "w": draw(I, H)}, {"z": draw(B, H) + 0j, "v": draw(B, H)}, exact="tw")
def complex_drives_real(p, h, x):
    z = 0.8 * h["z"] * jnp.exp(1j * p["t"]) + x @ p["w"]
    v = 0.9 * h["v"] + jnp.real(z) ** 2
    return {"z": z, "v": v}, v


@model({"w": draw(I, H)}, draw(H, B), exact="w")
def state_transposed(p, h, x):
    h = 0.9 * h + (x @ p["w"]).T
    return h, h


@model({"w": draw(I, H)}, (draw(B, H), draw(B, H)), exact="w")
def states_swap(p, h, x):
    a, b = h
    return (0.9 * b + x @ p["w"], 0.8 * a), a + b


@model({"w": draw(I, H)}, (draw(B, H), draw(B, H)), exact="w")
def one_state_reads_the_other_rolled(p, h, x):
    a, b = 0.9 * h[0] + x @ p["w"], 0.8 * h[1] + jnp.roll(h[0], 1, -1)
    return (a, b), b


@model({"w": draw(I, H)}, (draw(B, H), draw(B, H)), exact="w")
def one_state_reads_the_other_twice(p, h, x):
    a, b = 0.9 * h[0] + x @ p["w"], 0.8 * h[1] + jnp.roll(h[0], 1, -1) + h[0]
    return (a, b), b


@model({"g": draw(H), "c": draw(H), "w": draw(I, H)}, draw(B, H), exact="gcw")
def gain_on_the_state(p, h, x):
    h = h * jax.nn.sigmoid(p["g"] * h + p["c"]) + x @ p["w"]
    return h, h


@model({"w": draw(I, H)}, draw(B, H), exact="w")
def normalised_across_samples(p, h, x):
    y = x @ p["w"]
    h = 0.9 * h + y - y.mean(0)
    return h, h


@model({"w": draw(I, H)}, draw(B, H), exact="w")
def written_where_data_says(p, h, x):
    h = 0.9 * h.at[:, (x[0, 0] > 0).astype(int)].add(x @ p["w"][:, 0])
    return h, h


@model({"k": draw(I, H), "v": draw(I, H), "q": draw(I, H)}, draw(B, H, H), exact="kqv")
def fast_weights(p, h, x):
    h = 0.9 * h + (x @ p["k"])[:, :, None] * (x @ p["v"])[:, None, :]
    return h, jnp.einsum("bij,bi->bj", h, x @ p["q"])


@model({"a": draw(I, H), "b": draw(I, H), "s": draw()}, draw(B, H), exact="abs")
def product_of_weights(p, h, x):
    h = 0.9 * h + (x @ p["a"]) * (x @ p["b"]) * p["s"]
    return h, h


@model({"w": draw(I, H), "u": draw(I, H)}, draw(B, H), exact="wu")
def weight_made_of_data(p, h, x):
    w = p["w"] * jnp.tanh(x @ p["u"])[:, None, :]
    h = 0.9 * h + jnp.einsum("bi,bih->bh", x, w)
    return h, h


@model({"w": draw(I, H)}, draw(B, H))
def state_divided_by_its_norm(p, h, x):
    h = 0.9 * h / (1 + jnp.linalg.norm(h, axis=-1, keepdims=True)) + x @ p["w"]
    return h, h


@model({"w": draw(I, H), "g": draw(H)}, (draw(B, H), draw(B, H)), exact="wg")
def output_reads_the_old_state(p, h, x):
    return (0.9 * h[0] + x @ p["w"], h[0] * p["g"]), h[1]


@model({"b": draw(H)}, (draw(B, H), draw(B, H)), exact="b")
def state_is_a_parameter(p, h, x):
    return (0.9 * h[0] + h[1] * x[:, :1], jnp.broadcast_to(p["b"], (B, H))), h[0]


def loss(output, _):
    return jnp.mean(jnp.real(output) ** 2 + jnp.imag(output) ** 2)


@pytest.mark.parametrize("rule", ["d_rtrl", pytest.param("rtrl", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_every_exact_verdict_holds(name, rule):
    step, params, hidden, xs, exact = MODELS[name]
    learner = etrax.compile(step, rule, xs[0], params=params, hidden=hidden)
    table = etrax.testing.compare(learner, loss, params, hidden, xs, window=3).check()
    proven = {row.path[0] for row in table.rows if row.verdict.kind == "exact"}
    assert proven == (exact if rule == "d_rtrl" else set(params))
    for row in table.rows:
        assert row.verdict.kind == "exact" or row.relative_error > 1e-6, "a reported parameter that is exact after all"
